"""The checks of `doctor`, from invented facts: the text of each line, its cure, and the layout of the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.app.doctor import files, gpus, host
from scheduler.app.doctor.checks import CHECKS, examine
from scheduler.app.doctor.fences import fences
from scheduler.app.doctor.gpus import ExaminedGpu, ExaminedGpus
from scheduler.core.leases import Lease
from scheduler.core.model import Device, DeviceBudget, UnmanagedUse
from scheduler.core.site_policy import Caps
from scheduler.devices.gpu.allocation import AllowedGpus
from scheduler.devices.gpu.inventory import EXCLUSIVE_PROCESS, PROHIBITED, GpuInventory, InstalledGpu
from scheduler.devices.host.host_environment import LoginPolicy, Ulimit
from scheduler.devices.host.host_memory import HostLimit
from scheduler.devices.mps.daemon_discovery import USUAL, FoundDaemon
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.machine.site_config import SiteConfig, UserSet
from scheduler.ui.verbs.doctor import DoctorPage, Finding, Mark, broken, ok, wrong
from scheduler.units import GIB, MIB
from tests.support.faults import fault

INSTALLED = InstalledGpu(0, "GPU-01234567-89ab", "NVIDIA A100-SXM4-40GB", "0:1", 40 * GIB, accounting=True)
BUDGET = DeviceBudget(Device("GPU-01234567-89ab", "GPU 0", 40 * GIB, 1.0), 39 * GIB)
GPU = ExaminedGpu(INSTALLED, allowed=True, budget=BUDGET, reads="process")
SECOND = replace(GPU, installed=replace(INSTALLED, index=1))
GPUS = ExaminedGpus(
    GpuInventory(driver="555.1", cuda="12.5"),
    (GPU, SECOND),
    AllowedGpus(()),
    Settings(),
    module="nvidia-ml-py 13",
    cuda_numbers={0: 0, 1: 1},
)
LOST = "GPU 1 is lost: see the kernel log (dmesg) for lines with NVRM or Xid; usually a reboot helps"
RAM = HostLimit("memory", 64 * GIB, "RAM")
MACHINE = "machine.toml"


def texts(findings: Iterable[Finding]) -> list[str]:
    return [f"{one.mark} {one.what}: {one.says} {one.note}".strip() for one in findings]


def line(what: str, findings: Iterable[Finding]) -> Finding:
    """Return the only finding of that name."""
    (found,) = (one for one in findings if one.what == what)
    return found


def checked(**changes: Any) -> list[Finding]:
    """Return the findings about GPUs after some changes of the facts."""
    return [*gpus.findings(replace(GPUS, **changes))]


def with_gpu(installed: dict[str, Any] | None = None, **changes: Any) -> list[Finding]:
    """Return the findings about two GPUs; the changes apply to the second."""
    return checked(gpus=(GPU, replace(SECOND, installed=replace(SECOND.installed, **(installed or {})), **changes)))


def used_by(*users: tuple[str, int, float]) -> DeviceBudget:
    """Return the state of a GPU with unmanaged memory: user, bytes, seconds since it last grew."""
    return replace(BUDGET, unmanaged=tuple(UnmanagedUse(bytes_, user, 7, calm) for user, bytes_, calm in users))


class TestDriver:
    def test_absent_driver_is_not_a_problem(self) -> None:
        found = checked(gpus=(), node=GpuInventory(why="there is no driver"))
        assert texts(found) == ["-- driver: there is no driver: runs use no GPU"]

    def test_broken_driver_stops_runs(self) -> None:
        node = GpuInventory(why="it hangs: reboot, or reload its modules", broken=True)
        found = line("driver", checked(gpus=(), node=node))
        assert (found.mark, found.says, found.broken, found.stops) == (Mark.WRONG, "it hangs", True, True)
        assert found.cure == "reboot, or reload its modules; or run without GPUs: --devices host"

    def test_missing_pynvml_is_reported_once(self) -> None:
        missing = "pynvml is missing: pip install nvidia-ml-py"
        found = checked(gpus=(), node=GpuInventory(why=missing), module_trouble=missing)
        assert texts(found) == ["-- driver: not checked: pynvml is missing; runs use no GPU"]
        assert found[0].cure == "pip install nvidia-ml-py"

    def test_pynvml_of_another_package_needs_attention(self) -> None:
        cure = "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
        found = line("pynvml", checked(module_trouble=f"a package hides it: {cure}"))
        assert (found.mark, found.says, found.cure, found.broken) == (Mark.WRONG, "a package hides it", cure, False)


class TestEachGpu:
    def test_gpus_are_shown_in_aligned_columns(self) -> None:
        found = with_gpu({"model": "RTX 3090", "total": 24 * GIB})
        one, two = (one for one in found if one.what.startswith("GPU"))
        assert one.says == "A100-SXM4-40GB  40.0GiB  39.0GiB free  GPU-01234567"
        assert two.says == "RTX 3090        24.0GiB  39.0GiB free  GPU-01234567"

    @pytest.mark.parametrize(
        ("changes", "note", "cure"),
        [
            (
                {"mig": True},
                "in MIG mode without an instance: not used",
                "nvidia-smi -i 1 -mig 0 as root turns MIG off",
            ),
            (
                {"compute_mode": PROHIBITED},
                "compute mode prohibited: not used",
                "nvidia-smi -i 1 -c DEFAULT as root allows it",
            ),
        ],
    )
    def test_gpu_that_is_not_usable_has_a_cure(self, changes: Any, note: str, cure: str) -> None:
        found = line("GPU 1", with_gpu(changes, budget=None))
        assert (found.mark, found.note, found.cure, found.broken) == (Mark.WRONG, note, cure, False)

    def test_gpu_with_an_error_has_to_be_repaired_but_stops_no_run(self) -> None:
        found = line("GPU 1", with_gpu(trouble=LOST, budget=None))
        assert (found.note, found.broken, found.stops) == ("is lost", True, False)
        assert found.cure.endswith("usually a reboot helps")

    def test_gpu_that_is_not_allowed_is_marked(self) -> None:
        may = AllowedGpus((), "SLURM_JOB_GPUS")
        found = checked(gpus=(GPU, replace(SECOND, allowed=False, budget=None)), may=may)
        assert line("GPU 1", found).note == "not allowed for this shell"
        assert line("allowed", found).says == "GPU 0 of 2, by SLURM_JOB_GPUS"

    def test_gpu_in_exclusive_process_mode_takes_one_task(self) -> None:
        found = with_gpu({"compute_mode": EXCLUSIVE_PROCESS})
        assert line("GPU 1", found).note == "one task at a time"
        assert line("compute mode", found).says == "default on GPU 0, exclusive process on GPU 1"


class TestAllowed:
    def test_no_allowed_gpu_names_the_variable(self) -> None:
        may = AllowedGpus((), "CUDA_VISIBLE_DEVICES")
        found = checked(gpus=(replace(GPU, allowed=False, reads=""),), may=may)
        assert line("allowed", found).says == "none, by CUDA_VISIBLE_DEVICES: runs use no GPU"

    def test_ambiguous_device_list_stops_runs(self) -> None:
        found = line("allowed", checked(refused="V=0 could be any: set V=PCI or more"))
        assert (found.says, found.cure, found.stops) == ("V=0 could be any", "set V=PCI or more", True)

    def test_only_prohibited_gpus_stop_runs(self) -> None:
        prohibited = replace(GPU, installed=replace(INSTALLED, compute_mode=PROHIBITED), budget=None, reads="")
        assert line("allowed", checked(gpus=(prohibited,))).stops

    def test_ignored_entries_of_a_device_list_need_attention(self) -> None:
        notes = ("V=0,9 ends before 9", "GPU 3 is in MIG mode and left out")
        marks = [one.mark for one in checked(may=AllowedGpus((), notes=notes)) if one.what == "allowed"]
        assert marks == [Mark.OK, Mark.WRONG]


class TestHealth:
    def test_gpu_with_memory_errors_needs_a_reset_and_the_others_are_well(self) -> None:
        well = replace(GPU, installed=replace(INSTALLED, uncorrected=0))
        ill = replace(SECOND, installed=replace(SECOND.installed, uncorrected=2, pending=True))
        bad, good = (one for one in checked(gpus=(well, ill)) if one.what == "health")
        assert bad.says == (
            "GPU 1: 2 uncorrectable memory errors since the driver was loaded; "
            "a broken part of its memory is replaced at the next reset"
        )
        assert (bad.mark, bad.cure) == (Mark.WRONG, "nvidia-smi -i 1 --gpu-reset as root while no process uses it")
        assert good.says == "no uncorrectable memory error on GPU 0"

    def test_worn_memory_is_named(self) -> None:
        assert "it should be exchanged" in line("health", with_gpu({"worn": True})).says

    def test_lowered_clocks_are_named_with_the_reason(self) -> None:
        said = line("health", with_gpu({"throttled": 0x40 | 0x1})).says
        reason = "thermal slowdown by hardware"
        assert said == f"GPU 1: its clocks are lowered at the moment ({reason}), so tasks take longer"

    def test_gpus_that_tell_nothing_have_no_finding(self) -> None:
        assert [one for one in checked() if one.what == "health"] == []


class TestOrder:
    def test_equal_cuda_order_has_no_finding(self) -> None:
        assert "CUDA's order" not in {one.what for one in checked()}

    def test_different_cuda_order_lists_the_numbers(self) -> None:
        found = line("CUDA's order", checked(cuda_numbers={0: 1, 1: 0}))
        assert found.says.startswith(
            "differs from nvidia-smi (in PCI bus order, CUDA's 0 is GPU 1, 1 is GPU 0): tasks get UUIDs"
        )

    def test_cuda_order_of_mixed_models_may_differ(self) -> None:
        found = line("CUDA's order", checked(by_bus=False, settings=Settings(visible="index")))
        assert found.says.startswith("may differ from nvidia-smi")
        assert found.says.endswith("tasks get CUDA's numbers (--visible index)")


class TestUnmanagedMemory:
    def test_gpus_without_unmanaged_memory_say_so(self) -> None:
        assert line("unmanaged", checked()).says == "no unmanaged process uses GPU memory"
        assert line("memory use", checked()).says == "visible per process (not certain while the GPUs are unused)"

    def test_unmanaged_memory_is_listed_by_user(self) -> None:
        two = used_by(("", GIB, 900.0), ("ann", 4 * GIB, 600.0), ("ann", 2 * GIB, 700.0))
        found = line("unmanaged", with_gpu(budget=two, kept=2 * GIB))
        used = "6.0GiB used by ann, 1.0GiB used by an unknown user"
        assert found.says == f"GPU 1: {used}, 2.0GiB more kept free for it"
        assert line("memory use", with_gpu(budget=two)).says == "visible per process"

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
        one = replace(GPU, budget=used_by(("ann", 100 * MIB, 20.0)), kept=kept)
        found = checked(gpus=(one,), settings=Settings(unmanaged=policy))
        assert line("unmanaged", found).says.endswith(end)

    def test_memory_visible_per_device_names_the_reason(self) -> None:
        found = line("memory use", with_gpu(reads="device"))
        assert found.says.startswith("visible only per device on GPU 1 (the driver does not report the memory of each")
        assert (found.mark, found.cure) == (Mark.ABSENT, "")

    def test_memory_visible_per_device_in_a_container_has_a_cure(self) -> None:
        node = replace(GPUS.node, first_namespace=False)
        found = line("memory use", checked(gpus=(replace(GPU, reads="device"),), node=node))
        assert found.cure == "start the container with --pid=host"

    def test_accounting_that_is_off_on_one_gpu_names_it(self) -> None:
        found = line("accounting", with_gpu({"accounting": False}))
        assert found.mark == Mark.ABSENT
        assert found.says == "off on GPU 1: memory is sampled, short peaks can be missed"
        assert found.cure.startswith("nvidia-smi -i 1 -am 1 as root")


class TestMps:
    def test_absent_mps_is_not_a_problem(self) -> None:
        assert texts(gpus.mps("", [], [], {})) == [
            "-- MPS: cannot be used: tasks on one GPU compute in turns (nvidia-cuda-mps-control is not on PATH)"
        ]

    def test_mps_daemon_that_tasks_join_needs_attention(self) -> None:
        use, found = gpus.mps("", [FoundDaemon(USUAL, 7, os.getuid())], [], {})
        assert "in turns" not in use.says
        who = f"a daemon of {user_name(os.getuid())} runs in {USUAL} (process 7)"
        assert found.says.startswith(f"{who}: tasks find it and join it")
        assert found.mark == Mark.WRONG

    def test_unused_mps_daemon_names_doctor_clean(self) -> None:
        _, left = gpus.mps("", [], [Path("/run/mps.0.a")], {})
        assert (left.mark, left.cure) == (Mark.WRONG, "scheduler doctor --clean")
        assert left.says == "an unused daemon is left in /run/mps.0.a"

    def test_mps_daemon_of_the_shell_needs_no_attention(self) -> None:
        daemon = FoundDaemon(Path("/my/mps"), 7, os.getuid())
        variables, who = {"CUDA_MPS_PIPE_DIRECTORY": "/my/mps"}, user_name(os.getuid())
        assert texts(gpus.mps("/bin/nvidia-cuda-mps-control", [daemon], [], variables))[1:] == [
            f"ok MPS: a daemon of {who} runs in /my/mps (process 7): tasks join it only with --mps=join",
            "ok MPS: removed from the environment of tasks: CUDA_MPS_PIPE_DIRECTORY=/my/mps",
        ]


class TestFences:
    def test_limits_that_are_impossible_here_are_named_with_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scheduler.devices.dmem_fence.MOUNTS", ())
        torch, dmem = fences(str(tmp_path / "bin/python"), {"GPU-1": "0000:01:00.0"})
        assert torch.mark == dmem.mark == Mark.ABSENT
        assert torch.says.endswith("has no PyTorch for GPUs of 2.10 or newer")
        assert dmem.says.startswith("dmem: not possible, this kernel")

    def test_nothing_is_said_of_fences_without_a_gpu(self) -> None:
        assert not [*fences(sys.executable, {})]


class TestHost:
    def test_limits_of_memory_and_cores_are_named(self) -> None:
        (memory,) = host.memory(HostLimit("memory", 8 * GIB, "cgroup /a"), 64 * GIB, 6 * GIB)
        assert memory.says == "8.0GiB of 64.0GiB (limited by cgroup /a), 6.0GiB free"
        (cores,) = host.cores(HostLimit("cores", 2.5, "cpu quota of cgroup /a"), 8)
        assert cores.says == "2.5 of 8 (limited by cpu quota of cgroup /a)"

    def test_memory_and_cores_without_a_limit_name_none(self) -> None:
        found = [*host.memory(RAM, 64 * GIB, 60 * GIB), *host.cores(HostLimit("cores", 8, "all cores"), 8)]
        assert texts(found) == ["ok memory: 64.0GiB, 60.0GiB free", "ok cores: 8"]

    @pytest.mark.parametrize(("size", "mark"), [(64 * MIB, Mark.WRONG), (None, Mark.WRONG), (8 * GIB, Mark.OK)])
    def test_small_shared_memory_has_a_cure(self, size: int | None, mark: Mark) -> None:
        (found,) = host.shared_memory(size)
        assert found.mark == mark
        assert ("--shm-size" in found.cure) == (mark is Mark.WRONG)

    def test_swap_and_unreported_kills_are_named(self) -> None:
        (swap,) = host.swap(GIB)
        assert swap.says == "1.0GiB, not used for reservations"
        (kills,) = host.kernel_kills("v2", counted=False, kills=0)
        assert kills.mark == Mark.ABSENT


class TestEnvironment:
    def test_container_is_named_with_its_sign(self) -> None:
        found = list(host.container("Docker", "/.dockerenv", first_namespace=False, wsl=True))
        assert line("container", found).says == "Docker, recognised by /.dockerenv; in a pid namespace of its own"
        assert line("WSL", found).mark == Mark.OK

    def test_session_that_kills_its_processes_has_a_cure(self) -> None:
        session = LoginPolicy("session-3.scope", kills=True, source="/etc/systemd/logind.conf", lingers=False)
        (killed,) = host.logging_out("ben", session)
        assert killed.mark == Mark.WRONG
        assert killed.cure.startswith(
            "loginctl enable-linger, then start it outside of the session: systemd-run --user"
        )
        (left,) = host.logging_out("ben", session._replace(kills=False))
        assert left.mark == Mark.OK

    def test_user_manager_without_lingering_has_a_cure(self) -> None:
        manager = LoginPolicy("user@1000.service", kills=False, source="", lingers=False)
        (ended,) = host.logging_out("ben", manager)
        assert ended.cure == "loginctl enable-linger"
        (lingers,) = host.logging_out("ben", manager._replace(lingers=True))
        assert lingers.says == "does not end runs that are started here (user@1000.service; lingering is on for ben)"

    @pytest.mark.parametrize(
        ("limit", "cure"),
        [
            (Ulimit("open files", "-n", 256, None), "ulimit -n 4096, before the start of the scheduler"),
            (Ulimit("open files", "-n", 256, 1000), "ulimit -n 1000, before the start of the scheduler"),
            (Ulimit("open files", "-n", 256, 256), "an administrator raises it: /etc/security/limits.conf, or"),
            (Ulimit("address space", "-v", GIB, None), "ulimit -v unlimited, before the start of the scheduler"),
        ],
    )
    def test_low_limit_has_a_cure(self, limit: Ulimit, cure: str) -> None:
        (found,) = host.limits([limit], [])
        assert (found.what, found.mark) == (limit.name, Mark.WRONG)
        assert found.cure.startswith(cure)

    def test_low_limit_of_a_cgroup_has_a_cure(self) -> None:
        (found,) = host.limits([], [("/a", 100, 9)])
        assert (found.mark, found.says) == (Mark.WRONG, "at most 100, 9 now: too few for many tasks")
        assert found.cure.startswith("an administrator raises pids.max of the cgroup /a")

    def test_unlimited_resource_has_no_finding(self) -> None:
        assert list(host.limits([Ulimit("data", "-d", None, None)], [])) == []


class TestPython:
    @pytest.fixture
    def env(self, tmp_path: Path) -> Path:
        """Make an environment with a Python in it."""
        (tmp_path / "env/bin").mkdir(parents=True)
        (tmp_path / "env/bin/python").symlink_to("/bin/true")
        return tmp_path / "env"

    def test_python_of_the_active_environment_is_ok(self, env: Path) -> None:
        (found,) = files.python(f"{env}/bin/python", "", {"VIRTUAL_ENV": str(env)})
        assert found.says == f"{env}/bin/python (the one that runs the scheduler; the active virtual environment {env})"

    def test_python_outside_of_the_active_environment_needs_attention(self, env: Path) -> None:
        (found,) = files.python("/bin/true", "", {"CONDA_PREFIX": str(env)})
        assert (found.mark, found.cure) == (Mark.WRONG, f"--python {env}/bin/python, or SCHEDULER_PYTHON")

    def test_python_from_a_setting_is_ok(self, env: Path) -> None:
        (found,) = files.python("/bin/true", "environment", {"VIRTUAL_ENV": str(env)})
        assert (found.mark, found.says) == (Mark.OK, "/bin/true (SCHEDULER_PYTHON)")

    def test_missing_python_has_to_be_repaired_but_stops_no_run(self) -> None:
        (found,) = files.python("/no/python", "", {})
        assert (found.broken, found.stops) == (True, False)


class TestFiles:
    @pytest.mark.parametrize(
        ("kind", "free", "part"),
        [
            ("nfs4", 90 * GIB, "network file system"),
            ("tmpfs", 90 * GIB, "a reboot deletes all runs"),
            ("ext4", MIB, "little space"),
        ],
    )
    def test_state_directory_in_a_bad_place_has_a_cure(self, kind: str, free: int, part: str) -> None:
        found = files.place("/home/ben/state", "3 runs", kind, free, 0, "--state DIR")
        assert found.mark == Mark.WRONG
        assert part in found.says
        assert "--state DIR" in found.cure

    def test_state_directory_on_a_full_disk_names_the_minimum(self) -> None:
        found = files.place("/home/ben/state", "3 runs", "ext4", 2 * GIB, 3 * GIB, "")
        assert "below the minimum of 3.0GiB: no task starts until there is space" in found.says
        assert found.cure == "free space, or lower disk_min"

    def test_lease_directory_of_another_user_needs_attention(self, tmp_path: Path) -> None:
        other = [0o041777, 1, 1, 1, os.getuid() + 4242, 1, 1, 1, 1, 1]
        found = files.lease_directory(tmp_path, os.stat_result(other))
        assert found.mark == Mark.WRONG
        assert "scheduler devices init" in found.cure

    def test_lease_directory_of_one_user_says_so(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        assert "only you can reserve there" in files.lease_directory(tmp_path, tmp_path.stat()).says

    def test_reservations_are_summed_by_user(self) -> None:
        one = Lease("a", os.getuid(), "7-ab", 3, 1, 0, {"GPU-0": 6 * GIB}, {})
        two = replace(one, task=4, reserved={"GPU-0": 2 * GIB, "host": GIB})
        (found,) = files.reservations([one, two], lambda key: {"GPU-0": "GPU 0"}.get(key, key))
        assert found.says == f"{user_name(os.getuid())}: 2 tasks, 8.0GiB of GPU 0, 1.0GiB of host"

    def test_unreadable_leases_need_attention(self) -> None:
        lease = Lease("a", os.getuid(), "", 0, 0, 0, {}, {}, unreadable="ann")
        found = [*files.reservations([lease], str)][-1]
        assert found.mark == Mark.WRONG
        assert found.says.startswith("some leases of ann cannot be read")


class TestSiteConfig:
    def test_absent_site_config_is_ok(self, tmp_path: Path) -> None:
        (found,) = files.site({"SCHEDULER_MACHINE_FILE": str(tmp_path / MACHINE)})
        assert found.mark == Mark.OK
        assert "no quotas" in found.says

    def test_quotas_of_this_user_are_listed_with_their_source(self) -> None:
        config = SiteConfig(
            "/etc/machine.toml",
            devices="0-3",
            caps=Caps(2, 40 * GIB, None, 8, source="[quotas.users.ben] in /etc/machine.toml"),
            may={"reserve": UserSet(frozenset({4242}))},
        )
        held = "2 GPUs, 40.0GiB of GPU memory, 8 tasks"
        who = f"root, {user_name(4242)}"
        assert texts(files.site_rules(config, 4242)) == [
            "ok machine: /etc/machine.toml offers the GPUs 0-3",
            f"ok quota: you may hold {held} at a time ([quotas.users.ben] in /etc/machine.toml)",
            f"ok reserve: {who}, you too",
        ]
        assert texts(files.site_rules(config, 4243))[-1] == f"ok reserve: {who}"

    @pytest.mark.skipif(os.getuid() != 0, reason="only root's own file counts")
    @pytest.mark.parametrize(("text", "mode", "stops"), [("gpu = 1\n", 0o644, True), ("", 0o666, False)])
    def test_invalid_site_config_stops_runs_and_an_ignored_one_does_not(
        self, tmp_path: Path, text: str, mode: int, stops: bool
    ) -> None:
        (tmp_path / MACHINE).write_text(text)
        (tmp_path / MACHINE).chmod(mode)
        (found,) = files.site({"SCHEDULER_MACHINE_FILE": str(tmp_path / MACHINE)})
        assert (found.mark, found.stops, bool(found.cure)) == (Mark.WRONG, stops, True)

    def test_unknown_user_names_are_listed(self) -> None:
        *_, found = files.site_rules(SiteConfig("/etc/machine.toml", unknown=("bne",)), 4242)
        assert "bne" in found.says


class TestSettings:
    def test_settings_that_are_not_defaults_have_their_source(self) -> None:
        sources = {"buffer": "environment", "settle": "~/.config/x.toml", "margin": "flag"}
        settings = Settings(buffer=GIB, settle=90.0, margin=(0.1, 256 * MIB), source=sources)
        *other, defaults = texts(files.settings_used(settings, ""))
        assert other == [
            "ok buffer: 1.0GiB (SCHEDULER_BUFFER)",
            "ok settle: 1m30s (~/.config/x.toml)",
            "ok margin: 10% + 256MiB (flag)",
        ]
        assert defaults.startswith("ok defaults: ")
        assert "num 20, order batch" in defaults

    @pytest.mark.parametrize(
        ("value", "text"), [((0.02, GIB), "1.0GiB,2%"), ((0.0, GIB), "1.0GiB"), ((0.05, 0), "5%"), ((0.0, 0), "off")]
    )
    def test_disk_min_is_written_as_the_setting_is(self, value: tuple[float, int], text: str) -> None:
        found = files.settings_used(Settings(disk_min=value, source={"disk_min": "flag"}), "")
        assert texts(found)[0] == f"ok disk_min: {text} (flag)"

    def test_invalid_setting_stops_runs(self) -> None:
        (found,) = files.settings_used(Settings(), "num: 'x' is no number")
        assert found.stops


class TestPage:
    def page(self, *findings: Finding) -> DoctorPage:
        return DoctorPage("gpu1", {"GPUs": findings}, "a run would use GPU 0-1 and 64.0GiB of RAM")

    def test_summary_without_problems_says_what_a_run_would_use(self) -> None:
        page = self.page(ok("driver", "555.1"))
        assert page.exit_code == 0
        assert page.summary == "no problems; a run would use GPU 0-1 and 64.0GiB of RAM"

    def test_summary_names_the_problems(self) -> None:
        lost = broken("GPU 1", "", "a reboot", "is lost", stops=False)
        page = self.page(lost, lost, wrong("/dev/shm", "1MiB", "more"))
        assert page.exit_code == 1
        assert page.summary == "to repair: GPU 1; to check: /dev/shm; a run would use GPU 0-1 and 64.0GiB of RAM"

    def test_summary_of_a_problem_that_stops_runs_says_so(self) -> None:
        assert self.page(broken("driver", "it hangs", "a reboot")).summary == "to repair: driver; no run can start"

    @pytest.mark.parametrize("name", [check.name for check in CHECKS])
    def test_failed_check_leaves_the_other_parts(self, name: str, tmp_path: Path) -> None:
        def fails(*_: object) -> Iterable[Finding]:
            raise KeyError(7)

        flags = {"state": str(tmp_path)}
        with_failure = [replace(check, say=fails) if check.name == name else check for check in CHECKS]
        page, whole = examine(flags, "1.0", with_failure), examine(flags, "1.0")
        (found,) = (one for one in page.findings if one.says == "the check failed (KeyError: 7)")
        assert (found.what, found.broken, bool(found.cure)) == (name, True, True)
        assert page.to_dict()["failed"][0]["check"] == name
        assert "Traceback" in page.to_dict()["failed"][0]["traceback"]
        assert list(page.groups) == list(whole.groups)
        assert len(page.findings) > len(whole.findings) // 2

    @pytest.mark.parametrize("width", [60, 80, 100])
    def test_lines_fit_the_width(self, width: int) -> None:
        page = self.page(broken("driver", "word " * 60, "another " * 40, "note " * 30), ok("cores", "8"))
        lines = list(page.lines(width))
        assert max(map(len, lines)) <= width
        assert all(text == text.rstrip() for text in lines)

    def test_note_is_below_its_text_if_there_is_no_room_beside(self) -> None:
        row = "A100-SXM4-40GB  40.0GiB  39.0GiB free  GPU-01234567"
        page = self.page(ok("GPU 0", row, "not allowed for this shell"))
        wide, narrow = list(page.lines(100)), list(page.lines(80))
        assert wide[1] == f"  ok  GPU 0          {row}  not allowed for this shell"
        assert narrow[1:3] == [f"  ok  GPU 0          {row}", " " * 21 + "not allowed for this shell"]

    @fault(68)
    def test_page_removes_escape_sequences_of_other_users(self) -> None:
        assert "\x1b" not in "".join(self.page(ok("reservations", "ann\x1b[2J: 1 task")).lines(100))
