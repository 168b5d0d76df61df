"""The page of `doctor`, from invented facts: the text of each line, its cure, and the layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.ui.doctor import page as doctor_page
from scheduler.ui.doctor.gpus import gpu_findings, mps_findings
from scheduler.ui.doctor.host import (
    environment_findings,
    host_findings,
    lease_findings,
    python_findings,
    settings_findings,
    site_findings,
    state_findings,
)
from scheduler.ui.doctor.lines import Finding, LineMark
from scheduler.ui.doctor.report import (
    DoctorReport,
    EnvironmentReport,
    GpuReport,
    GpusReport,
    HostReport,
    LeasesReport,
    LimitReport,
    MpsDaemonReport,
    MpsReport,
    ProbeFailed,
    ProgramReport,
    SettingReport,
    SettingsReport,
    SiteReport,
    StateReport,
    TaskPython,
    UlimitReport,
    UnmanagedUser,
    UserLeases,
)
from scheduler.units import GIB, MIB
from tests.support.faults import fault

GPU = GpuReport(
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
GPUS = GpusReport(
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
HOST = HostReport(
    memory=LimitReport(64 * GIB, "RAM"),
    ram=64 * GIB,
    free=60 * GIB,
    cores=LimitReport(8, "all cores"),
    all_cores=8,
    cgroups="v2",
    swap=0,
    counts_kills=True,
    kills=0,
    shared=32 * GIB,
    shared_free=32 * GIB,
)
PLACE = EnvironmentReport(
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
    limits=(UlimitReport("open files", "ulimit -n", 4096, 4096),),
)
PYTHON = TaskPython("/env/bin/python", "", True, "/env", "virtual environment", True)
STATE = StateReport("/home/ben/state", True, "ext4", False, "", 90 * GIB, "", 3)
LEASES = LeasesReport("/run/leases", True, "1777", "root", "", "", False, False, (), ())
SITE = SiteReport("/etc/machine.toml", there=False)
MPS = MpsReport("", (), {})
REPORT = DoctorReport(
    hostname="gpu1",
    program=ProgramReport("0.1.0", "/opt/scheduler", "/env/bin/python", "3.12.1"),
    gpus=GPUS,
    mps=MPS,
    host=HOST,
    surroundings=PLACE,
    python=PYTHON,
    state=STATE,
    leases=LEASES,
    house=SITE,
    settings=SettingsReport((SettingReport("num", 20, "", "default"),)),
)


def texts(findings: Any) -> list[str]:
    return [f"{one.mark} {one.what}: {one.says} {one.note}".strip() for one in findings]


def line(what: str, findings: Any) -> Finding:
    """Return the only finding of that name."""
    (found,) = (one for one in findings if one.what == what)
    assert isinstance(found, Finding)
    return found


def gpus(**changes: Any) -> list[Finding]:
    return list(gpu_findings(replace(GPUS, **changes)))


def with_gpu(**changes: Any) -> list[Finding]:
    """Return the findings for two GPUs; the changes apply to the second."""
    return gpus(gpus=(GPU, replace(GPU, index=1, **changes)))


class TestDriver:
    def test_absent_driver_is_not_a_problem(self) -> None:
        assert texts(gpus(gpus=(), why="there is no driver")) == ["-- driver: there is no driver: runs use no GPU"]

    def test_broken_driver_stops_runs(self) -> None:
        found = line("driver", gpus(gpus=(), why="it hangs", cure="a reboot", broken=True))
        assert (found.mark, found.broken, found.stops) == (LineMark.WRONG, True, True)
        assert found.cure == "a reboot; or run without GPUs: --devices host"

    def test_missing_pynvml_is_reported_once(self) -> None:
        missing = {"module_trouble": "pynvml is missing", "module_cure": "pip install nvidia-ml-py"}
        found = gpus(gpus=(), why="pynvml is missing", **missing)
        assert texts(found) == ["-- driver: not checked: pynvml is missing; runs use no GPU"]
        assert found[0].cure == "pip install nvidia-ml-py"

    def test_pynvml_of_another_package_needs_attention(self) -> None:
        found = line("pynvml", gpus(module_trouble="a package hides it", module_cure="pip uninstall pynvml"))
        assert (found.mark, found.cure, found.broken) == (LineMark.WRONG, "pip uninstall pynvml", False)


class TestEachGpu:
    def test_gpus_are_shown_in_aligned_columns(self) -> None:
        one, two = (one for one in with_gpu(model="RTX 3090", total=24 * GIB) if one.what.startswith("GPU"))
        assert one.says == "A100-SXM4-40GB  40.0GiB  39.0GiB free  GPU-01234567"
        assert two.says == "RTX 3090        24.0GiB  39.0GiB free  GPU-01234567"

    @pytest.mark.parametrize(
        ("changes", "note", "cure"),
        [
            ({"mig": True}, "MIG is on: not used", "nvidia-smi -i 1 -mig 0 as root turns MIG off"),
            (
                {"compute_mode": "prohibited"},
                "compute mode prohibited: not used",
                "nvidia-smi -i 1 -c DEFAULT as root allows it",
            ),
        ],
    )
    def test_gpu_that_is_not_usable_has_a_cure(self, changes: Any, note: str, cure: str) -> None:
        found = line("GPU 1", with_gpu(free=None, **changes))
        assert (found.mark, found.note, found.cure, found.broken) == (LineMark.WRONG, note, cure, False)

    def test_gpu_with_an_error_has_to_be_repaired_but_stops_no_run(self) -> None:
        found = line("GPU 1", with_gpu(trouble="is lost", cure="a reboot", free=None))
        assert (found.note, found.cure, found.broken, found.stops) == ("is lost", "a reboot", True, False)

    def test_gpu_that_is_not_allowed_is_marked(self) -> None:
        found = gpus(gpus=(GPU, replace(GPU, index=1, allowed=False, free=None)), allowed_by="SLURM_JOB_GPUS")
        assert line("GPU 1", found).note == "not allowed for this shell"
        assert line("allowed", found).says == "GPU 0 of 2, by SLURM_JOB_GPUS"

    def test_gpu_in_exclusive_process_mode_takes_one_task(self) -> None:
        found = with_gpu(compute_mode="exclusive process")
        assert line("GPU 1", found).note == "one task at a time"
        assert line("compute mode", found).says == "default on GPU 0, exclusive process on GPU 1"


class TestAllowed:
    def test_no_allowed_gpu_names_the_variable(self) -> None:
        found = gpus(gpus=(replace(GPU, allowed=False, reads=""),), allowed_by="CUDA_VISIBLE_DEVICES")
        assert line("allowed", found).says == "none, by CUDA_VISIBLE_DEVICES: runs use no GPU"

    def test_ambiguous_device_list_stops_runs(self) -> None:
        found = line("allowed", gpus(refused="V=0 could be any: set V=PCI or more"))
        assert (found.says, found.cure, found.stops) == ("V=0 could be any", "set V=PCI or more", True)

    def test_only_prohibited_gpus_stop_runs(self) -> None:
        found = gpus(gpus=(replace(GPU, compute_mode="prohibited", free=None, reads=""),))
        assert line("allowed", found).stops

    def test_ignored_entries_of_a_device_list_need_attention(self) -> None:
        marks = [one.mark for one in gpus(notes=("V=0,9 ends before 9",)) if one.what == "allowed"]
        assert marks == [LineMark.OK, LineMark.WRONG]


class TestOrder:
    def test_equal_cuda_order_has_no_finding(self) -> None:
        assert "CUDA's order" not in {one.what for one in gpus()}

    def test_different_cuda_order_lists_the_numbers(self) -> None:
        found = line("CUDA's order", gpus(cuda_numbers={0: 1, 1: 0}))
        assert found.says.startswith(
            "differs from nvidia-smi (in PCI bus order, CUDA's 0 is GPU 1, 1 is GPU 0): tasks get UUIDs"
        )

    def test_cuda_order_of_mixed_models_may_differ(self) -> None:
        found = line("CUDA's order", gpus(by_bus=False, told="index"))
        assert found.says.startswith("may differ from nvidia-smi")
        assert found.says.endswith("tasks get CUDA's numbers (--visible index)")


class TestUnmanagedMemory:
    def test_gpus_without_unmanaged_memory_say_so(self) -> None:
        assert line("unmanaged", gpus()).says == "no unmanaged process uses GPU memory"
        assert line("memory use", gpus()).says == "visible per process (not certain while the GPUs are unused)"

    def test_unmanaged_memory_is_listed_by_user(self) -> None:
        two = (UnmanagedUser("ann", 6 * GIB, 600.0), UnmanagedUser("", GIB, 900.0))
        found = line("unmanaged", with_gpu(unmanaged=two, kept=2 * GIB))
        used = "6.0GiB used by ann, 1.0GiB used by an unknown user"
        assert found.says == f"GPU 1: {used}, 2.0GiB more kept free for it"
        assert line("memory use", with_gpu(unmanaged=two)).says == "visible per process"

    @pytest.mark.parametrize(
        ("policy", "kept", "end"),
        [
            ("headroom", 2 * GIB, "2.0GiB more kept free for it; a run starts nothing there for 1m40s"),
            ("avoid", 2 * GIB, "; not used (--unmanaged avoid)"),
            ("ignore", 0, " (--unmanaged ignore)"),
            ("headroom", 0, "100MiB used by ann"),
        ],
    )
    def test_unmanaged_memory_names_the_consequence_of_the_policy(self, policy: str, kept: int, end: str) -> None:
        one = replace(GPU, unmanaged=(UnmanagedUser("ann", 100 * MIB, 20.0),), kept=kept)
        assert line("unmanaged", gpus(gpus=(one,), policy=policy)).says.endswith(end)

    def test_memory_visible_per_device_names_the_reason(self) -> None:
        found = line("memory use", with_gpu(reads="device"))
        assert found.says.startswith("visible only per device on GPU 1 (the driver does not report the memory of each")
        assert (found.mark, found.cure) == (LineMark.ABSENT, "")

    def test_memory_visible_per_device_in_a_container_has_a_cure(self) -> None:
        found = line("memory use", gpus(gpus=(replace(GPU, reads="device"),), first_namespace=False))
        assert found.cure == "start the container with --pid=host"

    def test_accounting_that_is_off_on_one_gpu_names_it(self) -> None:
        found = line("accounting", with_gpu(accounting=False))
        assert found.mark == LineMark.ABSENT
        assert found.says == "off on GPU 1: memory is sampled, short peaks can be missed"
        assert found.cure.startswith("nvidia-smi -i 1 -am 1 as root")


class TestMps:
    def test_absent_mps_is_not_a_problem(self) -> None:
        assert texts(mps_findings(MPS)) == [
            "-- MPS: cannot be used: tasks on one GPU compute in turns (nvidia-cuda-mps-control is not on PATH)"
        ]

    def test_mps_daemon_that_tasks_join_needs_attention(self) -> None:
        use, found = mps_findings(replace(MPS, daemons=(MpsDaemonReport("/tmp/nvidia-mps", 7, "ben", True),)))
        assert "in turns" not in use.says
        assert found.says.startswith("a daemon of ben runs in /tmp/nvidia-mps (process 7): tasks find it and join it")
        assert found.mark == LineMark.WRONG

    def test_unused_mps_daemon_names_doctor_clean(self) -> None:
        _, left = mps_findings(replace(MPS, left=("/run/mps.0.a",)))
        assert (left.mark, left.cure) == (LineMark.WRONG, "scheduler doctor --clean")
        assert left.says == "an unused daemon is left in /run/mps.0.a"

    def test_mps_daemon_of_the_shell_needs_no_attention(self) -> None:
        daemons = (MpsDaemonReport("/my/mps", 7, "ben", False),)
        mps = MpsReport("/bin/nvidia-cuda-mps-control", daemons, {"CUDA_MPS_PIPE_DIRECTORY": "/my/mps"})
        assert texts(mps_findings(mps))[1:] == [
            "ok MPS: a daemon of ben runs in /my/mps (process 7): tasks join it only with --mps=join",
            "ok MPS: removed from the environment of tasks: CUDA_MPS_PIPE_DIRECTORY=/my/mps",
        ]


class TestHost:
    def test_limits_of_memory_and_cores_are_named(self) -> None:
        limited = replace(
            HOST, memory=LimitReport(8 * GIB, "cgroup /a"), cores=LimitReport(2.5, "cpu quota of cgroup /a")
        )
        assert line("memory", host_findings(limited)).says == "8.0GiB of 64.0GiB (limited by cgroup /a), 60.0GiB free"
        assert line("cores", host_findings(limited)).says == "2.5 of 8 (limited by cpu quota of cgroup /a)"

    @pytest.mark.parametrize(
        ("size", "mark"), [(64 * MIB, LineMark.WRONG), (None, LineMark.WRONG), (8 * GIB, LineMark.OK)]
    )
    def test_small_shared_memory_has_a_cure(self, size: int | None, mark: LineMark) -> None:
        found = line("/dev/shm", host_findings(replace(HOST, shared=size)))
        assert found.mark == mark
        assert ("--shm-size" in found.cure) == (mark is LineMark.WRONG)

    def test_swap_and_unreported_kills_are_named(self) -> None:
        found = list(host_findings(replace(HOST, swap=GIB, counts_kills=False)))
        assert line("swap", found).says == "1.0GiB, not used for reservations"
        assert line("kernel kills", found).mark == LineMark.ABSENT


class TestEnvironment:
    def test_container_is_named_with_its_sign(self) -> None:
        inside = replace(PLACE, container="Docker", sign="/.dockerenv", first_namespace=False, wsl=True)
        found = list(environment_findings(inside))
        assert line("container", found).says == "Docker, recognised by /.dockerenv; in a pid namespace of its own"
        assert line("WSL", found).mark == LineMark.OK

    def test_session_that_kills_its_processes_has_a_cure(self) -> None:
        session = {"unit": "session-3.scope", "is_session": True, "kills_by": "/etc/systemd/logind.conf"}
        killed = line("logging out", environment_findings(replace(PLACE, kills=True, ends_us=True, **session)))
        assert killed.mark == LineMark.WRONG
        assert killed.cure.startswith(
            "loginctl enable-linger, then start it outside of the session: systemd-run --user"
        )
        left = line("logging out", environment_findings(replace(PLACE, **session)))
        assert left.mark == LineMark.OK

    def test_user_manager_without_lingering_has_a_cure(self) -> None:
        manager = replace(PLACE, unit="user@1000.service", ends_us=True)
        assert line("logging out", environment_findings(manager)).cure == "loginctl enable-linger"
        lingers = line("logging out", environment_findings(replace(manager, ends_us=False, lingers=True)))
        assert lingers.says == "does not end runs that are started here (user@1000.service; lingering is on for ben)"

    @pytest.mark.parametrize(
        ("limit", "cure"),
        [
            (UlimitReport("open files", "ulimit -n", 256, None), "ulimit -n 4096, before the start of the scheduler"),
            (UlimitReport("open files", "ulimit -n", 256, 1000), "ulimit -n 1000, before the start of the scheduler"),
            (
                UlimitReport("open files", "ulimit -n", 256, 256),
                "an administrator raises it: /etc/security/limits.conf, or",
            ),
            (
                UlimitReport("processes", "pids.max of the cgroup /a", 100, 100, 9),
                "an administrator raises pids.max of the cgroup /a",
            ),
            (
                UlimitReport("address space", "ulimit -v", GIB, None),
                "ulimit -v unlimited, before the start of the scheduler",
            ),
        ],
    )
    def test_low_limit_has_a_cure(self, limit: UlimitReport, cure: str) -> None:
        found = line(limit.name, environment_findings(replace(PLACE, limits=(limit,))))
        assert found.mark == LineMark.WRONG
        assert found.cure.startswith(cure)

    def test_unlimited_resource_has_no_finding(self) -> None:
        unlimited = replace(PLACE, limits=(UlimitReport("data", "ulimit -d", None, None),))
        assert "data" not in {one.what for one in environment_findings(unlimited)}


class TestPython:
    def test_python_of_the_active_environment_is_ok(self) -> None:
        (found,) = python_findings(PYTHON)
        assert found.says == "/env/bin/python (the one that runs the scheduler; the active virtual environment /env)"

    def test_python_outside_of_the_active_environment_needs_attention(self) -> None:
        (found,) = python_findings(replace(PYTHON, path="/usr/bin/python", inside=False))
        assert (found.mark, found.cure) == (LineMark.WRONG, "--python /env/bin/python, or SCHEDULER_PYTHON")

    def test_python_from_a_setting_is_ok(self) -> None:
        (found,) = python_findings(replace(PYTHON, path="/usr/bin/python", inside=False, said_by="environment"))
        assert (found.mark, found.says) == (LineMark.OK, "/usr/bin/python (SCHEDULER_PYTHON)")

    def test_missing_python_has_to_be_repaired_but_stops_no_run(self) -> None:
        (found,) = python_findings(replace(PYTHON, runs=False))
        assert (found.broken, found.stops) == (True, False)


class TestFiles:
    @pytest.mark.parametrize(
        ("changes", "part"),
        [
            ({"file_system": "nfs4", "network": True}, "network file system"),
            ({"file_system": "tmpfs"}, "a reboot deletes all runs"),
            ({"free": MIB}, "little space"),
        ],
    )
    def test_state_directory_in_a_bad_place_has_a_cure(self, changes: Any, part: str) -> None:
        (found,) = state_findings(replace(STATE, **changes))
        assert found.mark == LineMark.WRONG
        assert part in found.says
        assert "--state DIR" in found.cure

    def test_state_directory_elsewhere_names_the_reason(self) -> None:
        usual, why = state_findings(replace(STATE, why="state is kept in /var/tmp"))
        assert (usual.mark, why.says) == (LineMark.OK, "state is kept in /var/tmp")

    def test_state_directory_that_cannot_be_written_stops_runs(self) -> None:
        (found,) = state_findings(replace(STATE, trouble="cannot be written: disk quota exceeded"))
        assert found.stops

    def test_lease_directory_of_another_user_needs_attention(self) -> None:
        found = line("leases", lease_findings(replace(LEASES, other_owner=True, owner="ann"), str))
        assert found.mark == LineMark.WRONG
        assert "scheduler devices init" in found.cure

    def test_reservations_are_summed_by_user(self) -> None:
        reservations = (UserLeases("ann", 2, {"GPU-0": 8 * GIB, "host": GIB}),)
        found = line(
            "reservations",
            lease_findings(replace(LEASES, reservations=reservations), {"GPU-0": "GPU 0", "host": "host"}.get),
        )
        assert found.says == "ann: 2 tasks, 8.0GiB of GPU 0, 1.0GiB of host"


class TestSiteConfig:
    def test_absent_site_config_is_ok(self) -> None:
        (found,) = site_findings(SITE)
        assert found.mark == LineMark.OK
        assert "no quotas" in found.says

    def test_quotas_of_this_user_are_listed_with_their_source(self) -> None:
        site = replace(
            SITE,
            there=True,
            devices="0-3",
            caps={"gpus": 2, "memory": 40 * GIB, "host_memory": None, "tasks": 8},
            caps_by="[caps.users.ben] in /etc/machine.toml",
            may={"reserve": "root, ben"},
            may_i=("reserve",),
        )
        held = "2 GPUs, 40.0GiB of GPU memory, 8 tasks"
        assert texts(site_findings(site)) == [
            "ok machine: /etc/machine.toml offers the GPUs 0-3",
            f"ok quota: you may hold {held} at a time ([caps.users.ben] in /etc/machine.toml)",
            "ok reserve: root, ben, you too",
        ]

    def test_ignored_site_config_stops_no_run(self) -> None:
        (found,) = site_findings(replace(SITE, there=True, trouble="it is not root's, so it is ignored", cure="chown"))
        assert (found.mark, found.stops, found.cure) == (LineMark.WRONG, False, "chown")

    def test_invalid_site_config_stops_runs(self) -> None:
        (found,) = site_findings(replace(SITE, there=True, trouble="unknown name 'gpu'", cure="correct it", stops=True))
        assert found.stops

    def test_unknown_user_names_are_listed(self) -> None:
        *_, found = site_findings(replace(SITE, there=True, unknown=("bne",)))
        assert "bne" in found.says


class TestSettings:
    def test_settings_that_are_not_defaults_have_their_source(self) -> None:
        found = SettingsReport(
            (
                SettingReport("num", 20, "", "default"),
                SettingReport("buffer", GIB, "bytes", "environment"),
                SettingReport("settle", 90.0, "seconds", "~/.config/x.toml"),
                SettingReport("margin", (0.1, 256 * MIB), "", "flag"),
            )
        )
        assert texts(settings_findings(found)) == [
            "ok buffer: 1.0GiB (SCHEDULER_BUFFER)",
            "ok settle: 1m30s (~/.config/x.toml)",
            "ok margin: 10% + 256MiB (flag)",
            "ok defaults: num 20",
        ]

    @pytest.mark.parametrize(
        ("value", "text"), [((0.02, GIB), "1.0GiB,2%"), ((0.0, GIB), "1.0GiB"), ((0.05, 0), "5%"), ((0.0, 0), "off")]
    )
    def test_disk_min_is_written_as_the_setting_is(self, value: tuple[float, int], text: str) -> None:
        found = SettingsReport((SettingReport("disk_min", value, "", "flag"),))
        assert texts(settings_findings(found))[0] == f"ok disk_min: {text} (flag)"

    def test_invalid_setting_stops_runs(self) -> None:
        (found,) = settings_findings(SettingsReport((), "num: 'x' is no number"))
        assert found.stops


class TestPage:
    def test_summary_without_problems_says_what_a_run_would_use(self) -> None:
        page = doctor_page.page(REPORT)
        assert page.exit_code == 0
        assert page.summary == "no problems; a run would use GPU 0-1 and 64.0GiB of RAM"

    def test_summary_names_the_problems(self) -> None:
        one = replace(GPUS, gpus=(GPU, replace(GPU, index=1, trouble="is lost", cure="a reboot")))
        page = doctor_page.page(replace(REPORT, gpus=one, host=replace(HOST, shared=MIB)))
        assert page.exit_code == 1
        assert page.summary == "to repair: GPU 1; to check: /dev/shm; a run would use GPU 0 and 64.0GiB of RAM"

    @pytest.mark.parametrize(
        "part", ["program", "gpus", "mps", "host", "surroundings", "python", "state", "leases", "settings"]
    )
    def test_failed_check_leaves_the_other_parts(self, part: str) -> None:
        whole = doctor_page.page(REPORT)
        page = doctor_page.page(replace(REPORT, **{part: ProbeFailed("KeyError: 7", "Traceback ...")}))
        (found,) = (one for one in page.findings if one.broken)
        assert found.says == "the check failed (KeyError: 7)"
        assert found.cure
        assert {group.title for group in page.groups} == {group.title for group in whole.groups}
        assert len(page.findings) > len(whole.findings) // 2

    @pytest.mark.parametrize("width", [60, 80, 100])
    def test_lines_fit_the_width(self, width: int) -> None:
        long = replace(GPUS, why="word " * 60, cure="another " * 40, gpus=(), broken=True)
        for found in (REPORT, replace(REPORT, gpus=long)):
            lines = list(doctor_page.lines(doctor_page.page(found), width))
            assert max(map(len, lines)) <= width
            assert all(text == text.rstrip() for text in lines)

    def test_note_is_below_its_text_if_there_is_no_room_beside(self) -> None:
        one = replace(GPUS, gpus=(replace(GPU, allowed=False),), allowed_by="V")
        wide, narrow = (
            list(doctor_page.lines(doctor_page.page(replace(REPORT, gpus=one)), width)) for width in (100, 80)
        )
        row = "  --  GPU 0          A100-SXM4-40GB  40.0GiB  39.0GiB free  GPU-01234567"
        assert f"{row}  not allowed for this shell" in wide
        assert narrow[narrow.index(row) + 1] == " " * 21 + "not allowed for this shell"

    @fault(68)
    def test_page_removes_escape_sequences_of_other_users(self) -> None:
        evil = replace(LEASES, reservations=(UserLeases("ann\x1b[2J", 1, {}),))
        assert "\x1b" not in "".join(doctor_page.lines(doctor_page.page(replace(REPORT, leases=evil)), 100))
