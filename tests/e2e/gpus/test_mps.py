"""Whole runs under MPS: a stand-in daemon that records its commands, stand-in GPUs, real processes."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.older_tools.contracts import contract
from tests.support import killing
from tests.support.faults import fault
from tests.support.gpu_home import GpuHome, holding, training
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30
Machine = Callable[..., GpuHome]


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield a function that makes a machine with GPUs and MPS; its paths are short, as the sockets of MPS need it."""
    made: list[GpuHome] = []

    def make(mps: bool = True, **how: Any) -> GpuHome:
        made.append(GpuHome(tmp_path_factory.mktemp("m"), **how))
        if mps:
            made[-1].install_mps()
        return made[-1]

    yield make
    for home in made:
        home.end()


def small(seconds: float = 0.5, **said: Any) -> dict[str, object]:
    return training(peak="2GiB", Memory="3GiB", seconds=seconds, busy=0.1, epochs=2, **said)


def is_paired(home: GpuHome) -> bool:
    """Tell whether every daemon that was started has ended, before the next one of its GPU."""
    path = home.root / "mps"
    notes = [line.split()[:2] for line in path.read_text().splitlines()] if path.exists() else []
    for place in {where for where, _ in notes}:
        said = [word for where, word in notes if where == place and word in ("start", "stop")]
        if said != ["start", "stop"] * (len(said) // 2):
            return False
    return not home.daemons()


class TestLife:
    def test_daemon_of_a_gpu_is_started_once_and_ended_with_the_run(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[holding("2GiB", Memory="3GiB")] * 4)
        with home.going("--mps"):
            home.wait_for_clients(4)
            home.go()
        assert [task["state"] for task in home.tasks()] == ["succeeded"] * 4
        assert [task["mps"] for task in home.tasks()] == ["client"] * 4
        assert home.mps_notes("start") == [f"start {home.box.uuids[0]}"]
        assert is_paired(home)

    def test_every_mig_instance_has_a_daemon_that_sees_it_alone(self, machine: Machine) -> None:
        home = machine(gpus=1, total="40GiB", name="NVIDIA A100-SXM4-40GB")
        instances = [home.box.instances[number] for number in home.box.slice(0, "2g.10gb", "2g.10gb")]
        home.jobs(*[holding("2GiB", Memory="6GiB") for _ in range(2)])
        with home.going("--mps"):
            home.wait_for_clients(2)
            home.wait_for_clients(2)  # both daemons were asked
            told = [json.loads((home.state / f"runs/1/tasks/{task}/told").read_text())[1] for task in (0, 1)]
            home.go()
        assert sorted(home.mps_notes("start")) == sorted(f"start {uuid}" for uuid in instances)
        assert [said["CUDA_VISIBLE_DEVICES"] for said in told] == instances
        assert len({said["CUDA_MPS_PIPE_DIRECTORY"] for said in told}) == 2
        assert [said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for said in told] == ["0=6144M"] * 2
        assert [task["mps"] for task in home.tasks()] == ["client"] * 2
        assert is_paired(home)

    @contract("S3-28")
    @pytest.mark.parametrize("rows", [["Command,Epochs", "true,2", "true,two"], ["Command"], None])
    def test_no_daemon_starts_for_a_list_that_is_refused_empty_or_missing(
        self, machine: Machine, rows: list[str] | None
    ) -> None:
        home = machine(gpus=1)
        if rows is not None:
            (home.root / "jobs.csv").write_text("\n".join(rows) + "\n")
        home.call("run", "jobs.csv", "--mps", code=0 if rows == ["Command"] else 2)
        assert home.mps_notes("start") == []

    def test_daemon_is_shared_by_two_runs_and_ended_by_the_last(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(holding("1GiB", Memory="2GiB"))
        with home.going("--mps"):
            home.wait_for(1)
            home.call("run", "jobs.csv", "--new", "--mps", "-d", code=0)
            wait_until(lambda: home.box.used(0) == 2 * GIB, 30)
            home.go()
        wait_until(lambda: is_paired(home), 30)
        assert len(home.mps_notes("start")) == 1

    @fault(40)
    def test_a_daemon_that_is_killed_is_started_again_and_the_next_tasks_are_its_clients(
        self, machine: Machine
    ) -> None:
        home = machine(gpus=1)
        home.jobs(holding("1GiB", Memory="2GiB"), *[holding("1GiB", until="late", Memory="2GiB")] * 2)
        with home.going("--mps", "-j", "2"):
            home.wait_for_clients(2)
            (daemon,) = home.daemons()
            killing.kill(daemon)
            home.wait_for_words("the MPS daemon of GPU 0 has died and was started again")
            home.go()
            home.wait_for_clients(3)
            home.go("late")
        assert [task["state"] for task in home.tasks()] == ["succeeded"] * 3
        assert [task["mps"] for task in home.tasks()] == ["client"] * 3
        assert [line.split()[0] for line in home.mps_notes("start", "stop")] == ["start", "start", "stop"]
        assert not home.daemons()

    def left(self, home: GpuHome) -> None:
        """Start a run and kill its scheduler while two tasks run; they go on, and so does their daemon."""
        home.jobs(*[holding("1GiB", Memory="2GiB")] * 2, holding("1GiB", until="late", Memory="2GiB"))
        with home.start("run", "jobs.csv", "--mps", "-j", "2") as scheduler:
            home.wait_for(2)
            home.wait_for_clients(2)
            scheduler.kill()
        assert len(home.daemons()) == 1

    def test_resume_adopts_the_daemon_of_a_killed_scheduler(self, machine: Machine) -> None:
        home = machine(gpus=1)
        self.left(home)
        with home.going(verb="resume"):
            home.wait_for_words("taken over; 0 ended, 2 ran, 1 waiting")
            home.wait_for_clients(2)
            home.go()
            home.wait_for_clients(3)
            home.go("late")
        assert [task["state"] for task in home.tasks()] == ["succeeded"] * 3
        assert [task["mps"] for task in home.tasks()] == ["client"] * 3
        assert len(home.mps_notes("start")) == 1
        assert is_paired(home)

    def test_resume_without_mps_says_so_and_goes_on_where_allowed(self, machine: Machine) -> None:
        home = machine(gpus=1)
        self.left(home)
        path = home.env["PATH"]
        home.env["PATH"] = path.partition(os.pathsep)[2]
        said = home.call("resume", code=2).stderr
        assert "nvidia-cuda-mps-control is not on PATH" in said
        assert "--mps=off" in said
        with home.going("--mps=off", verb="resume"):
            home.wait_for_words("taken over; 0 ended, 2 ran, 1 waiting")
            home.go()
            home.go("late")
        assert [task["thread_percentage"] for task in home.tasks()] == [100, 100, None]
        home.env["PATH"] = path
        home.call("doctor", "--clean")
        assert not home.daemons()

    def test_next_run_ends_the_daemon_of_a_killed_scheduler_after_its_tasks(self, machine: Machine) -> None:
        home = machine(gpus=1)
        self.left(home)
        home.write("others.csv", "Command", ["true"])
        home.call("run", "others.csv", code=0)
        assert len(home.daemons()) == 1
        home.go()
        wait_until(lambda: home.box.used(0) == 0 and not shims(home), 30)
        said = home.call("run", "others.csv", code=0).stdout
        assert "an unused MPS daemon was ended" in said
        assert is_paired(home)

    def test_doctor_cleans_leftover_daemons_and_no_used_one(self, machine: Machine) -> None:
        home = machine(gpus=1)
        self.left(home)
        assert "ended" not in home.call("doctor", "--clean").stdout
        assert len(home.daemons()) == 1
        home.go()
        wait_until(lambda: home.box.used(0) == 0 and not shims(home), 30)
        assert "an unused MPS daemon was ended" in home.call("doctor", "--clean").stdout
        assert is_paired(home)


def shims(home: GpuHome) -> list[int]:
    return [pid for pid in home.living() if "shim.py" in killing.command_line(pid)]


class TestTasks:
    def test_mps_variables_of_a_task_are_about_its_own_gpu(self, machine: Machine) -> None:
        home = machine(gpus=2)
        home.jobs(
            holding("1GiB", Memory="3GiB", ThreadPercentage=25, Device=0),
            holding("1GiB", Memory="3500MiB", Device=1),
            holding("1GiB,1GiB", Memory="3GiB", GPUs=2, ThreadPercentage=25),
        )
        home.env["CUDA_MPS_LOG_DIRECTORY"] = "/of/the/user"
        with home.going("--mps"):
            home.wait_for(3)
            home.wait_for_clients(2)
            home.go()
        told = [of_mps(home.told(task["id"])[1]) for task in home.tasks()]
        places = [of.pop("CUDA_MPS_PIPE_DIRECTORY", "") for of in told]
        uuids = home.box.uuids
        assert told == [
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{uuids[0]}=3072M"},
            {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{uuids[1]}=3500M"},
            {},
        ]
        assert places[0] != places[1] != ""
        assert places[2] == ""
        tasks = home.tasks()
        assert [task["mps"] for task in tasks] == ["client", "client", None]
        assert [task["thread_percentage"] for task in tasks] == [25, 100, None]
        assert [task["fenced"] for task in tasks] == [True, True, None]

    def test_auto_shares_the_threads_among_present_tasks(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[holding("1GiB", Memory="2GiB")] * 3)
        with home.going("--mps", "--thread_percentage", "auto"):
            home.wait_for(3)
            home.go()
        assert [task["thread_percentage"] for task in home.tasks()] == [100, 50, 33]

    def test_task_above_its_limit_fails_alone_and_is_retried_with_more(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[holding("2GiB", Memory="3GiB")] * 2, training(peak="5GiB", Memory="4GiB", seconds=0.5))
        with home.going("--mps"):
            home.wait_for(1, "oom")
            home.wait_for(1, "succeeded")
            home.go()
        greedy = home.tasks()[2]
        assert [task["ooms"] for task in home.tasks()] == [0, 0, 1]
        assert [task["state"] for task in home.tasks()] == ["succeeded"] * 3
        assert greedy["reserved_bytes"] >= 5 * GIB
        assert home.box.ooms(0) == 0

    def test_unknown_task_keeps_the_limit_of_its_start_and_has_none_without_a_fence(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(holding("2GiB"))
        with home.going("--mps", "--settle", "200ms"):
            home.wait_for_clients(1)
            wait_until(lambda: "settled" in home.tries()[0].causes, 30)
            home.go()
        (task,) = home.tasks()
        assert (task["fenced"], task["mps"]) == (False, "client")
        home.jobs(holding("5GiB", Memory="3GiB"))
        home.call("run", "jobs.csv", "--new", "--mps", "--mps-fence", "off", code=0)
        assert home.tasks("2")[0]["fenced"] is False

    def test_task_that_mps_never_took_is_named(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(holding("1GiB", Memory="2GiB", Env="CUDA_MPS_PIPE_DIRECTORY=/nowhere"))
        with home.going("--mps"):
            home.wait_for_words("uses GPU 0 outside of MPS: it takes turns with other tasks")
            home.go()
        assert home.tasks()[0]["mps"] == "turns"


def of_mps(environ: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name.startswith("CUDA_MPS_")}


class TestEnds:
    @pytest.mark.parametrize("how", ["stop", "timeout"])
    def test_client_is_signalled_only_after_mps_has_ended_its_work(self, machine: Machine, how: str) -> None:
        home = machine(gpus=1)
        (home.root / "busy").touch()
        said = {"Timeout": "1s"} if how == "timeout" else {}
        home.jobs(holding("1GiB", Memory="2GiB", **said))
        with home.going("--mps", code=1):
            (client,) = wait_until(lambda: home.mps_notes("client"), 30)
            pid = int(client.split()[1])
            if how == "stop":
                home.call("stop", "--now", code=0)
            wait_until(lambda: home.mps_notes("terminate_client"), 30)
            assert killing.is_alive(pid)
            (home.root / "busy").unlink()
        assert home.mps_notes("terminated") == [f"terminated {pid}"]
        assert home.states() == ["interrupted" if how == "stop" else "timeout"]
        assert is_paired(home)

    def test_task_that_never_used_its_gpu_is_ended_as_usual(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs({"Command": "sleep 60", "Memory": "2GiB", "Timeout": "1s"})
        home.run("--mps", code=1)
        assert home.states() == ["timeout"]
        assert home.mps_notes("terminate_client") == []


class TestFaults:
    def test_fault_ends_all_clients_and_only_its_cause_fails(self, machine: Machine) -> None:
        home = machine(gpus=1)
        innocent = training(peak="2GiB", Memory="3GiB", seconds=2.0, busy=0.1, epochs=2)
        guilty = training(peak="2GiB", Memory="3GiB", seconds=1.0, busy=0.1, epochs=2, fault=0.8)
        home.jobs(innocent, innocent, guilty)
        home.run("--mps", code=1)
        assert home.states() == ["succeeded", "succeeded", "failed"]
        assert [one.outcome for one in home.tries()].count("lost") == 3
        assert "a fault of its GPU, which under MPS ends all that share it" in home.log()
        assert is_paired(home)

    def test_all_tasks_succeed_where_the_fault_does_not_return(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[holding("2GiB", Memory="3GiB")] * 2, holding("2GiB", Memory="3GiB"))
        with home.going("--mps"):
            home.wait_for(3)
            wait_until(lambda: len(home.mps_notes("client")) == 3, 30)
            with client(home) as one:
                one.send(b"fault")
                wait_until(lambda: len([one for one in home.tries() if one.outcome == "lost"]) == 3, 30)
            wait_until(lambda: sum(one.number == 2 and bool(one.pid) for one in home.tries()) == 3, 30)
            home.go()
        assert home.states() == ["succeeded"] * 3
        assert [task["attempts"] for task in home.tasks()] == [2] * 3

    def test_server_that_takes_no_client_costs_no_attempt(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(holding("1GiB", Memory="2GiB"), *[small(Name="late")] * 2)
        with home.going("--mps", "-j", "1"):
            home.wait_for(1)
            wait_until(lambda: home.mps_notes("client"), 30)
            with client(home) as one:
                one.send(b"fault")
                wait_until(lambda: home.wait_for(1, "lost"), 30)
                home.wait_for_words("recovered")
                assert len(home.tries()) == 1
            home.go()
        assert home.states() == ["succeeded"] * 3
        assert len([one for one in home.tries() if one.outcome == "lost"]) == 1


@contextlib.contextmanager
def client(home: GpuHome) -> Iterator[socket.socket]:
    """Yield a client of the one daemon, of another run of this user."""
    (pipes,) = home.leases.glob("mps.*/pipe")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(f"{pipes}/control")
        end.send(b"client %d" % os.getpid())
        assert end.recv(64) == b"ok"
        yield end


class TestRefusals:
    def refused(self, home: GpuHome, *flags: str) -> str:
        """Return the one line of the refusal; check that nothing is accepted, and nothing of MPS is left."""
        home.jobs(small())
        said = home.call("run", "jobs.csv", *flags, code=2).stderr
        assert said.count("\n") == 1, said
        assert not list(home.state.glob("runs/*"))
        assert is_paired(home)
        return said

    def test_mps_without_its_program_is_refused(self, machine: Machine) -> None:
        said = self.refused(machine(mps=False, gpus=1), "--mps")
        assert "--mps: nvidia-cuda-mps-control is not on PATH" in said

    def test_mps_without_a_gpu_is_refused(self, machine: Machine) -> None:
        assert "this run has no GPU" in self.refused(machine(gpus=1), "--mps", "--devices", "host")

    def test_mps_on_a_too_old_gpu_is_refused(self, machine: Machine) -> None:
        said = self.refused(machine(gpus=1, compute_capability=(6, 1)), "--mps")
        assert "GPU 0 (NVIDIA Stand-in 24GB) has compute capability 6.1" in said

    @fault(40)
    def test_mps_whose_daemon_does_not_start_is_refused(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "refuse").touch()
        said = self.refused(home, "--mps")
        assert "MPS on GPU 0: its daemon did not start (Failed to initialize the stand-in)" in said

    def test_mps_that_gives_a_smaller_share_is_refused(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "half").touch()
        assert "gives tasks 50% of the threads at most" in self.refused(home, "--mps")

    def test_mps_with_a_too_long_directory_is_refused(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.env["SCHEDULER_LEASES"] = str(home.root / ("long" * 20))
        said = self.refused(home, "--mps")
        assert "is too long for the sockets of MPS (" in said
        assert "106 at most): name a shorter lease directory with SCHEDULER_LEASES" in said

    @fault(40)
    def test_mps_beside_a_daemon_of_another_user_is_refused(self, machine: Machine) -> None:
        home = machine(gpus=1)
        with unmanaged(home) as pipes:
            home.env["CUDA_MPS_PIPE_DIRECTORY"] = str(pipes)
            home.jobs(small())
            said = home.call("run", "jobs.csv", "--mps", code=2).stderr
            assert f"an MPS daemon of {getpass.getuser()} (process" in said
            assert f"{pipes}) runs here already: --mps=join joins it" in said
        assert is_paired(home)

    def test_mps_in_exclusive_mode_is_refused(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.box.set(0, compute_mode=3)
        assert "GPU 0 is in compute mode EXCLUSIVE_PROCESS" in self.refused(home, "--mps")

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            ("--mps=maybe", "--mps=maybe: write on, off, auto or join"),
            ("--thread-percentage 25", "--thread-percentage 25 has an effect only under MPS: add --mps"),
            ("--mps --thread-percentage 0", "'0' is not a percentage of a GPU's threads: write 1 to 100, or auto"),
            ("--mps-fence off", "add --mps"),
            ("--mps --mps-fence maybe", "--mps-fence maybe: write on or off"),
            ("--mps=join --mps-exclusive", "--mps-exclusive needs a daemon of your own: write --mps, not --mps=join"),
            ("--mps=join", "--mps=join: no MPS daemon runs in /tmp/nvidia-mps"),
            ("--mps --visible index", "under MPS tasks know their GPUs by UUID only"),
            ("--mps --devices slots:0;0", "the task of a slot gets its GPUs under the names in the list"),
        ],
    )
    def test_mps_flags_that_contradict_are_refused(self, machine: Machine, flags: str, said: str) -> None:
        assert said in self.refused(machine(gpus=1), *flags.split())

    def test_mps_auto_goes_on_without_mps_and_says_so_once(self, machine: Machine) -> None:
        home = machine(mps=False, gpus=1)
        home.jobs(small())
        said = home.call("run", "jobs.csv", "--mps=auto", code=0).stdout
        assert said.count("MPS is not used: nvidia-cuda-mps-control is not on PATH") == 1
        assert home.tasks()[0]["mps"] is None


class TestJoining:
    def test_a_daemon_that_is_joined_is_never_started_nor_stopped(self, machine: Machine) -> None:
        home = machine(gpus=2)
        with unmanaged(home) as pipes:
            home.env["CUDA_MPS_PIPE_DIRECTORY"] = str(pipes)
            home.jobs(*[holding("1GiB", Memory="20GiB", ThreadPercentage=10)] * 2)
            with home.going("--mps=join"):
                home.wait_for_clients(2)
                home.go()
            assert [task["mps"] for task in home.tasks()] == ["client"] * 2
            assert {home.told(task["id"])[1]["CUDA_MPS_PIPE_DIRECTORY"] for task in home.tasks()} == {str(pipes)}
            assert len(home.mps_notes("start")) == 1
            assert home.mps_notes("quit", "stop") == []

    @pytest.mark.parametrize("flags", ["--mps jobs.csv", "-m jobs.csv", "jobs.csv --mps on", "--mps=TRUE jobs.csv"])
    def test_mps_flag_takes_only_its_own_words(self, machine: Machine, flags: str) -> None:
        home = machine(gpus=1)
        home.jobs(small())
        home.call("run", *flags.split(), code=0)
        assert home.mps_notes("start")
        assert is_paired(home)

    def test_scheduler_py_uses_mps_for_threads_percentage(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(small())
        home.command = [home.command[0], str(killing.ROOT / "scheduler.py")]
        home.call("--csv", "jobs.csv", "--threads_percentage", "25", code=0)
        home.command = [home.command[0], "-m", "scheduler"]
        assert home.tasks()[0]["thread_percentage"] == 25
        assert is_paired(home)


@contextlib.contextmanager
def unmanaged(home: GpuHome) -> Iterator[Path]:
    """Start a daemon by hand."""
    pipes = home.root / "site"
    pipes.mkdir()
    program = shutil.which("nvidia-cuda-mps-control", path=home.env["PATH"])
    assert program is not None
    env = {**home.env, "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    subprocess.run([program, "-d"], env=env, check=True)
    try:
        yield pipes
    finally:
        subprocess.run([program], env=env, input="quit\n", text=True, check=True, stdout=subprocess.DEVNULL)
        wait_until(lambda: not home.daemons(), 30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the compute mode of a GPU")
class TestExclusive:
    def modes(self, home: GpuHome) -> list[str]:
        """Return the modes that its GPUs were ever set to, and the last one that each has."""
        return [path.read_text() for path in sorted(home.box.file.parent.glob("mode*"))]

    def test_exclusive_gpu_takes_no_other_process_until_the_run_is_over(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[holding("1GiB", Memory="2GiB")] * 2)
        with home.going("--mps", "--mps-exclusive"):
            home.wait_for_clients(2)
            assert self.modes(home) == ["3"]
            home.go()
        assert self.modes(home) == ["0"]
        assert home.states() == ["succeeded"] * 2

    @pytest.mark.parametrize("how", ["run", "doctor"])
    @contract("S3-D11")
    def test_exclusive_mode_of_a_killed_run_is_restored_by_the_next_start_and_by_doctor(
        self, machine: Machine, how: str
    ) -> None:
        home = machine(gpus=1)
        home.jobs(holding("1GiB", Memory="2GiB"))
        with home.start("run", "jobs.csv", "--mps", "--mps-exclusive") as scheduler:
            home.wait_for_clients(1)
            scheduler.kill()
        home.go()
        wait_until(lambda: home.box.used(0) == 0 and not shims(home), 30)
        assert self.modes(home) == ["3"]
        if how == "doctor":
            home.call("doctor", "--clean")
        else:
            home.write("others.csv", "Command", ["true"])
            home.call("run", "others.csv", code=0)
        assert self.modes(home) == ["0"]
        assert is_paired(home)

    def test_nothing_starts_where_exclusive_mode_cannot_be_set(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.box.file.parent / "deaf").touch()
        home.jobs(small())
        said = home.call("run", "jobs.csv", "--mps", "--mps-exclusive", code=2).stderr
        assert re.search(r"the compute mode of GPU-\S+ could not be set to EXCLUSIVE_PROCESS", said)
        assert is_paired(home)

    def test_exclusive_mode_is_refused_beside_other_processes(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(small())
        with home.box.unmanaged(0, "1GiB"):
            said = home.call("run", "jobs.csv", "--mps", "--mps-exclusive", code=2).stderr
        assert "--mps-exclusive: GPU 0 is used by" in said
        assert self.modes(home) == []

    def test_exclusive_mode_is_refused_beside_unused_leases_of_another_run(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(holding(Memory="3GiB"))
        with home.going():
            home.wait_for(1)
            said = home.call("run", "jobs.csv", "--new", "--mps", "--mps-exclusive", code=2).stderr
            home.go()
        assert "--mps-exclusive: run 1 of" in said
        assert "has leased 3.0GiB of GPU 0" in said

    def test_exclusive_mode_is_refused_with_tasks_on_several_gpus(self, machine: Machine) -> None:
        home = machine(gpus=2)
        home.jobs(training(peak="1GiB,1GiB", GPUs=2))
        said = home.call("run", "jobs.csv", "--mps", "--mps-exclusive", code=2).stderr
        assert "row 2, column GPUs" in said
        assert "--mps-exclusive" in said
        assert is_paired(home)
