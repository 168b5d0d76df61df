"""Which limit of the host's memory and cores holds: the machine's, a cgroup's, or Slurm's."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.model import HOST
from scheduler.core.ports import Watched
from scheduler.devices import cgroups
from scheduler.devices import watcher as watching
from scheduler.devices.host import HostDevices, Limit, available, slurm_memory
from scheduler.devices.watcher import HostWatcher
from scheduler.paths import PACKAGE
from scheduler.units import GIB, MIB
from tests.waiting import wait_until

TOTAL = available()[0]


class Cgroups:
    """A cgroup tree of our own, and the groups we are said to be in."""

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
    def test_all_of_the_machine_where_nothing_limits(self, groups: Cgroups) -> None:
        host = groups.host()
        assert host.limits()[0] == Limit("memory", TOTAL, "RAM")
        assert host.discover()[0].total == TOTAL

    @pytest.mark.parametrize("limit", ["max", 1 << 62, 0x7FFFFFFFFFFFF000])
    def test_a_group_without_a_limit_is_none(self, groups: Cgroups, limit: object) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", limit)
        assert groups.host().limits()[0].source == "RAM"

    def test_the_lowest_of_the_groups_above_it_holds(self, groups: Cgroups) -> None:
        groups.join("0::/a/b")
        groups.write("a/b/memory.max", 800 * MIB)
        groups.write("a/memory.max", 500 * MIB)
        assert groups.host().limits()[0] == Limit("memory", 500 * MIB, f"cgroup {groups.root}/a")

    def test_in_version_1_under_another_name(self, groups: Cgroups) -> None:
        groups.join("4:memory:/a", "0::/")
        groups.write("memory/a/memory.limit_in_bytes", 300 * MIB)
        assert groups.host().limits()[0].source == f"cgroup {groups.root}/memory/a"

    def test_in_a_container_where_the_path_is_the_host_s(self, groups: Cgroups) -> None:
        groups.join("0::/docker/4711")
        groups.write("memory.max", 300 * MIB)
        assert groups.host().discover()[0].total == 300 * MIB

    def test_what_is_free_is_what_the_group_leaves(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", 300 * MIB)
        groups.write("a/memory.current", 200 * MIB)
        groups.write("a/memory.stat", f"inactive_file {50 * MIB}")
        assert groups.host().snapshot()[0].free == 150 * MIB

    def test_never_less_than_nothing(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", 300 * MIB)
        groups.write("a/memory.current", 301 * MIB)
        assert groups.host().snapshot()[0].free == 0


class TestSlurm:
    @pytest.mark.parametrize(
        ("environ", "limit"),
        [
            ({}, None),
            ({"SLURM_MEM_PER_NODE": "2048"}, Limit("memory", 2 * GIB, "SLURM_MEM_PER_NODE")),
            ({"SLURM_MEM_PER_NODE": "0"}, None),
            ({"SLURM_MEM_PER_NODE": "all"}, None),
            (
                {"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"},
                Limit("memory", 2 * GIB, "SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE"),
            ),
            ({"SLURM_MEM_PER_CPU": "512"}, None),
            ({"SLURM_CPUS_ON_NODE": "4"}, None),
        ],
    )
    def test_what_it_allocated(self, environ: dict[str, str], limit: Limit | None) -> None:
        assert slurm_memory(environ) == limit

    def test_it_limits_the_device_and_what_is_free(self, groups: Cgroups) -> None:
        host = groups.host(SLURM_MEM_PER_NODE="100")
        assert host.limits()[0].source == "SLURM_MEM_PER_NODE"
        assert host.discover()[0].total == host.snapshot()[0].free == 100 * MIB

    def test_a_lower_cgroup_goes_before_it(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/memory.max", 50 * MIB)
        assert groups.host(SLURM_MEM_PER_NODE="100").discover()[0].total == 50 * MIB

    def test_what_its_job_holds_is_not_free(self, groups: Cgroups) -> None:
        """Where Slurm counts memory by cgroup and does not limit it there."""
        groups.join("0::/slurmstepd.scope/job_12/step_0")
        groups.write("slurmstepd.scope/job_12/memory.max", "max")
        groups.write("slurmstepd.scope/job_12/memory.current", 30 * MIB)
        assert groups.host(SLURM_MEM_PER_NODE="100", SLURM_JOB_ID="12").snapshot()[0].free == 70 * MIB
        assert groups.host(SLURM_MEM_PER_NODE="100", SLURM_JOB_ID="13").snapshot()[0].free == 100 * MIB


class TestCores:
    MINE = float(len(os.sched_getaffinity(0)))

    def test_its_affinity_where_nothing_limits(self, groups: Cgroups) -> None:
        _, cores = groups.host().limits()
        assert cores.value == self.MINE
        assert cores.source == ("all cores" if os.cpu_count() == self.MINE else "sched_getaffinity")

    def test_a_quota_of_a_group_above_it(self, groups: Cgroups) -> None:
        groups.join("0::/a/b")
        groups.write("a/b/cpu.max", "max 100000")
        groups.write("a/cpu.max", "50000 100000")
        assert groups.host().limits()[1] == Limit("cores", 0.5, f"cpu quota of cgroup {groups.root}/a")
        assert groups.host().discover()[0].load_capacity == 0.5

    def test_a_quota_of_version_1(self, groups: Cgroups) -> None:
        groups.join("3:cpu,cpuacct:/a")
        groups.write("cpu/a/cpu.cfs_quota_us", 25000)
        groups.write("cpu/a/cpu.cfs_period_us", 100000)
        assert groups.host().limits()[1].value == 0.25

    def test_no_quota_in_version_1(self, groups: Cgroups) -> None:
        groups.join("3:cpu,cpuacct:/a")
        groups.write("cpu/a/cpu.cfs_quota_us", -1)
        groups.write("cpu/a/cpu.cfs_period_us", 100000)
        assert groups.host().limits()[1].value == self.MINE

    def test_threads_as_many_unless_the_user_says_otherwise(self, groups: Cgroups) -> None:
        assert groups.host().threads(2.6) == {"OMP_NUM_THREADS": "3"}
        assert groups.host(MKL_NUM_THREADS="8").threads(2.6) == {}


class TestDeviceRules:
    def test_they_are_of_the_next_group_that_has_them(self, groups: Cgroups) -> None:
        groups.join("5:devices:/a/b")
        groups.write("devices/a/devices.list", "c 195:2 rw")
        groups.write("devices/devices.list", "a *:* rwm")
        assert cgroups.device_rules(groups.root, groups.own) == "c 195:2 rw"

    def test_version_2_does_not_say(self, groups: Cgroups) -> None:
        groups.join("0::/a")
        groups.write("a/devices.list", "never there")
        assert cgroups.device_rules(groups.root, groups.own) == ""

    def test_neither_does_a_machine_without_cgroups(self, groups: Cgroups) -> None:
        assert cgroups.device_rules(groups.root, groups.own) == ""


class TestGivenBack:
    """What a task gives back is free at once, and seems to be held by it until somebody looks again."""

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

    def test_it_is_not_free_before_it_is_known_not_to_be_held(
        self, groups: Cgroups, host: HostDevices, watcher: HostWatcher, trees: list[int]
    ) -> None:
        one, other = ((number, 1) for number in (1, 2))
        watcher.watch({one: Watched(trees[0]), other: Watched(trees[1])}, frozenset())
        used: dict[int, int] = {}

        def looked() -> bool:
            used.update({sample.task: sample.used[HOST] for sample in watcher.collect()})
            return len(used) == 2 and all(used.values())

        wait_until(looked)
        self.held(groups, 100 * MIB)
        assert host.snapshot()[0].free == 200 * MIB
        watcher.watch({one: Watched(trees[0])}, frozenset())  # the other has ended: what it held is really free
        assert host.snapshot()[0].free == 200 * MIB + used[2]
        wait_until(lambda: watcher.collect() and host.snapshot()[0].free == 700 * MIB)

    def test_where_nobody_has_looked_for_long_what_seems_to_be_held_may_be_free_already(
        self,
        groups: Cgroups,
        host: HostDevices,
        watcher: HostWatcher,
        trees: list[int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As when the scheduler was stopped while others went on: at its first look it promised the same twice."""
        watcher.watch({(2, 1): Watched(trees[1])}, frozenset(trees[:1]))

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

    def test_where_nobody_holds_anything_all_that_is_free_is(
        self, groups: Cgroups, host: HostDevices, watcher: HostWatcher, trees: list[int]
    ) -> None:
        watcher.watch({(1, 1): Watched(trees[0])}, frozenset())
        wait_until(lambda: watcher.collect() and host.snapshot()[0].free == 200 * MIB)
        self.held(groups, 100 * MIB)
        watcher.watch({}, frozenset())
        assert host.snapshot()[0].free == 700 * MIB


def test_a_pipe_where_progress_is_told_does_not_hold_up_the_sampler(tmp_path: Path) -> None:
    """Nobody's memory was seen any more."""
    os.mkfifo(tmp_path / "progress")
    order = json.dumps({"trees": {"1.1": [os.getpid(), "", str(tmp_path / "progress")]}, "strangers": []})
    code = "from scheduler.devices.sampler import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(order + "\n")
        child.stdin.flush()
        told = bool(select.select([child.stdout], [], [], 20)[0])
        child.kill()
    assert told
