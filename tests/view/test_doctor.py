"""The page of `doctor`, from made-up findings: what each line says, its cure, and how it looks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.units import GIB, MIB
from scheduler.view import doctor
from scheduler.view.about_gpus import gpu_findings, mps_findings
from scheduler.view.about_host import (
    host_findings,
    house_findings,
    lease_findings,
    python_findings,
    settings_findings,
    state_findings,
    surroundings_findings,
)
from scheduler.view.examined import (
    Examined,
    Failed,
    Foreigner,
    Gpu,
    Gpus,
    Host,
    House,
    Leases,
    Limit,
    Limited,
    Mps,
    MpsDaemon,
    Program,
    Promises,
    Setting,
    SettingsFound,
    State,
    Surroundings,
    TaskPython,
)
from scheduler.view.findings import Finding, Mark
from tests.faults import fault

GPU = Gpu(
    0,
    "GPU-01234567-89ab",
    "NVIDIA A100-SXM4-40GB",
    40 * GIB,
    39 * GIB,
    compute_mode="default",
    reads="process",
    allowed=True,
    accounting=True,
)
GPUS = Gpus(
    driver="555.1",
    cuda="12.5",
    module="nvidia-ml-py 13",
    module_trouble="",
    module_cure="",
    why="",
    cure="",
    broken=False,
    gpus=(GPU, replace(GPU, index=1, uuid="GPU-11111111-2222")),
    allowed_by="",
    refused="",
    notes=(),
    cuda_numbers={0: 0, 1: 1},
    by_bus=True,
    told="uuid",
    first_namespace=True,
    policy="headroom",
    calm=120.0,
)
HOST = Host(
    memory=Limited(64 * GIB, "RAM"),
    ram=64 * GIB,
    free=60 * GIB,
    cores=Limited(8, "all cores"),
    all_cores=8,
    cgroups="v2",
    swap=0,
    counts_kills=True,
    kills=0,
    shared=32 * GIB,
    shared_free=32 * GIB,
)
PLACE = Surroundings(
    container="",
    sign="",
    first_namespace=True,
    wsl=False,
    user="ben",
    unit="",
    is_session=False,
    kills=False,
    kills_by="",
    lingers=False,
    ends_us=False,
    limits=(Limit("open files", "ulimit -n", 4096, 4096),),
)
PYTHON = TaskPython("/env/bin/python", "", True, "/env", "virtual environment", True)
STATE = State("/home/ben/state", True, "ext4", False, "", 90 * GIB, "", 3)
LEASES = Leases("/run/leases", True, "1777", "root", "", "", False, False, (), ())
HOUSE = House("/etc/machine.toml", there=False)
MPS = Mps("", (), {})
EXAMINED = Examined(
    hostname="gpu1",
    program=Program("0.1.0", "/opt/scheduler", "/env/bin/python", "3.12.1"),
    gpus=GPUS,
    mps=MPS,
    host=HOST,
    surroundings=PLACE,
    python=PYTHON,
    state=STATE,
    leases=LEASES,
    house=HOUSE,
    settings=SettingsFound((Setting("num", 20, "", "default"),)),
)


def said(findings: Any) -> list[str]:
    return [f"{one.mark} {one.what}: {one.says} {one.note}".strip() for one in findings]


def line(what: str, findings: Any) -> Finding:
    """The only line of that name."""
    (found,) = (one for one in findings if one.what == what)
    assert isinstance(found, Finding)
    return found


def gpus(**changes: Any) -> list[Finding]:
    return list(gpu_findings(replace(GPUS, **changes)))


def with_gpu(**changes: Any) -> list[Finding]:
    """Two GPUs, of which the second is as said."""
    return gpus(gpus=(GPU, replace(GPU, index=1, **changes)))


class TestDriver:
    def test_none_is_nothing_wrong(self) -> None:
        assert said(gpus(gpus=(), why="there is no driver")) == [
            "-- driver: there is no driver: runs use the host's RAM"
        ]

    def test_a_broken_one_stops_runs(self) -> None:
        found = line("driver", gpus(gpus=(), why="it hangs", cure="a reboot", broken=True))
        assert (found.mark, found.broken, found.stops) == (Mark.WRONG, True, True)
        assert found.cure == "a reboot; or run on the host's RAM alone: --devices host"

    def test_a_missing_module_is_told_once(self) -> None:
        missing = {"module_trouble": "pynvml is missing", "module_cure": "pip install nvidia-ml-py"}
        found = gpus(gpus=(), why="pynvml is missing", **missing)
        assert said(found) == ["-- driver: nobody looked: pynvml is missing; runs use the host's RAM"]
        assert found[0].cure == "pip install nvidia-ml-py"

    def test_a_foreign_module_needs_attention(self) -> None:
        found = line("pynvml", gpus(module_trouble="a package hides it", module_cure="pip uninstall pynvml"))
        assert (found.mark, found.cure, found.broken) == (Mark.WRONG, "pip uninstall pynvml", False)


class TestEachGpu:
    def test_in_columns(self) -> None:
        one, two = (one for one in with_gpu(model="RTX 3090", total=24 * GIB) if one.what.startswith("GPU"))
        assert one.says == "A100-SXM4-40GB  40.0GiB  39.0GiB free  GPU-01234567"
        assert two.says == "RTX 3090        24.0GiB  39.0GiB free  GPU-01234567"

    @pytest.mark.parametrize(
        ("changes", "note", "cure"),
        [
            ({"mig": True}, "divided by MIG: left out", "nvidia-smi -i 1 -mig 0 as root makes it whole"),
            ({"compute_mode": "prohibited"}, "compute mode prohibited", "nvidia-smi -i 1 -c DEFAULT as root opens it"),
        ],
    )
    def test_what_is_closed_is_opened_by(self, changes: Any, note: str, cure: str) -> None:
        found = line("GPU 1", with_gpu(free=None, **changes))
        assert (found.mark, found.note, found.cure, found.broken) == (Mark.WRONG, note, cure, False)

    def test_an_erring_one_is_to_be_repaired_but_stops_nobody(self) -> None:
        found = line("GPU 1", with_gpu(trouble="is lost", cure="a reboot", free=None))
        assert (found.note, found.cure, found.broken, found.stops) == ("is lost", "a reboot", True, False)

    def test_one_for_others(self) -> None:
        found = gpus(gpus=(GPU, replace(GPU, index=1, allowed=False, free=None)), allowed_by="SLURM_JOB_GPUS")
        assert line("GPU 1", found).note == "not for this shell"
        assert line("allowed", found).says == "GPU 0 of 2, by SLURM_JOB_GPUS"

    def test_of_which_one_process_at_a_time_may_use_it(self) -> None:
        found = with_gpu(compute_mode="exclusive process")
        assert line("GPU 1", found).note == "one task at a time"
        assert line("compute mode", found).says == "default on GPU 0, exclusive process on GPU 1"


class TestAllowed:
    def test_none_at_all(self) -> None:
        found = gpus(gpus=(replace(GPU, allowed=False, reads=""),), allowed_by="CUDA_VISIBLE_DEVICES")
        assert line("allowed", found).says == "none, by CUDA_VISIBLE_DEVICES: runs use the host's RAM"

    def test_nobody_can_tell(self) -> None:
        found = line("allowed", gpus(refused="V=0 could be any: set V=PCI or more"))
        assert (found.says, found.cure, found.stops) == ("V=0 could be any", "set V=PCI or more", True)

    def test_only_closed_ones(self) -> None:
        found = gpus(gpus=(replace(GPU, compute_mode="prohibited", free=None, reads=""),))
        assert line("allowed", found).stops

    def test_what_was_left_out(self) -> None:
        marks = [one.mark for one in gpus(notes=("V=0,9 ends before 9",)) if one.what == "allowed"]
        assert marks == [Mark.OK, Mark.WRONG]


class TestOrder:
    def test_the_same_is_not_worth_a_line(self) -> None:
        assert "CUDA's order" not in {one.what for one in gpus()}

    def test_another_by_bus(self) -> None:
        found = line("CUDA's order", gpus(cuda_numbers={0: 1, 1: 0}))
        assert found.says.startswith(
            "not that of nvidia-smi (by PCI bus its 0 is GPU 1, 1 is GPU 0): tasks are told UUIDs"
        )

    def test_perhaps_another(self) -> None:
        found = line("CUDA's order", gpus(by_bus=False, told="index"))
        assert found.says.startswith("may not be that of nvidia-smi")
        assert found.says.endswith("tasks are told CUDA's numbers (--visible index)")


class TestWhoHoldsThem:
    def test_nobody(self) -> None:
        assert line("others", gpus()).says == "nobody without a promise holds memory there"
        assert line("memory seen", gpus()).says == "by process, as far as it shows while nobody uses them"

    def test_users_and_what_is_kept_for_them(self) -> None:
        two = (Foreigner("ann", 6 * GIB, 600.0), Foreigner("", GIB, 900.0))
        found = line("others", with_gpu(foreign=two, kept=2 * GIB))
        assert found.says == "GPU 1: 6.0GiB by ann, 1.0GiB by somebody who cannot be seen, 2.0GiB more kept for that"
        assert line("memory seen", with_gpu(foreign=two)).says == "by process"

    @pytest.mark.parametrize(
        ("policy", "kept", "end"),
        [
            ("headroom", 2 * GIB, "2.0GiB more kept for that; a run starts nothing beside it for 1m40s"),
            ("avoid", 2 * GIB, "; left alone (--foreign avoid)"),
            ("ignore", 0, " (--foreign ignore)"),
            ("headroom", 0, "100MiB by ann"),
        ],
    )
    def test_manners(self, policy: str, kept: int, end: str) -> None:
        one = replace(GPU, foreign=(Foreigner("ann", 100 * MIB, 20.0),), kept=kept)
        assert line("others", gpus(gpus=(one,), policy=policy)).says.endswith(end)

    def test_by_device_alone(self) -> None:
        found = line("memory seen", with_gpu(reads="device"))
        assert found.says.startswith("only by device on GPU 1 (the driver does not tell what each process holds)")
        assert (found.mark, found.cure) == (Mark.ABSENT, "")

    def test_in_a_container_that_has_a_cure(self) -> None:
        found = line("memory seen", gpus(gpus=(replace(GPU, reads="device"),), first_namespace=False))
        assert found.cure == "start the container with --pid=host"

    def test_accounting_on_some(self) -> None:
        found = line("accounting", with_gpu(accounting=False))
        assert found.mark == Mark.ABSENT
        assert found.says == "off on GPU 1: peaks are polled for, short ones can be missed"
        assert found.cure.startswith("nvidia-smi -i 1 -am 1 as root")


class TestMps:
    def test_is_not_used(self) -> None:
        assert said(mps_findings(MPS)) == [
            "-- MPS: cannot be used: tasks share a GPU in turns (nvidia-cuda-mps-control is not on PATH)"
        ]

    def test_a_daemon_that_tasks_join_needs_attention(self) -> None:
        use, found = mps_findings(replace(MPS, daemons=(MpsDaemon("/tmp/nvidia-mps", 7, "ben", True),)))
        assert "in turns" not in use.says
        assert found.says.startswith("a daemon of ben runs in /tmp/nvidia-mps (process 7): tasks find it there")
        assert found.mark == Mark.WRONG

    def test_what_a_killed_run_left_is_to_be_cleaned(self) -> None:
        _, left = mps_findings(replace(MPS, left=("/run/mps.0.a",)))
        assert (left.mark, left.cure) == (Mark.WRONG, "scheduler doctor --clean")
        assert left.says == "a daemon that nobody uses any more is left in /run/mps.0.a"

    def test_one_that_only_the_shell_knows_does_not(self) -> None:
        daemons = (MpsDaemon("/my/mps", 7, "ben", False),)
        mps = Mps("/bin/nvidia-cuda-mps-control", daemons, {"CUDA_MPS_PIPE_DIRECTORY": "/my/mps"})
        assert said(mps_findings(mps))[1:] == [
            "ok MPS: a daemon of ben runs in /my/mps (process 7): tasks do not join it, unless with --mps=join",
            "ok MPS: taken from tasks: CUDA_MPS_PIPE_DIRECTORY=/my/mps",
        ]


class TestHost:
    def test_what_limits_it(self) -> None:
        limited = replace(HOST, memory=Limited(8 * GIB, "cgroup /a"), cores=Limited(2.5, "cpu quota of cgroup /a"))
        assert line("memory", host_findings(limited)).says == "8.0GiB of 64.0GiB (limited by cgroup /a), 60.0GiB free"
        assert line("cores", host_findings(limited)).says == "2.5 of 8 (limited by cpu quota of cgroup /a)"

    @pytest.mark.parametrize(("size", "mark"), [(64 * MIB, Mark.WRONG), (None, Mark.WRONG), (8 * GIB, Mark.OK)])
    def test_little_shared_memory(self, size: int | None, mark: Mark) -> None:
        found = line("/dev/shm", host_findings(replace(HOST, shared=size)))
        assert found.mark == mark
        assert ("--shm-size" in found.cure) == (mark is Mark.WRONG)

    def test_swap_and_uncounted_kills(self) -> None:
        found = list(host_findings(replace(HOST, swap=GIB, counts_kills=False)))
        assert line("swap", found).says == "1.0GiB, not counted: promises are of RAM alone"
        assert line("kernel kills", found).mark == Mark.ABSENT


class TestSurroundings:
    def test_a_container(self) -> None:
        inside = replace(PLACE, container="Docker", sign="/.dockerenv", first_namespace=False, wsl=True)
        found = list(surroundings_findings(inside))
        assert line("container", found).says == "Docker, by /.dockerenv; with pids of its own"
        assert line("WSL", found).mark == Mark.OK

    def test_logging_out_ends_a_session(self) -> None:
        session = {"unit": "session-3.scope", "is_session": True, "kills_by": "/etc/systemd/logind.conf"}
        killed = line("logging out", surroundings_findings(replace(PLACE, kills=True, ends_us=True, **session)))
        assert killed.mark == Mark.WRONG
        assert killed.cure.startswith("loginctl enable-linger, then start it beside the session: systemd-run --user")
        left = line("logging out", surroundings_findings(replace(PLACE, **session)))
        assert left.mark == Mark.OK

    def test_logging_out_ends_the_users_services(self) -> None:
        manager = replace(PLACE, unit="user@1000.service", ends_us=True)
        assert line("logging out", surroundings_findings(manager)).cure == "loginctl enable-linger"
        lingers = line("logging out", surroundings_findings(replace(manager, ends_us=False, lingers=True)))
        assert lingers.says == "leaves running what is started here (user@1000.service; ben lingers)"

    @pytest.mark.parametrize(
        ("limit", "cure"),
        [
            (Limit("open files", "ulimit -n", 256, None), "ulimit -n 4096, before the scheduler is started"),
            (Limit("open files", "ulimit -n", 256, 1000), "ulimit -n 1000, before the scheduler is started"),
            (Limit("open files", "ulimit -n", 256, 256), "an administrator raises it: /etc/security/limits.conf, or"),
            (Limit("processes", "pids.max of the cgroup /a", 100, 100, 9), "whoever set pids.max of the cgroup /a"),
            (Limit("address space", "ulimit -v", GIB, None), "ulimit -v unlimited, before the scheduler is started"),
        ],
    )
    def test_a_limit_that_hurts(self, limit: Limit, cure: str) -> None:
        found = line(limit.name, surroundings_findings(replace(PLACE, limits=(limit,))))
        assert found.mark == Mark.WRONG
        assert found.cure.startswith(cure)

    def test_one_that_does_not(self) -> None:
        unlimited = replace(PLACE, limits=(Limit("data", "ulimit -d", None, None),))
        assert "data" not in {one.what for one in surroundings_findings(unlimited)}


class TestPython:
    def test_of_the_active_environment(self) -> None:
        (found,) = python_findings(PYTHON)
        assert found.says == "/env/bin/python (it runs the scheduler; the active virtual environment /env)"

    def test_not_of_the_active_environment(self) -> None:
        (found,) = python_findings(replace(PYTHON, path="/usr/bin/python", inside=False))
        assert (found.mark, found.cure) == (Mark.WRONG, "--python /env/bin/python, or SCHEDULER_PYTHON")

    def test_on_purpose(self) -> None:
        (found,) = python_findings(replace(PYTHON, path="/usr/bin/python", inside=False, said_by="environment"))
        assert (found.mark, found.says) == (Mark.OK, "/usr/bin/python (SCHEDULER_PYTHON)")

    def test_that_is_not_there(self) -> None:
        (found,) = python_findings(replace(PYTHON, runs=False))
        assert (found.broken, found.stops) == (True, False)


class TestFiles:
    @pytest.mark.parametrize(
        ("changes", "part"),
        [
            ({"file_system": "nfs4", "network": True}, "network file system"),
            ({"file_system": "tmpfs"}, "a reboot takes every run away"),
            ({"free": MIB}, "no room"),
        ],
    )
    def test_a_state_directory_in_a_bad_place(self, changes: Any, part: str) -> None:
        (found,) = state_findings(replace(STATE, **changes))
        assert found.mark == Mark.WRONG
        assert part in found.says
        assert "--state DIR" in found.cure

    def test_one_that_is_kept_elsewhere_says_why(self) -> None:
        usual, why = state_findings(replace(STATE, why="state is kept in /var/tmp"))
        assert (usual.mark, why.says) == (Mark.OK, "state is kept in /var/tmp")

    def test_one_that_cannot_be_written(self) -> None:
        (found,) = state_findings(replace(STATE, trouble="cannot be written: disk quota exceeded"))
        assert found.stops

    def test_leases_that_a_stranger_could_take_away(self) -> None:
        found = line("leases", lease_findings(replace(LEASES, strangers=True, owner="ann"), str))
        assert found.mark == Mark.WRONG
        assert "scheduler devices init" in found.cure

    def test_promises_by_user(self) -> None:
        promises = (Promises("ann", 2, {"GPU-0": 8 * GIB, "host": GIB}),)
        found = line(
            "promises", lease_findings(replace(LEASES, promises=promises), {"GPU-0": "GPU 0", "host": "host"}.get)
        )
        assert found.says == "ann: 2 tasks, 8.0GiB of GPU 0, 1.0GiB of host"


class TestMachineFile:
    def test_there_is_none(self) -> None:
        (found,) = house_findings(HOUSE)
        assert found.mark == Mark.OK
        assert "no caps" in found.says

    def test_what_holds_for_this_user_and_who_says_so(self) -> None:
        house = replace(
            HOUSE,
            there=True,
            devices="0-3",
            caps={"gpus": 2, "memory": 40 * GIB, "host_memory": None, "tasks": 8},
            caps_by="[caps.users.ben] in /etc/machine.toml",
            may={"reserve": "root, ben"},
            may_i=("reserve",),
        )
        held = "2 GPUs, 40.0GiB of GPU memory, 8 tasks"
        assert said(house_findings(house)) == [
            "ok machine: /etc/machine.toml offers the GPUs 0-3",
            f"ok caps: you may hold {held} at a time ([caps.users.ben] in /etc/machine.toml)",
            "ok reserve: root, ben, you too",
        ]

    def test_one_that_does_not_count_stops_no_run(self) -> None:
        (found,) = house_findings(
            replace(HOUSE, there=True, trouble="it is not root's, so it is ignored", cure="chown")
        )
        assert (found.mark, found.stops, found.cure) == (Mark.WRONG, False, "chown")

    def test_one_that_makes_no_sense_does(self) -> None:
        (found,) = house_findings(replace(HOUSE, there=True, trouble="nobody knows 'gpu'", cure="mend it", stops=True))
        assert found.stops

    def test_names_that_nobody_has(self) -> None:
        *_, found = house_findings(replace(HOUSE, there=True, unknown=("bne",)))
        assert "bne" in found.says


class TestSettings:
    def test_each_that_is_no_default_with_its_source(self) -> None:
        found = SettingsFound(
            (
                Setting("num", 20, "", "default"),
                Setting("buffer", GIB, "bytes", "environment"),
                Setting("settle", 90.0, "seconds", "~/.config/x.toml"),
                Setting("margin", (0.1, 256 * MIB), "", "flag"),
            )
        )
        assert said(settings_findings(found)) == [
            "ok buffer: 1.0GiB (SCHEDULER_BUFFER)",
            "ok settle: 1m30s (~/.config/x.toml)",
            "ok margin: 10% + 256MiB (flag)",
            "ok defaults: num 20",
        ]

    @pytest.mark.parametrize(
        ("value", "text"), [((0.02, GIB), "1.0GiB,2%"), ((0.0, GIB), "1.0GiB"), ((0.05, 0), "5%"), ((0.0, 0), "off")]
    )
    def test_a_disks_least_is_told_as_it_is_written(self, value: tuple[float, int], text: str) -> None:
        found = SettingsFound((Setting("disk_min", value, "", "flag"),))
        assert said(settings_findings(found))[0] == f"ok disk_min: {text} (flag)"

    def test_a_bad_one_stops_runs(self) -> None:
        (found,) = settings_findings(SettingsFound((), "num: 'x' is no number"))
        assert found.stops


class TestPage:
    def test_all_is_well(self) -> None:
        page = doctor.page(EXAMINED)
        assert page.exit_code == 0
        assert page.summary == "nothing is wrong; a run would use GPU 0-1 and 64.0GiB of RAM"

    def test_the_summary_names_what_is_wrong(self) -> None:
        one = replace(GPUS, gpus=(GPU, replace(GPU, index=1, trouble="is lost", cure="a reboot")))
        page = doctor.page(replace(EXAMINED, gpus=one, host=replace(HOST, shared=MIB)))
        assert page.exit_code == 1
        assert page.summary == "to repair: GPU 1; to look at: /dev/shm; a run would use GPU 0 and 64.0GiB of RAM"

    @pytest.mark.parametrize(
        "part", ["program", "gpus", "mps", "host", "surroundings", "python", "state", "leases", "settings"]
    )
    def test_a_part_that_fails_takes_no_other_away(self, part: str) -> None:
        whole = doctor.page(EXAMINED)
        page = doctor.page(replace(EXAMINED, **{part: Failed("KeyError: 7", "Traceback ...")}))
        (found,) = (one for one in page.findings if one.broken)
        assert found.says == "cannot be looked at (KeyError: 7)"
        assert found.cure
        assert {group.title for group in page.groups} == {group.title for group in whole.groups}
        assert len(page.findings) > len(whole.findings) // 2

    @pytest.mark.parametrize("width", [60, 80, 100])
    def test_every_line_fits(self, width: int) -> None:
        long = replace(GPUS, why="word " * 60, cure="another " * 40, gpus=(), broken=True)
        for found in (EXAMINED, replace(EXAMINED, gpus=long)):
            lines = list(doctor.lines(doctor.page(found), width))
            assert max(map(len, lines)) <= width
            assert all(text == text.rstrip() for text in lines)

    def test_a_note_stands_beside_what_it_says_or_below_it(self) -> None:
        one = replace(GPUS, gpus=(replace(GPU, allowed=False),), allowed_by="V")
        wide, narrow = (list(doctor.lines(doctor.page(replace(EXAMINED, gpus=one)), width)) for width in (100, 80))
        row = "  --  GPU 0          A100-SXM4-40GB  40.0GiB  39.0GiB free  GPU-01234567"
        assert f"{row}  not for this shell" in wide
        assert narrow[narrow.index(row) + 1] == " " * 21 + "not for this shell"

    @fault(68)
    def test_what_others_wrote_cannot_steer_the_terminal(self) -> None:
        evil = replace(LEASES, promises=(Promises("ann\x1b[2J", 1, {}),))
        assert "\x1b" not in "".join(doctor.lines(doctor.page(replace(EXAMINED, leases=evil)), 100))
