"""Runs on several machines over ssh, whose links and processes fail."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import killing
from tests.support.faults import fault
from tests.support.standin.box import TRAIN, build
from tests.support.standin.nodes import MISSING, Lab, can_be_made
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not can_be_made(), reason=MISSING)


@pytest.fixture
def labs(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Yield a function that makes a head and nodes with two GPUs each."""
    made: list[Lab] = []

    def make(*names: str, gpus: int = 2) -> Lab:
        made.append(Lab(tmp_path, *names, gpus=gpus))
        return made[-1]

    yield make
    for lab in made:
        lab.end()


def test_the_tasks_of_a_list_run_once_each_on_all_nodes_and_nothing_stays_there(labs: Callable[..., Lab]) -> None:
    build()  # the stand-in libraries, once for all tests
    began = time.monotonic()
    lab = labs("n1", "n2", "n3")
    assert time.monotonic() - began < 5
    lab.once(24)
    lab.call("run", "jobs.csv", *lab.on, "--plain", code=0)
    lab.check_once(24)
    assert {line.split()[1] for line in lab.told("begin")} == {"n1", "n2", "n3"}
    for node in lab.nodes.values():
        assert not node.agents()
        assert not [path for path in (node.state / "guests").rglob("*") if path.is_file()]


@fault(190)
def test_the_tasks_of_a_node_run_on_while_its_agent_is_killed(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(12, 1.0)
    with lab.going("run", "jobs.csv", *lab.on, "--plain"):
        wait_until(lambda: len(lab.told("begin")) >= 3, 10)
        (agent,) = lab.nodes["n1"].agents()
        killing.kill(agent)
    lab.check_once(12)
    assert "n1 has answered again" in lab.log()


@fault(192)
def test_a_killed_head_is_resumed_and_every_task_ends_once(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(12, 1.0)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", code=None):
        wait_until(lambda: len(lab.told("begin")) >= 3, 10)
        killing.kill(lab.scheduler())
    lab.call("resume", "--plain", code=0)
    lab.check_once(12)


@fault(191)
def test_a_node_whose_link_is_cut_is_left_out_until_it_answers_again(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(12, 1.0)
    with lab.going("run", "jobs.csv", *lab.on, "--plain"):
        wait_until(lambda: {"n1", "n2"} <= {line.split()[1] for line in lab.told("begin")}, 10)
        lab.nodes["n1"].cut()
        wait_until(lambda: "n1 is away" in lab.log(), 6)
        ran = len([line for line in lab.told("begin") if line.endswith("n1")])
        wait_until(lambda: len([line for line in lab.told("begin") if line.endswith("n2")]) >= 6, 10)
        assert len([line for line in lab.told("begin") if line.endswith("n1")]) == ran
        lab.nodes["n1"].mend()
    lab.check_once(12)


@fault(192)
def test_resume_goes_on_with_the_other_nodes_while_one_is_away(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(8, 1.0)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", code=None):
        wait_until(lambda: {"n1", "n2"} <= {line.split()[1] for line in lab.told("begin")}, 10)
        lab.nodes["n1"].cut()
        killing.kill(lab.scheduler())
    with lab.going("resume", "--plain"):
        wait_until(lambda: len([line for line in lab.told("end") if line.endswith("n2")]) >= 4, 20)
        lab.nodes["n1"].mend()
    lab.check_once(8)


def test_a_node_with_another_script_is_refused_before_anything_starts(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(4)
    lab.nodes["n2"].put(lab.root / "once.sh", "echo other")
    said = lab.call("run", "jobs.csv", *lab.on, code=2).stderr
    assert f"n2: {lab.root}/once.sh has other content there" in said
    assert not lab.told("begin")
    assert not (lab.state / "runs" / "1").exists()


def test_a_run_begins_without_nodes_that_do_not_answer_and_names_them(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    lab.once(2)
    said = lab.call("run", "jobs.csv", "--on", "ssh:n1,nowhere", "--plain", code=0).stdout
    assert "nowhere is away: ssh: Could not resolve hostname nowhere" in said
    lab.check_once(2)


def test_a_node_with_another_version_is_refused_with_the_cure(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    lab.once(1)
    fence = killing.ROOT / "scheduler" / "cluster" / "fence.py"
    lab.nodes["n1"].put(fence, f"{fence.read_text()}# another version\n")
    said = lab.call("run", "jobs.csv", *lab.on, code=2).stderr
    assert "n1: it has another version of scheduler: install the version of this machine there" in said


def test_programs_and_directories_that_a_node_lacks_are_named(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    here = lab.state / "here"  # nodes do not see what is in the state directory of the head
    here.mkdir()
    (here / "tool").write_text("#!/bin/sh\n")
    (here / "tool").chmod(0o755)
    for header, cell, words in (
        ("Command", [f"{here}/tool"], f"n1: there is no program {here}/tool: make it the same as here"),
        ("Command,Directory", ["true", here], f"n1: there is no directory {here}: make it the same as here"),
    ):
        lab.write("jobs.csv", header, cell)
        assert words in lab.call("run", "jobs.csv", *lab.on, code=2).stderr


def test_a_command_line_that_cannot_work_on_nodes_is_refused_with_the_cure(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    (lab.folder / "alias").symlink_to(lab.folder / "n1")
    lab.once(2)
    for words, sentence in (
        (("--on", "ssh:nowhere"), "no node can be used: nowhere: ssh: Could not resolve hostname nowhere"),
        (("--on", "ssh:n1,n1"), "--on names n1 twice"),
        (("--on", "ssh:n1,alias"), "n1 and alias are the same machine (n1): name each machine once"),
        (("--on", "gpu1"), "write one of ssh:HOST,HOST,..."),
        (("--on", "ssh:-oProxyCommand=x"), "'-oProxyCommand=x' is no host"),
        (("--on", "ssh:n1", "--mps"), "--mps does not go with --on"),
        (("--on", "ssh:n1", "--node-fence", "2s"), "--node-fence: '2s' is too short: a link that broke needs some"),
        (("--devices", "host", "--node-fence", "9s"), "--node-fence is for the machines of --on"),
        (("--on", "ssh:n1", "--python", "/bin/nothing"), "/bin/nothing"),
    ):
        assert sentence in lab.call("run", "jobs.csv", *words, code=2).stderr
    assert not lab.told("begin")


@pytest.mark.long
def test_grids_standard_input_and_growing_files_run_on_nodes(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    lab.env["SCHEDULER_ON"] = "ssh:n1"
    lab.call("grid", "hostname; echo {x}", "-p", "x", "1", "2", "--run", "--plain", code=0)
    with lab.start("run", "-", "--plain", stdin=subprocess.PIPE) as run:
        run.communicate("hostname\n", timeout=30)
    assert run.returncode == 0
    lab.write("grows", "hostname")
    with lab.start("run", "--follow", "grows", "--plain") as follow:
        wait_until(lambda: (lab.state / "runs" / "3").exists() and "succeeded" in lab.states("3"), 30)
        with open(lab.root / "grows", "a") as file:
            file.write("hostname\n")
        wait_until(lambda: lab.states("3") == ["succeeded"] * 2, 30)
        follow.send_signal(signal.SIGINT)
        follow.wait(30)
    said = [Path(row["log"]).read_text().split() for run in "123" for row in lab.tasks(run)]
    assert sorted(said) == [["n1"], ["n1"], ["n1"], ["n1", "1"], ["n1", "2"]]


def test_the_second_interrupt_stops_the_tasks_on_all_nodes(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(4, 60)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", code=130) as run:
        wait_until(lambda: len(lab.told("begin")) == 4, 20)
        run.send_signal(signal.SIGINT)
        wait_until(lambda: "nothing more is started" in lab.log(), 10)
        run.send_signal(signal.SIGINT)
    assert {row["state"] for row in lab.tasks()} == {"interrupted"}
    for node in lab.nodes.values():
        assert not node.processes("once.sh")


def test_the_log_of_a_task_on_a_node_is_followed_from_the_head(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    lab.once(1, 2)
    with lab.going("run", "jobs.csv", *lab.on, "--plain"):
        wait_until(lambda: lab.told("begin"), 20)
        wait_until(lambda: lab.call("logs", "0").stdout == "output of 0\n", 10)
        assert not lab.told("end")
        assert lab.call("logs", "0", "-f", code=0).stdout == "output of 0\n"
    lab.check_once(1)


def test_a_task_that_runs_out_of_memory_on_a_node_gets_more(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    lab.write("jobs.csv", "Command,Memory", [f"{sys.executable} -S -E {TRAIN} --peak 3GiB --seconds 1", "1GiB"])
    lab.call("run", "jobs.csv", *lab.on, "--plain")
    (row,) = lab.tasks()
    assert row["state"] == "succeeded"
    assert row["peak_bytes"] >= 3 << 30


def test_the_quota_of_a_machine_refuses_what_never_fits_there_and_bounds_an_unknown_need(
    labs: Callable[..., Lab],
) -> None:
    lab = labs("n1", gpus=1)
    (lab.nodes["n1"].folder / "machine.toml").write_text('[quotas]\nmemory = "8GiB"\n')
    command = f"{sys.executable} -S -E {TRAIN} --peak 3GiB --seconds 1"
    lab.write("jobs.csv", "Command,Memory", [command, "20GiB"])
    said = lab.call("run", "jobs.csv", *lab.on, code=2).stderr
    assert "needs 20.0GiB; the largest device (n1 GPU 0) has 8.0GiB for one user, by a quota or --devices" in said
    lab.commands(command)
    lab.call("run", "jobs.csv", *lab.on, "--plain", code=0)
    (row,) = lab.tasks()
    assert row["reserved_bytes"] <= 8 << 30


@pytest.mark.slow
def test_the_commands_of_the_page_on_several_machines_work(labs: Callable[..., Lab]) -> None:
    page = (killing.ROOT / "docs/howto/several-machines.md").read_text()
    commands = re.findall(r"^\$ scheduler (.*)$", page, re.MULTILINE)
    assert len(commands) >= 3
    lab = labs("gpu1", "gpu2")
    lab.once(4)
    for name in ("train.py", "evaluate.py"):
        (lab.root / name).write_text("print('done')")
    for command in commands:
        if command.startswith("submit") and not (lab.state / "queues").exists():
            lab.check_once(4)
        lab.call(*command.split(), code=0)
    wait_until(lambda: lab.states("queue") == ["succeeded"] * 3, 10)
    assert lab.tasks("queue")[1]["node"] == "gpu2"


@fault(193)
def test_tasks_of_a_machine_that_restarts_begin_again_and_are_not_blamed(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    lab.once(2, 60)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", code=None) as run:
        for number in range(1, 5):
            wait_until(lambda wanted=2 * number: len(lab.told("begin")) >= wanted, 30)
            if number < 4:  # three in a row would fail a task that lost its shims
                wait_until(lambda: len(lab.nodes["n1"].processes("once.sh")) >= 2, 10)
                lab.nodes["n1"].power_off()
                lab.nodes["n1"].boot()
                lab.nodes["n1"].wait()
        run.send_signal(signal.SIGTERM)
    assert {row["state"] for row in lab.tasks()} == {"interrupted"}
    assert "restarted" in lab.log()


def test_other_users_leases_on_a_node_hold_for_a_run_of_the_head(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", gpus=1)
    node = lab.nodes["n1"]
    command = f"{sys.executable} -S -E {TRAIN} --peak 14GiB --seconds 3"
    lab.write("jobs.csv", "Command,Memory", [command, "15GiB"])
    (lab.root / "local.csv").write_text(f"Command,Memory\n{command},15GiB\n")
    with node.start("run", "local.csv", "--plain", cwd=lab.root) as local:
        wait_until(lambda: node.processes("train.py"), 20)
        lab.call("run", "jobs.csv", *lab.on, "--plain", code=0)
        assert local.wait(30) == 0
    assert node.box.ooms(0) == 0


@fault(193)
def test_the_tasks_of_a_node_that_is_given_up_start_again_on_the_others(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(6, 1.5)
    assert "none of your unfinished runs" in lab.call("devices", "give-up", "n1", code=2).stderr
    with lab.going("run", "jobs.csv", *lab.on, "--plain"):
        wait_until(lambda: {"n1", "n2"} <= {line.split()[1] for line in lab.told("begin")}, 10)
        assert "n1 answers" in lab.call("devices", "give-up", "n1", code=1).stdout
        lab.nodes["n1"].power_off()
        wait_until(lambda: "n1 is away" in lab.log(), 6)
        assert "2 tasks of it start again" in lab.call("devices", "give-up", "n1", code=0).stdout
    assert [row["state"] for row in lab.tasks()] == ["succeeded"] * 6
    assert {line.split()[1] for line in lab.told("end")} == {"n2"}


@fault(194)
def test_a_node_that_is_cut_off_for_longer_than_its_fence_ends_its_tasks_before_they_start_elsewhere(
    labs: Callable[..., Lab],
) -> None:
    lab = labs("n1", "n2")
    lab.once(4, 8)
    node = lab.nodes["n1"]
    with lab.going("run", "jobs.csv", *lab.on, "--node-fence", "5s", "--grace", "1s", "--plain"):
        wait_until(lambda: len(lab.told("begin")) == 4, 20)
        (agent,) = node.agents()
        assert node.processes("once.sh")
        node.cut()
        killing.kill(agent)  # the fence holds without it
        cut = time.monotonic()
        wait_until(lambda: not node.processes("once.sh"), 12)
        assert time.monotonic() - cut >= 2
        assert len(lab.told("begin")) == 4
        wait_until(lambda: "start again on the other nodes" in lab.log(), 15)
        wait_until(lambda: len(lab.told("begin")) == 6, 20)
        node.mend()
    assert not lab.told("twice")
    assert [row["state"] for row in lab.tasks()] == ["succeeded"] * 4
    assert {line.split()[1] for line in lab.told("end")} == {"n2"}


@fault(194)
def test_tasks_that_a_fence_has_ended_start_again_once_their_node_answers_and_are_not_blamed(
    labs: Callable[..., Lab],
) -> None:
    lab = labs("n1")
    lab.once(1, 7)
    with lab.going("run", "jobs.csv", *lab.on, "--node-fence", "5s", "--grace", "1s", "--plain"):
        wait_until(lambda: lab.told("begin"), 20)
        lab.nodes["n1"].cut()  # a frozen machine takes no new link
        lab.nodes["n1"].freeze()
        time.sleep(6.5)
        lab.nodes["n1"].freeze(thaw=True)
        time.sleep(0.5)
        lab.nodes["n1"].mend()
    assert lab.told("begin") == ["0 n1", "0 n1"]
    assert lab.told("end") == ["0 n1"]
    assert not lab.told("twice")
    (row,) = lab.tasks()
    assert row["state"] == "succeeded"


@fault(194)
def test_tasks_end_behind_a_fence_when_their_scheduler_is_dead_for_longer_and_resume_starts_them_again(
    labs: Callable[..., Lab],
) -> None:
    lab = labs("n1")
    lab.once(2, 7)
    with lab.going("run", "jobs.csv", *lab.on, "--node-fence", "5s", "--grace", "1s", "--plain", code=None):
        wait_until(lambda: len(lab.told("begin")) == 2, 20)
        killing.kill(lab.scheduler())
    wait_until(lambda: not lab.nodes["n1"].processes("once.sh"), 12)
    assert not lab.told("end")
    lab.call("resume", "--plain", code=0)
    assert not lab.told("twice")
    assert len(lab.told("begin")) == 4
    assert len(lab.told("end")) == 2
    assert [row["state"] for row in lab.tasks()] == ["succeeded"] * 2


@fault(195)
def test_a_scheduler_whose_run_was_taken_over_on_another_machine_is_not_obeyed_any_more(
    labs: Callable[..., Lab],
) -> None:
    lab = labs("n1", "n2")
    lab.once(8, 5)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", "--max-per-device", "1", code=None):
        wait_until(lambda: len(lab.told("begin")) == 4, 20)
        old, log = lab.scheduler(), lab.state / "runs/1/run.log"
        killing.kill(old, signal.SIGSTOP)
        lab.move_head()
        with lab.going("resume", "r1", "--takeover", "--plain"):
            wait_until(lambda: [node.epoch() for node in lab.nodes.values()] == [1, 1], 20)
            killing.kill(old, signal.SIGCONT)
            wait_until(lambda: "taken over by another scheduler" in log.read_text(), 15)
            time.sleep(2.5)
            assert [node.epoch() for node in lab.nodes.values()] == [1, 1]
            killing.kill(old)
    lab.check_once(8)


def test_doctor_says_of_each_node_whether_it_can_be_used(labs: Callable[..., Lab]) -> None:
    lab = labs("n1")
    said = lab.call("doctor", "--on", "ssh:n1,nowhere", code=1).stdout
    assert re.search(r"ok +n1 +2 GPUs \(NVIDIA Stand-in 24GB\), .* RAM, host n1", said)
    assert re.search(r"!! +nowhere +ssh: Could not resolve hostname nowhere", said)
    assert "a run would use 1 of the 2 machines that --on names" in said
    assert "runs use this machine alone" in lab.call("doctor").stdout


def test_a_machine_that_was_away_at_the_start_joins_the_run_when_it_answers(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    lab.once(10, 1.0)
    lab.nodes["n2"].cut()
    with lab.going("run", "jobs.csv", *lab.on, "--plain"):
        wait_until(lambda: lab.told("begin"), 20)
        lab.nodes["n2"].mend()
        wait_until(lambda: "n2 has answered and joined the run" in lab.log(), 10)
    lab.check_once(10)
    assert {line.split()[1] for line in lab.told("begin")} == {"n1", "n2"}


def test_a_running_task_on_a_node_is_cancelled_and_a_waiting_one_held_from_the_head(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", gpus=1)
    lab.once(3, 60)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", "--max-per-device", "1", code=None) as run:
        wait_until(lambda: lab.told("begin"), 20)
        lab.call("hold", "1", code=0)
        lab.call("cancel", "0", code=0)
        wait_until(lambda: len(lab.told("begin")) == 2, 20)
        assert not [line for line in lab.told("begin") if line.startswith("1 ")]
        run.send_signal(signal.SIGTERM)
    assert [row["state"] for row in lab.tasks()] == ["cancelled", "held", "interrupted"]


def test_a_row_says_on_which_node_and_device_its_task_runs(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    rows = [["n2", "", ""], ["n2", "", "0"], ["", "n1:1", ""], ["", "n2:", "0"], ["n1,n2", "n1:0", ""]]
    lab.write("jobs.csv", "Command,Node,Device,GPUs", *(["sleep 0.5", *row] for row in rows))
    (lab.nodes["n2"].folder / "machine.toml").write_text('features = "big, nvlink"\n')
    ended = lab.call("run", "jobs.csv", *lab.on, "--plain", code=0)
    said = ended.stdout + ended.stderr
    assert re.search(r"n1 +GPUs 0-1 \(2 x 24\.0GiB\), [\d.]+GiB RAM, [\d.]+ cores?.*\n.*n2 +GPUs 0-1 \(", said)
    found = lab.tasks()
    assert [row["node"] for row in found] == ["n2", "n2", "n1", "n2", "n1"]
    assert [row["device"] for row in found[1:]] == ["n2 host", "n1 GPU 1", "n2 host", "n1 GPU 0"]
    csv = lab.call("results", "--csv", code=0).stdout.splitlines()
    assert csv[1].split(",")[csv[0].split(",").index("node")] == "n2"
    for row, column, why in (
        (["n9", "", ""], "Node", "names the node 'n9'; this run has n1, n2"),
        (["", "n1:7", ""], "Device", "there is no device 'n1:7' in this run"),
        (["n2", "n1:1", ""], "Device", "the device 'n1:1' is not on n2"),
        (["n2", "", "3"], "GPUs", "needs 3 GPUs on one node; the most on one node of n2 is 2"),
    ):
        lab.write("bad.csv", "Command,Node,Device,GPUs", ["true", "", "", ""], ["true", *row])
        said = lab.call("run", "bad.csv", *lab.on, "--plain", code=2).stderr
        assert f"bad.csv, row 3, column {column}: {why}" in said
    lab.write("features.csv", "Command,Features,GPUs", ["true", "nvlink", ""], ["true", "nvlink,big", "0"])
    lab.call("run", "features.csv", *lab.on, "--plain", code=0)
    assert [row["node"] for row in lab.tasks()] == ["n2", "n2"]
    lab.write("bad.csv", "Command,Features", ["true", "h100"])
    said = lab.call("run", "bad.csv", *lab.on, code=2).stderr
    assert "bad.csv, row 2, column Features: asks for 'h100', which no node has; they have big, nvlink" in said
    said = lab.call("run", "jobs.csv", "--plain", code=2).stderr
    assert "jobs.csv, row 2, column Node: names the node 'n2'; this run has this machine only" in said


def test_dependencies_metrics_and_early_stop_work_on_nodes(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2")
    (lab.root / "prep.sh").write_text('echo \'{"path": "/data"}\' >"$SCHEDULER_RESULT"')
    epochs = 'for i in 1 2 3 4 5 6; do echo "{\\"step\\": $i, \\"loss\\": $1.$i}"; sleep 0.3; done'
    (lab.root / "train.sh").write_text(f'{epochs} >>"$SCHEDULER_RESULT"')
    rows = (
        ["prep", "sh prep.sh", "", "n1"], ["good", "sh train.sh 1 {prep.result.path}", "prep", "n2"],
        ["bad", "sh train.sh 3 {prep.result.path}", "prep", "n1"], ["never", "true", "bad", ""],
        ["broken", "false", "prep", ""], ["skipped", "true", "broken", ""],
    )  # fmt: skip
    lab.write("jobs.csv", "Name,Command,After,Node", *rows)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", "--stop-when", "loss > 2 after 2", code=None):
        shown = ("list", "r1", "-c", "state,loss")  # the curve of a task that runs, from its result at the node
        wait_until(lambda: re.search(r"running +1\.[1-5]", lab.call(*shown).stdout), 20)
    states = {row["name"]: row["state"] for row in lab.tasks()}
    assert states.pop("never") in ("skipped", "succeeded")
    assert states == {
        "prep": "succeeded", "good": "succeeded", "bad": "pruned", "broken": "failed", "skipped": "skipped",
    }  # fmt: skip
    assert {row["name"]: row.get("result.loss") for row in lab.tasks()}["good"] == 1.6


def test_views_in_another_terminal_show_the_nodes_of_a_run(labs: Callable[..., Lab]) -> None:
    lab = labs("n1", "n2", gpus=1)
    rows = (["sleep 60", "2GiB", "1GiB", "n1"], ["sleep 60", "3GiB", "1GiB", "n2"])
    lab.write("jobs.csv", "Command,Memory,HostMemory,Node", *rows)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", code=None) as run:
        wait_until(lambda: lab.root.joinpath("said").read_text().count("GPU 0") >= 2, 20)
        wait_until(lambda: lab.call("status", "--nodes").stdout.count(" up ") == 2, 10)
        nodes = json.loads(lab.call("status", "--nodes", "--json", code=0).stdout)["nodes"]
        assert [(one["node"], one["away"], one["gpus"], one["tasks"]) for one in nodes] == [
            ("n1", "", 1, [0]), ("n2", "", 1, [1]),
        ]  # fmt: skip
        assert [one["gpu_memory"]["reserved"] >> 30 for one in nodes] == [2, 3]
        shown = json.loads(lab.call("top", "--json", code=0).stdout)
        assert {bar["label"]: bar["tasks"] for bar in shown["bars"] if "GPU" in bar["label"]} == {
            "n1 GPU 0": 1, "n2 GPU 0": 1,
        }  # fmt: skip
        assert sorted(one["devices"] for one in shown["living"]) == [["n1 GPU 0"], ["n2 GPU 0"]]
        assert all(bar["reserved"] for bar in shown["bars"] if "host" in bar["label"])
        run.send_signal(signal.SIGTERM)
    assert [row["node"] for row in lab.tasks()] == ["n1", "n2"]
    listed = [line.split("  ")[0] for line in lab.call("list", "r1", code=0).stdout.splitlines()]
    assert [line.strip() for line in listed[2:]] == ["id", "n1: 1 interrupted", "0", "n2: 1 interrupted", "1"]
    lab.call("report", "-o", "report.html", code=0)
    report = (lab.root / "report.html").read_text()
    assert '"label": "n2 GPU 0", "node": "n2"' in report or '"label":"n2 GPU 0","node":"n2"' in report
