"""The limit of host memory and cores that applies: the machine's, a cgroup's, or Slurm's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.model import HOST
from scheduler.core.ports import Watched
from scheduler.devices import sampler_child
from scheduler.devices.host import cgroups
from scheduler.devices.host import sampler_client as watching
from scheduler.devices.host.host_memory import HostDevices, HostLimit, available, slurm_memory
from scheduler.devices.host.sampler_client import HostWatcher
from scheduler.devices.sampler_child import SamplerChild, bury
from scheduler.runtime.paths import PACKAGE
from scheduler.units import GIB, MIB
from tests.support.waiting import wait_until

TOTAL = available()[0]


class Cgroups:
    """A tree of cgroup files, and the groups that this process is said to be in."""

    def __init__(self, root: Path) -> None:
        self.root = root / "cgroup"
        self.own = root / "own"
        self.own.touch()

    def join(self, *lines: str) -> None:
        self.own.write_text("\n".join(lines) + "\n")

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def host(self, **environ: str) -> HostDevices:
        return HostDevices(None, self.root, environ, self.own)


@pytest.fixture
def groups(tmp_path: Path) -> Cgroups:
    return Cgroups(tmp_path)


class TestMemory:
    def test_host_has_all_memory_where_nothing_limits(self, groups: Cgroups) -> None:
        host = groups.host()
        assert host.limits()[0] == HostLimit("memory", TOTAL, "RAM")
        assert host.discover()[0].total == TOTAL

    @pytest.mark.parametrize("limit", ["max", 1 << 62, 0x7FFFFFFFFFFFF000])
    def test_group_without_a_limit_does_not_limit(self, groups: Cgroups, limit: object) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", limit)
        assert groups.host().limits()[0].source == "RAM"

    def test_lowest_limit_of_the_groups_above_holds(self, groups: Cgroups) -> None:
        groups.join("0::/a/b")
        groups.write("a/b/memory.max", 800 * MIB)
        groups.write("a/memory.max", 500 * MIB)
        assert groups.host().limits()[0] == HostLimit("memory", 500 * MIB, f"cgroup {groups.root}/a")

    def test_limit_is_read_in_cgroup_v1(self, groups: Cgroups) -> None:
        groups.join("4:memory:/a", "0::/")
        groups.write("memory/a/memory.limit_in_bytes", 300 * MIB)
        assert groups.host().limits()[0].source == f"cgroup {groups.root}/memory/a"

    def test_limit_is_read_in_a_container_whose_path_is_the_hosts(self, groups: Cgroups) -> None:
        groups.join("0::/docker/4711")
        groups.write("memory.max", 300 * MIB)
        assert groups.host().discover()[0].total == 300 * MIB

    def test_free_memory_is_what_the_group_leaves(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", 300 * MIB)
        groups.write("a/memory.current", 200 * MIB)
        groups.write("a/memory.stat", f"inactive_file {50 * MIB}")
        assert groups.host().snapshot()[0].free == 150 * MIB

    def test_free_memory_is_never_negative(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", 300 * MIB)
        groups.write("a/memory.current", 301 * MIB)
        assert groups.host().snapshot()[0].free == 0


class TestSlurm:
    @pytest.mark.parametrize(
        ("environ", "limit"),
        [
            ({}, None),
            ({"SLURM_MEM_PER_NODE": "2048"}, HostLimit("memory", 2 * GIB, "SLURM_MEM_PER_NODE")),
            ({"SLURM_MEM_PER_NODE": "0"}, None),
            ({"SLURM_MEM_PER_NODE": "all"}, None),
            (
                {"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"},
                HostLimit("memory", 2 * GIB, "SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE"),
            ),
            ({"SLURM_MEM_PER_CPU": "512"}, None),
            ({"SLURM_CPUS_ON_NODE": "4"}, None),
        ],
    )
    def test_slurm_allocation_is_read(self, environ: dict[str, str], limit: HostLimit | None) -> None:
        assert slurm_memory(environ) == limit

    def test_slurm_allocation_limits_capacity_and_free_memory(self, groups: Cgroups) -> None:
        host = groups.host(SLURM_MEM_PER_NODE="100")
        assert host.limits()[0].source == "SLURM_MEM_PER_NODE"
        assert host.discover()[0].total == host.snapshot()[0].free == 100 * MIB

    def test_lower_cgroup_limit_overrides_slurms(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", 50 * MIB)
        assert groups.host(SLURM_MEM_PER_NODE="100").discover()[0].total == 50 * MIB

    def test_memory_of_the_slurm_job_is_not_free(self, groups: Cgroups) -> None:
        """Where Slurm counts memory by cgroup and does not limit it there."""
        groups.join("0::/slurmstepd.scope/job_12/step_0")
        groups.write("slurmstepd.scope/job_12/memory.max", "max")
        groups.write("slurmstepd.scope/job_12/memory.current", 30 * MIB)
        assert groups.host(SLURM_MEM_PER_NODE="100", SLURM_JOB_ID="12").snapshot()[0].free == 70 * MIB
        assert groups.host(SLURM_MEM_PER_NODE="100", SLURM_JOB_ID="13").snapshot()[0].free == 100 * MIB


class TestCores:
    MINE = float(len(os.sched_getaffinity(0)))

    def test_cores_are_the_affinity_where_nothing_limits(self, groups: Cgroups) -> None:
        _, cores = groups.host().limits()
        assert cores.value == self.MINE
        assert cores.source == ("all cores" if os.cpu_count() == self.MINE else "sched_getaffinity")

    def test_cores_are_limited_by_a_quota_of_a_group_above(self, groups: Cgroups) -> None:
        groups.join("0::/a/b")
        groups.write("a/b/cpu.max", "max 100000")
        groups.write("a/cpu.max", "50000 100000")
        assert groups.host().limits()[1] == HostLimit("cores", 0.5, f"cpu quota of cgroup {groups.root}/a")
        assert groups.host().discover()[0].load_capacity == 0.5

    def test_cores_are_limited_by_a_quota_of_cgroup_v1(self, groups: Cgroups) -> None:
        groups.join("3:cpu,cpuacct:/a")
        groups.write("cpu/a/cpu.cfs_quota_us", 25000)
        groups.write("cpu/a/cpu.cfs_period_us", 100000)
        assert groups.host().limits()[1].value == 0.25

    def test_cores_are_not_limited_without_a_quota_in_cgroup_v1(self, groups: Cgroups) -> None:
        groups.join("3:cpu,cpuacct:/a")
        groups.write("cpu/a/cpu.cfs_quota_us", -1)
        groups.write("cpu/a/cpu.cfs_period_us", 100000)
        assert groups.host().limits()[1].value == self.MINE

    def test_threads_equal_cores_unless_the_user_sets_them(self, groups: Cgroups) -> None:
        assert groups.host().threads(2.6) == {"OMP_NUM_THREADS": "3"}
        assert groups.host(MKL_NUM_THREADS="8").threads(2.6) == {}


class TestDeviceRules:
    def test_device_rules_come_from_the_nearest_group(self, groups: Cgroups) -> None:
        groups.join("5:devices:/a/b")
        groups.write("devices/a/devices.list", "c 195:2 rw")
        groups.write("devices/devices.list", "a *:* rwm")
        assert cgroups.device_rules(groups.root, groups.own) == "c 195:2 rw"

    def test_device_rules_are_unknown_in_cgroup_v2(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/devices.list", "never there")
        assert cgroups.device_rules(groups.root, groups.own) == ""

    def test_device_rules_are_unknown_without_cgroups(self, groups: Cgroups) -> None:
        assert cgroups.device_rules(groups.root, groups.own) == ""


class TestGivenBack:
    """Memory that a task gives back is free at once, and seems to be used until the next look."""

    @pytest.fixture
    def host(self, groups: Cgroups) -> HostDevices:
        groups.join("0::/a")
        groups.write("a/memory.max", 800 * MIB)
        self.held(groups, 600 * MIB)
        return groups.host()

    def held(self, groups: Cgroups, bytes_: int) -> None:
        groups.write("a/memory.current", bytes_)

    @pytest.fixture
    def watcher(self, host: HostDevices) -> Iterator[HostWatcher]:
        made = host.watcher(PACKAGE.parent)
        yield made
        made.close()

    @pytest.fixture
    def trees(self) -> Iterator[list[int]]:
        living = [subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) for _ in range(2)]
        yield [one.pid for one in living]
        for one in living:
            os.killpg(one.pid, 9)
            one.wait()

    def test_memory_given_back_is_free_only_after_the_next_look(
        self, groups: Cgroups, host: HostDevices, watcher: HostWatcher, trees: list[int]
    ) -> None:
        one, other = ((number, 1) for number in (1, 2))
        watcher.watch({one: Watched(trees[0]), other: Watched(trees[1])}, {})
        used: dict[int, int] = {}

        def looked() -> bool:
            used.update({sample.task: sample.used[HOST] for sample in watcher.collect()})
            return len(used) == 2 and all(used.values())

        wait_until(looked)
        self.held(groups, 100 * MIB)
        assert host.snapshot()[0].free == 200 * MIB
        watcher.watch({one: Watched(trees[0])}, {})  # the other has ended: what it held is really free
        assert host.snapshot()[0].free == 200 * MIB + used[2]
        wait_until(lambda: watcher.collect() and host.snapshot()[0].free == 700 * MIB)

    def test_old_look_does_not_reduce_free_memory(
        self,
        groups: Cgroups,
        host: HostDevices,
        watcher: HostWatcher,
        trees: list[int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As when the scheduler was stopped while others went on: its first look must not reserve the same memory
        twice."""
        watcher.watch({(2, 1): Watched(trees[1])}, {trees[0]: 0})

        def seen() -> int:
            mine = sum(sample.used[HOST] for sample in watcher.collect())
            theirs = watcher.used_by(trees[0], "a lease")[HOST]
            return mine + theirs if mine and theirs else 0

        held = wait_until(seen)
        assert watcher._child is not None
        os.kill(watcher._child.pid, signal.SIGSTOP)
        monkeypatch.setattr(watching, "LONG", 0.0)
        self.held(groups, 100 * MIB)
        assert host.snapshot()[0].free == 700 * MIB - held

    def test_all_free_memory_counts_where_no_task_runs(
        self, groups: Cgroups, host: HostDevices, watcher: HostWatcher, trees: list[int]
    ) -> None:
        watcher.watch({(1, 1): Watched(trees[0])}, {})
        wait_until(lambda: watcher.collect() and host.snapshot()[0].free == 200 * MIB)
        self.held(groups, 100 * MIB)
        watcher.watch({}, {})
        assert host.snapshot()[0].free == 700 * MIB


def test_pipe_in_place_of_the_progress_file_does_not_block_the_sampler(tmp_path: Path) -> None:
    """A blocked sampler would measure no task any more."""
    os.mkfifo(tmp_path / "progress")
    child = SamplerChild(sampler_child.HOST, PACKAGE.parent)
    child.order({"trees": {"1.1": [os.getpid(), 0, False, ["", str(tmp_path / "progress"), "", "", ""]]}, "others": []})
    try:
        assert wait_until(lambda: child.answers(time.monotonic()), 20)
    finally:
        child.end()
        bury([child], 10)
