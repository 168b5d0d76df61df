"""The GPUs through NVML: the real pynvml in the sampler child, over stand-in GPUs that can be broken."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.leases import UnnamedShim
from scheduler.core.model import DeviceBudget, UnmanagedUse
from scheduler.core.ports import Key, Sample, Watched
from scheduler.devices.gpu.child_faults import SamplerLimits
from scheduler.devices.gpu.inventory import find_pynvml
from scheduler.devices.gpu.nvml_devices import NvmlDevices
from scheduler.devices.gpu.process_owner import ProcessOwners, pids_outside_in
from scheduler.errors import DeviceError
from scheduler.units import GIB, MIB
from tests.e2e.older_tools.contracts import contract
from tests.support.faults import fault
from tests.support.standin.box import NO_COMPILER, Box
from tests.support.standin.client import COMPUTE, GRAPHICS, MPS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

QUICK = SamplerLimits(init=3.0, call=0.8, patience=0.3, retry=1.0, fresh=2.0)
UNKNOWN, LOST = 999, 15
SHIM = """
import subprocess, sys, time
for script in sys.argv[1:]:
    subprocess.Popen(["sh", "-c", script])
print(flush=True)
time.sleep(999)
"""


class Tree:
    """A process in place of a shim, with the processes below it."""

    def __init__(self, *scripts: str) -> None:
        argv = [sys.executable, "-c", SHIM, *(scripts or ("sleep 999",))]
        self._root = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
        assert self._root.stdout is not None
        self._root.stdout.readline()
        self.shim = self._root.pid

    def pids(self) -> list[int]:
        """Return all pids below it, nearest first."""
        found = [self.shim]
        for pid in found:
            found += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return found[1:]

    def pid(self, name: str = "sleep") -> int:
        """Return the pid of the process of that name, as soon as there is one."""

        def named() -> list[int]:
            return [pid for pid in self.pids() if Path(f"/proc/{pid}/comm").read_text().strip() == name]

        return wait_until(named)[0]

    def end(self) -> None:
        """Kill all of it, as when a shim has emptied its tree."""
        for pid in reversed([self.shim, *self.pids()]):
            with suppress(ProcessLookupError):  # the first process of a pid namespace takes the others along
                os.kill(pid, signal.SIGKILL)
        self._root.wait()
        assert self._root.stdout is not None
        self._root.stdout.close()


class Eyes:
    """The GPUs as a scheduler sees them: it collects samples as they arrive, and never waits for them."""

    def __init__(self, box: Box, limits: SamplerLimits = QUICK, dev: Path = Path("/nowhere")) -> None:
        self.box = box
        self.gpus = NvmlDevices(limits=limits, env={**os.environ, **box.env}, dev=dev)
        self.samples: dict[Key, Sample] = {}
        self.attempts: dict[Key, Watched] = {}
        self.troubles: list[str] = []
        self.longest = 0.0

    def watch(
        self, task: int, tree: Tree | int, *devices: int, reservation: int = 8 * GIB, settled: bool = False
    ) -> None:
        reservations = dict.fromkeys((self.box.uuids[device] for device in devices), reservation)
        shim = tree if isinstance(tree, int) else tree.shim
        self.attempts[(task, 1)] = Watched(shim, reservation=reservations, settled=settled)
        self.tell()

    def settle(self, task: int) -> None:
        old = self.attempts[(task, 1)]
        self.attempts[(task, 1)] = Watched(old.shim, reservation=old.reservation, settled=True)
        self.tell()

    def forget(self, task: int) -> None:
        del self.attempts[(task, 1)]
        self.tell()

    def tell(self, *other_shims: int) -> None:
        self.gpus.watch(self.attempts, dict.fromkeys(other_shims, 0))

    def look(self, wait: float = 0.05) -> None:
        """Take in what there is."""
        select.select([self.gpus], [], [], wait)
        began = time.monotonic()
        self.samples.update({(sample.task, sample.attempt): sample for sample in self.gpus.collect()})
        self.gpus.snapshot()
        self.troubles += self.gpus.troubles()
        self.longest = max(self.longest, time.monotonic() - began)

    def until(self, predicate: Callable[[], Any], deadline: float = 30.0) -> Any:
        """Look until it is so."""

        def seen() -> Any:
            self.look()
            return predicate()

        return wait_until(seen, deadline)

    def used(self, task: int, device: int = 0) -> int:
        """Return what an attempt uses; -1 while there was no sample of it."""
        sample = self.samples.get((task, 1))
        return sample.used.get(self.box.uuids[device], -1) if sample else -1

    def peak(self, task: int, device: int = 0) -> int | None:
        return self.samples[(task, 1)].peak.get(self.box.uuids[device])

    def budget(self, device: int) -> DeviceBudget:
        return next(one for one in self.gpus.snapshot() if one.device.key == self.box.uuids[device])

    def unmanaged(self, device: int) -> tuple[UnmanagedUse, ...]:
        return self.budget(device).unmanaged

    def is_open(self, *devices: int) -> bool:
        return not any(self.budget(device).closed for device in devices)

    def looked_at(self, device: int) -> float:
        look = self.gpus._seen[self.box.uuids[device]].look
        return look.at if look else 0.0

    def children(self) -> list[int]:
        assert self.gpus._samplers is not None
        return [group.child._process.pid for group in self.gpus._samplers._groups]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as given:
        yield given


@pytest.fixture
def tree(stack: ExitStack) -> Callable[..., Tree]:
    def make(*scripts: str) -> Tree:
        made = Tree(*scripts)
        stack.callback(lambda: made._root.poll() is None and made.end())
        return made

    return make


@pytest.fixture
def make_box(tmp_path: Path, stack: ExitStack) -> Callable[..., Box]:
    return lambda **said: stack.enter_context(Box(tmp_path / "box", **{"gpus": 3, **said}))


@pytest.fixture
def look_at(stack: ExitStack) -> Iterator[Callable[..., Eyes]]:
    """Yield a function that makes eyes on a box; whatever was wrong with it, nothing may have waited for it."""
    made: list[Eyes] = []

    def make(box: Box, discover: bool = True, expect: bool = False, **said: Any) -> Eyes:
        eyes = Eyes(box, **said)
        if expect:
            eyes.gpus.expect_unread()
        made.append(eyes)
        stack.callback(eyes.gpus.close)
        if discover:
            eyes.gpus.discover()
        return eyes

    yield make
    assert all(eyes.longest < 1.0 for eyes in made)


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box()


@pytest.fixture
def eyes(box: Box, look_at: Callable[..., Eyes]) -> Eyes:
    return look_at(box)


class TestFinding:
    @fault(34)
    def test_gpus_are_found_in_nvmls_order_with_their_uuids(self, make_box: Any, look_at: Any) -> None:
        box = make_box(gpus=2, total=["24GiB", "80GiB"], name=["small", "large"])
        found = look_at(box).gpus.discover()
        assert [(one.key, one.label, one.total, one.model, one.index) for one in found] == [
            (box.uuids[0], "GPU 0", 24 * GIB, "small", 0),
            (box.uuids[1], "GPU 1", 80 * GIB, "large", 1),
        ]

    def test_inventory_has_driver_and_reading_mode(self, eyes: Eyes) -> None:
        node = eyes.gpus.node()
        assert (len(node.gpus), node.reads, node.errors, node.why) == (3, "process", (), "")
        assert node.driver
        assert node.cuda
        assert len({gpu.bus_id for gpu in node.gpus}) == 3

    def test_each_gpu_is_seen_before_the_first_decision(self, eyes: Eyes) -> None:
        assert [one.free for one in eyes.gpus.snapshot()] == [24 * GIB - 300 * MIB] * 3
        assert eyes.is_open(0, 1, 2)

    def test_only_chosen_gpus_are_used_with_their_budgets(self, box: Box, look_at: Any) -> None:
        eyes = look_at(box, discover=False)
        eyes.gpus.use([box.uuids[2]], {box.uuids[2]: 4 * GIB})
        assert [one.label for one in eyes.gpus.discover()] == ["GPU 2"]
        assert [one.cap for one in eyes.gpus.snapshot()] == [4 * GIB]

    def test_prohibited_and_mig_gpus_are_named_and_left_out(self, box: Box, look_at: Any) -> None:
        box.set(0, compute_mode=2)
        box.set(1, mig=1)
        eyes = look_at(box)
        assert [one.label for one in eyes.gpus.discover()] == ["GPU 2"]
        assert [bool(gpu.unusable) for gpu in eyes.gpus.node().gpus] == [True, True, False]
        assert "PROHIBITED" in eyes.gpus.node().gpus[0].unusable

    def test_exclusive_process_gpu_takes_one_task(self, box: Box, look_at: Any) -> None:
        box.set(1, compute_mode=3)
        assert [one.single for one in look_at(box).gpus.discover()] == [False, True, False]

    def test_missing_driver_is_no_fault(self, box: Box) -> None:
        node = NvmlDevices(env={**os.environ, "LD_LIBRARY_PATH": ""}, dev=Path("/nowhere")).node()
        if node.gpus:
            pytest.skip("this machine has GPUs of its own")
        assert "no NVIDIA driver" in node.why
        assert not node.broken

    @fault(42)
    @pytest.mark.parametrize(("code", "word"), [(18, "reboot"), (UNKNOWN, "reboot"), (9, "not loaded")])
    def test_library_that_does_not_come_up_gives_the_reason(self, box: Box, look_at: Any, code: int, word: str) -> None:
        box.set(init_error=code)
        node = look_at(box, discover=False).gpus.node()
        assert word in node.why
        assert node.broken == (code != 9)

    def test_hanging_gpu_is_given_up(self, box: Box, look_at: Any) -> None:
        box.set(init_hang=1)
        eyes = look_at(box, discover=False, limits=SamplerLimits(init=0.5))
        assert "did not start within" in eyes.gpus.node().why
        assert eyes.gpus.node().broken
        with pytest.raises(DeviceError, match="did not start"):
            eyes.gpus.discover()

    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            ({"error": LOST}, "GPU 1 is lost"),
            ({"hang": 1}, "GPU 1 does not answer"),
            ({"crash": signal.SIGSEGV}, "GPU 1 crashes the NVIDIA library"),
            ({"no_memory": 1}, "GPU 1 has no memory of its own"),
        ],
        ids=["lost", "hang", "crash", "unified"],
    )
    def test_failing_gpu_does_not_hide_the_others(self, box: Box, look_at: Any, fault: Any, said: str) -> None:
        box.set(1, **fault)
        eyes = look_at(box)
        assert [one.label for one in eyes.gpus.discover()] == ["GPU 0", "GPU 2"]
        assert [index for index, _ in eyes.gpus.node().errors] == [1]
        assert said in eyes.gpus.node().errors[0][1]
        assert any(said in sentence for sentence in eyes.gpus.troubles())

    def test_package_that_hides_pynvml_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "pynvml").mkdir()
        (tmp_path / "pynvml" / "__init__.py").write_text("raise RuntimeError('the wrong one')")
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        found = find_pynvml()
        assert found.path is not None
        assert found.path.name == "pynvml.py"
        assert "pip uninstall pynvml" in found.hint


@pytest.mark.parametrize("driver", ["615", "470", "450"])
class TestAttribution:
    @pytest.fixture
    def eyes(self, make_box: Any, look_at: Any, driver: str) -> Eyes:
        made: Eyes = look_at(make_box(driver=driver))
        return made

    @contract("S3-D5")
    def test_attempt_uses_what_its_whole_tree_uses(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree("sleep 999 & (cat /dev/zero > /dev/null & tail -f /dev/null)")
        eyes.watch(7, one, 0, 1)
        for name, device in (("sleep", 0), ("tail", 0), ("tail", 1)):
            eyes.box.hold(device, one.pid(name), 2 * GIB)
        eyes.until(lambda: (eyes.used(7, 0), eyes.used(7, 1)) == (4 * GIB, 2 * GIB))
        assert eyes.peak(7) == 4 * GIB
        assert not any(one.unmanaged for one in eyes.gpus.snapshot())

    def test_list_longer_than_its_buffer_is_read_completely(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree("for i in $(seq 150); do sleep 999 & done; wait")
        wait_until(lambda: len(one.pids()) > 150)
        eyes.watch(7, one, 0)
        for pid in one.pids()[1:]:
            eyes.box.hold(0, pid, 100 * MIB)
        eyes.until(lambda: eyes.used(7) == 15000 * MIB)

    def test_free_and_used_memory_are_seen_together(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree()
        eyes.watch(7, one, 0)
        for _ in range(20):
            eyes.box.hold(0, one.pid(), GIB // 2)
            eyes.look()
            free, used = eyes.budget(0).free, max(0, eyes.used(7))
            assert free + used <= 24 * GIB - 300 * MIB
        eyes.until(lambda: eyes.used(7) == 10 * GIB)

    def test_process_in_two_lists_counts_once(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree()
        eyes.watch(7, one, 0)
        kinds = COMPUTE | GRAPHICS | (MPS if eyes.box.driver != "450" else 0)
        eyes.box.hold(0, one.pid(), 2 * GIB, kind=kinds)
        eyes.until(lambda: eyes.used(7) == 2 * GIB)

    def test_attempt_of_another_scheduler_uses_what_its_tree_uses(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree()
        eyes.tell(one.shim)
        eyes.box.hold(2, one.pid(), 3 * GIB)
        eyes.until(lambda: eyes.gpus.used_by(one.shim) == {eyes.box.uuids[2]: 3 * GIB})
        assert not eyes.unmanaged(2)
        assert eyes.gpus.used_by(4711) == {}

    def test_process_that_was_seen_before_its_lease_belongs_to_the_lease_at_once(
        self, eyes: Eyes, tree: Callable[..., Tree]
    ) -> None:
        one, other = tree(), tree()
        eyes.box.hold(2, one.pid(), 3 * GIB)
        eyes.box.hold(2, other.pid(), GIB)
        eyes.until(lambda: len(eyes.unmanaged(2)) == 2)
        eyes.tell(one.shim)
        assert eyes.gpus.used_by(one.shim) == {eyes.box.uuids[2]: 3 * GIB}
        assert [seen.pid for seen in eyes.unmanaged(2)] == [other.pid()]
        eyes.until(lambda: eyes.looked_at(2) and not eyes.look())
        assert eyes.gpus.used_by(one.shim) == {eyes.box.uuids[2]: 3 * GIB}

    @pytest.mark.parametrize(
        ("uid", "seconds", "device", "counts"),
        [(0, 0.0, 0, False), (1, 0.0, 0, True), (0, 60.0, 0, True), (0, 0.0, 1, True)],
        ids=["its lease", "another user's", "a later one", "one on another GPU"],
    )
    def test_process_that_may_belong_to_a_lease_without_a_shim_is_not_unmanaged(
        self, eyes: Eyes, tree: Callable[..., Tree], uid: int, seconds: float, device: int, counts: bool
    ) -> None:
        one = tree()
        began = time.time()
        eyes.box.hold(0, one.pid(), 3 * GIB)
        eyes.until(lambda: eyes.unmanaged(0))
        lease = UnnamedShim(os.getuid() + uid, began + seconds, frozenset({eyes.box.uuids[device]}))
        eyes.gpus.watch({}, {}, frozenset({lease}))
        assert bool(eyes.unmanaged(0)) is counts
        eyes.gpus.watch({}, {})
        assert eyes.unmanaged(0), "it counts once no lease may have it"

    def test_process_without_a_lease_is_unmanaged(self, eyes: Eyes) -> None:
        other = eyes.box.unmanaged(1, "5GiB")
        (seen,) = eyes.until(lambda: eyes.unmanaged(1))
        assert (seen.bytes, seen.pid) == (5 * GIB, other.pid)
        assert seen.user
        assert not eyes.unmanaged(0)


class TestWatching:
    def test_peak_stays_after_a_fall(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree()
        eyes.watch(7, one, 0)
        eyes.box.hold(0, one.pid(), 6 * GIB)
        eyes.until(lambda: eyes.used(7) == 6 * GIB)
        eyes.box.hold(0, one.pid(), -5 * GIB)
        eyes.until(lambda: eyes.used(7) == GIB)
        assert eyes.peak(7) == 6 * GIB
        assert eyes.budget(0).least == 24 * GIB - 300 * MIB - 6 * GIB

    def test_accounting_gives_peaks_that_no_look_saw(self, make_box: Any, look_at: Any, tree: Any) -> None:
        box = make_box(gpus=1)
        box.set(accounting=1)
        eyes = look_at(box)
        one = tree()
        eyes.watch(7, one, 0, settled=True)
        box.hold(0, one.pid(), 9 * GIB)
        box.hold(0, one.pid(), -8 * GIB)
        eyes.until(lambda: eyes.samples and eyes.peak(7) == 9 * GIB)

    def test_orphans_stay_attributed_to_their_attempt(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree("sleep 999; true")
        pid, parent = one.pid(), one.pid("sh")
        eyes.watch(7, one, 0)
        eyes.box.hold(0, pid, 2 * GIB)
        eyes.until(lambda: eyes.used(7) == 2 * GIB)
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: pid not in one.pids())
        eyes.box.hold(0, pid, GIB)
        try:
            eyes.until(lambda: eyes.used(7) == 3 * GIB)
        finally:
            os.kill(pid, signal.SIGKILL)

    def test_load_of_an_attempt_is_measured(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one, two = tree(), tree()
        eyes.watch(7, one, 0)
        eyes.watch(8, two, 0, settled=True)
        eyes.box.hold(0, one.pid(), GIB, busy=0.5)
        eyes.box.hold(0, two.pid(), GIB, busy=0.2)
        busy = eyes.until(lambda: eyes.samples.get((7, 1)) and eyes.samples[(7, 1)].busy.get(eyes.box.uuids[0]))
        assert busy == pytest.approx(0.5, abs=0.05)
        assert eyes.budget(0).busy == pytest.approx(0.7, abs=0.05)
        assert eyes.samples[(7, 1)].whole == {eyes.box.uuids[0]: pytest.approx(0.7, abs=0.05)}

    def test_task_on_a_gpu_that_it_was_not_given_is_named(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree()
        eyes.watch(7, one, 0)
        eyes.box.hold(2, one.pid(), GIB)
        eyes.until(lambda: any("task 7" in said and "GPU 2" in said for said in eyes.troubles))
        assert not eyes.unmanaged(2)


IN_OUTER_PROC = """
import subprocess, sys, time
from scheduler.devices.gpu.process_owner import ProcessOwners, pids_outside_in
task = subprocess.Popen(["sh", "-c", "sleep 999; true"])
owners = ProcessOwners()
owners.order({task.pid: "7.1"})
(shim,) = owners.roots
assert shim != task.pid and pids_outside_in(shim)[-1] == task.pid
while not (children := open(f"/proc/{shim}/task/{shim}/children").read().split()):
    time.sleep(0.01)
print(owners.of([int(children[0])])[int(children[0])][0])
"""


@pytest.fixture
def namespaces() -> None:
    shown = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False)
    if shown.returncode:
        pytest.skip(f"no pid namespace can be made here: {shown.stderr.decode()}")


@pytest.mark.usefixtures("namespaces")
class TestPidNamespaces:
    def test_task_in_a_pid_namespace_is_attributed(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree("exec unshare --pid --fork --mount-proc sh -c 'sleep 999; true'")
        eyes.watch(7, one, 0)
        eyes.box.hold(0, one.pid(), 2 * GIB)
        eyes.until(lambda: eyes.used(7) == 2 * GIB)

    def test_pid_of_an_inner_namespace_is_attributed(self, tree: Callable[..., Tree]) -> None:
        inner = 3_999_999
        script = f"echo {inner - 1} > /proc/sys/kernel/ns_last_pid; sleep 999; true"
        one = tree(f"exec unshare --pid --fork --mount-proc sh -c '{script}'")
        outer = one.pid()
        if pids_outside_in(outer)[-1] != inner:
            pytest.skip("pids cannot be chosen here")
        owners = ProcessOwners()
        owners.order({one.shim: "7.1"})
        assert owners.of([inner]) == {inner: ["7.1", 0.0, -1]}
        assert owners.of([inner + 1]) == {}

    def test_own_pids_are_translated_where_proc_is_of_an_outer_namespace(self) -> None:
        command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", IN_OUTER_PROC]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
        assert (done.stdout, done.stderr) == ("7.1\n", "")


class TestUnmanagedProcesses:
    def test_calm_begins_again_when_an_unmanaged_process_grows(self, eyes: Eyes) -> None:
        other = eyes.box.unmanaged(0, "2GiB")
        eyes.until(lambda: eyes.unmanaged(0) and eyes.unmanaged(0)[0].calm > 1.5)
        other.resize("2080MiB")
        eyes.until(lambda: eyes.unmanaged(0)[0].bytes == 2080 * MIB)
        assert eyes.unmanaged(0)[0].calm > 1.5
        other.resize("3GiB")
        eyes.until(lambda: eyes.unmanaged(0)[0].bytes == 3 * GIB)
        assert eyes.unmanaged(0)[0].calm < 1.5

    def test_unmanaged_process_from_before_the_run_has_its_own_age(self, box: Box, look_at: Any) -> None:
        box.hold(0, os.getpid(), GIB)
        (seen,) = look_at(box).unmanaged(0)
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        assert seen.calm == pytest.approx(uptime - started, abs=1.0)
        box.hold(0, os.getpid(), -GIB)

    def test_memory_given_back_by_an_unmanaged_process_is_free(self, eyes: Eyes) -> None:
        other = eyes.box.unmanaged(0, "10GiB")
        eyes.until(lambda: eyes.unmanaged(0))
        other.close()
        eyes.until(lambda: not eyes.unmanaged(0) and eyes.budget(0).free == 24 * GIB - 300 * MIB, 2.0)


@pytest.mark.parametrize("switch", ["memory_na", "hidden", "host_pids"])
class TestDeviceLevel:
    """Devices whose memory cannot be attributed to processes."""

    @pytest.fixture
    def eyes(self, box: Box, look_at: Any, switch: str) -> Eyes:
        box.set(**{switch: 1})
        made: Eyes = look_at(box)
        return made

    def test_unknown_attempt_gets_the_rise(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        one = tree()
        eyes.watch(7, one, 0)
        eyes.box.hold(0, one.pid(), 3 * GIB)
        eyes.until(lambda: eyes.used(7) == 3 * GIB)
        assert eyes.peak(7) == 3 * GIB
        assert eyes.gpus.reads(eyes.box.uuids[0]) == "device"
        assert not eyes.unmanaged(0)

    def test_known_attempts_get_their_reservation_and_teach_nothing(self, eyes: Eyes, tree: Any) -> None:
        one, two = tree(), tree()
        eyes.watch(7, one, 0, reservation=4 * GIB, settled=True)
        eyes.watch(8, two, 0, reservation=4 * GIB, settled=True)
        eyes.box.hold(0, one.pid(), 3 * GIB)
        eyes.box.hold(0, two.pid(), 2 * GIB)
        eyes.until(lambda: eyes.used(7) + eyes.used(8) == 5 * GIB)
        assert eyes.used(7) == 4 * GIB
        assert eyes.peak(7) is None
        assert eyes.peak(8) is None

    def test_memory_from_before_the_run_is_unmanaged(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        eyes.box.unmanaged(0, "6GiB")
        eyes.until(lambda: eyes.unmanaged(0) and eyes.unmanaged(0)[0].bytes == 6 * GIB)
        one = tree()
        eyes.watch(7, one, 0)
        eyes.box.hold(0, one.pid(), 3 * GIB)
        eyes.until(lambda: eyes.used(7) == 3 * GIB)
        assert [(seen.bytes, seen.pid) for seen in eyes.unmanaged(0)] == [(6 * GIB, 0)]

    @fault(35)
    def test_memory_of_an_ended_attempt_is_unreclaimed_until_it_is_free(
        self, eyes: Eyes, tree: Callable[..., Tree]
    ) -> None:
        one = tree()
        eyes.box.set(linger=2000)
        eyes.watch(7, one, 0)
        eyes.box.hold(0, one.pid(), 3 * GIB)
        eyes.until(lambda: eyes.used(7) == 3 * GIB)
        one.end()
        eyes.forget(7)
        eyes.until(lambda: eyes.budget(0).unreclaimed == 3 * GIB)
        assert not eyes.unmanaged(0)
        eyes.until(lambda: eyes.budget(0).unreclaimed == 0 and eyes.budget(0).free == 24 * GIB - 300 * MIB)


class TestUnreclaimedMemory:
    @pytest.mark.parametrize("listed", [0, 1])
    def test_memory_of_an_ended_process_stays_attributed_until_it_is_free(
        self, eyes: Eyes, tree: Any, listed: int
    ) -> None:
        eyes.box.set(linger=60_000, linger_listed=listed)
        one, two = tree(), tree()
        eyes.watch(7, one, 0)
        eyes.watch(8, two, 0)
        eyes.box.hold(0, one.pid(), 3 * GIB)
        eyes.box.hold(0, two.pid(), 1 * GIB)
        eyes.until(lambda: (eyes.used(7), eyes.used(8)) == (3 * GIB, GIB))
        one.end()
        eyes.forget(7)
        eyes.until(lambda: eyes.budget(0).unreclaimed == 3 * GIB)
        assert (eyes.used(8), eyes.unmanaged(0)) == (GIB, ())
        assert eyes.gpus.reads(eyes.box.uuids[0]) == "process"
        eyes.box.set(linger=0)
        eyes.until(lambda: eyes.budget(0).unreclaimed == 0)
        free = 24 * GIB - 300 * MIB - GIB
        assert eyes.budget(0).free in (free - 3 * GIB, free), "a look within which it got free has the lower value"
        eyes.until(lambda: eyes.budget(0).free == free, 5.0)

    @fault(35)
    def test_lasting_unreclaimed_memory_is_named(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        eyes.box.set(linger=60_000)
        one = tree()
        eyes.watch(7, one, 0)
        eyes.box.hold(0, one.pid(), 3 * GIB)
        eyes.until(lambda: eyes.used(7) == 3 * GIB)
        one.end()
        eyes.forget(7)
        eyes.until(lambda: any("GPU 0 still holds 3.0GiB of task 7" in said for said in eyes.troubles))


class TestContainers:
    """Containers: the client of a container is the task, and a daemon outside of its tree starts the rest."""

    @pytest.fixture
    def docker(self, tmp_path: Path) -> str:
        shutil.copy(shutil.which("sleep") or "", tmp_path / "docker")
        return str(tmp_path / "docker")

    def test_memory_of_a_container_is_its_tasks(self, eyes: Eyes, tree: Callable[..., Tree], docker: str) -> None:
        eyes.box.unmanaged(0, "2GiB")
        eyes.until(lambda: eyes.unmanaged(0))
        one = tree(f"{docker} 999")
        eyes.watch(7, one, 0)
        container = eyes.box.unmanaged(0, "3GiB")
        eyes.until(lambda: eyes.used(7) == 3 * GIB)
        assert eyes.peak(7) == 3 * GIB
        assert [seen.bytes for seen in eyes.unmanaged(0)] == [2 * GIB]
        one.end()
        eyes.forget(7)
        eyes.until(lambda: eyes.budget(0).unreclaimed == 3 * GIB)
        eyes.until(lambda: any("task 7" in said for said in eyes.troubles))
        container.close()
        eyes.box.set(linger=0)
        eyes.until(lambda: eyes.budget(0).unreclaimed == 0)
        assert [seen.bytes for seen in eyes.unmanaged(0)] == [2 * GIB]


class TestFaults:
    """Faults of one GPU; the others are seen as before, and nothing waits."""

    @pytest.fixture
    def eyes(self, box: Box, look_at: Any, tree: Any) -> Eyes:
        made: Eyes = look_at(box)
        one = tree()
        made.watch(7, one, 0)
        made.box.hold(0, one.pid(), GIB)
        made.until(lambda: made.used(7) == GIB)
        return made

    def oldest(self, eyes: Eyes, *devices: int) -> float:
        return max(time.monotonic() - eyes.looked_at(device) for device in devices)

    @fault(31, 32, 33)
    @pytest.mark.parametrize(
        ("fault", "well", "said"),
        [
            ({"error": LOST}, {"error": 0}, "is lost"),
            ({"error": UNKNOWN}, {"error": 0}, "UNKNOWN, error 999"),
            ({"hang": 1}, {"hang": 0}, "does not answer: nvmlDeviceGet"),
            ({"crash": signal.SIGSEGV}, {"crash": 0}, "crashes the NVIDIA library (SIGSEGV in nvmlDeviceGet"),
        ],
        ids=["lost", "unknown", "hang", "crash"],
    )
    def test_failing_gpu_is_closed_and_comes_back(self, eyes: Eyes, fault: Any, well: Any, said: str) -> None:
        eyes.box.set(1, **fault)
        ages: list[float] = []

        def closed() -> str:
            ages.append(self.oldest(eyes, 0, 2))
            return eyes.budget(1).closed if said in eyes.budget(1).closed else ""

        eyes.until(closed)
        assert max(ages) < 1.5
        assert eyes.is_open(0, 2)
        assert any(sentence.startswith("GPU 1 ") and said in sentence for sentence in eyes.troubles)
        since = time.monotonic()
        eyes.until(lambda: min(eyes.looked_at(0), eyes.looked_at(2)) > since)
        eyes.box.set(1, **well)
        eyes.until(lambda: eyes.is_open(0, 1, 2) and "GPU 1 answers again" in eyes.troubles)
        eyes.until(lambda: len(eyes.children()) == 1)
        since = time.monotonic()
        eyes.until(lambda: min(map(eyes.looked_at, range(3))) > since)
        assert eyes.used(7) == GIB

    def test_gpu_that_keeps_failing_is_reported_once(self, eyes: Eyes) -> None:
        eyes.box.set(1, error=LOST)
        eyes.until(lambda: eyes.budget(1).closed)
        tries = set(eyes.children())
        eyes.until(lambda: tries.update(eyes.children()) or len(tries) > 2)
        assert len([said for said in eyes.troubles if "GPU 1" in said]) == 1

    @fault(34)
    def test_slow_gpu_does_not_delay_the_others(self, eyes: Eyes) -> None:
        eyes.box.set(1, slow=250)
        ages: list[float] = []
        since = time.monotonic()

        def seen_twice() -> bool:
            ages.append(self.oldest(eyes, 0, 2))
            return len(eyes.children()) == 2 and eyes.looked_at(1) > since + 3

        eyes.until(seen_twice)
        assert max(ages) < 1.5
        assert not eyes.troubles
        eyes.box.set(1, slow=0)
        eyes.until(lambda: len(eyes.children()) == 1)

    def test_killed_sampler_is_started_again(self, eyes: Eyes) -> None:
        (child,) = eyes.children()
        os.kill(child, signal.SIGKILL)
        since = time.monotonic()
        eyes.until(lambda: min(map(eyes.looked_at, range(3))) > since)
        assert eyes.is_open(0, 1, 2)
        assert not eyes.troubles

    def test_sampler_that_is_killed_repeatedly_is_given_up_for_a_while(self, eyes: Eyes) -> None:
        def kill() -> str:
            for child in eyes.children():
                os.kill(child, signal.SIGKILL)
            return eyes.budget(0).closed

        assert "keeps exiting (SIGKILL)" in eyes.until(kill)
        eyes.until(lambda: eyes.is_open(0, 1, 2))

    @pytest.mark.parametrize(
        "how", [{"error": LOST}, {"hang": 1}, {"crash": signal.SIGSEGV}], ids=lambda how: next(iter(how))
    )
    def test_gpu_that_cannot_be_read_at_first_is_closed_and_joins_once_it_answers(
        self, box: Box, look_at: Any, how: dict[str, int]
    ) -> None:
        box.set(1, **how)
        eyes = look_at(box, expect=True)
        assert {device.label for device in eyes.gpus.discover()} == {"GPU 0", "GPU 1", "GPU 2"}
        assert eyes.budget(0).closed == eyes.budget(2).closed == ""
        assert any(b.closed and b.device.label == "GPU 1" for b in eyes.gpus.snapshot())
        box.set(1, **dict.fromkeys(how, 0))
        eyes.until(lambda: {b.device.key for b in eyes.gpus.snapshot()} == set(box.uuids))
        eyes.until(lambda: eyes.is_open(0, 1, 2))
        assert "GPU 1 has joined" in "".join(eyes.troubles)
        eyes.until(lambda: len(eyes.children()) == 1)

    @fault(31)
    def test_gpus_that_hang_at_once_come_back(self, eyes: Eyes) -> None:
        eyes.box.set(hang=1)
        eyes.until(lambda: all(eyes.budget(device).closed for device in range(3)))
        eyes.box.set(hang=0)
        eyes.until(lambda: eyes.is_open(0, 1, 2), 15.0)

    @fault(31)
    def test_library_that_hangs_when_started_again_is_given_up(self, eyes: Eyes) -> None:
        eyes.box.set(init_hang=1)
        (child,) = eyes.children()
        os.kill(child, signal.SIGKILL)
        eyes.until(lambda: "did not start" in eyes.budget(0).closed)
        eyes.box.set(init_hang=0)
        eyes.until(lambda: eyes.is_open(0, 1, 2))
        eyes.until(lambda: len(eyes.children()) == 1)

    @fault(42)
    def test_replaced_driver_closes_the_gpus_until_the_library_fits(self, eyes: Eyes) -> None:
        """18 is what NVML says where the library and the driver are of two versions."""
        eyes.box.set(error=18, init_error=18)
        eyes.until(lambda: all("VERSION_MISMATCH" in eyes.budget(device).closed for device in range(3)))
        eyes.box.set(error=0, init_error=0)
        eyes.until(lambda: eyes.is_open(0, 1, 2), 30.0)

    @fault(34)
    def test_gpu_not_seen_for_long_is_closed(self, box: Box, look_at: Any) -> None:
        eyes = look_at(box, limits=SamplerLimits(call=60.0, patience=60.0, fresh=1.5))
        (child,) = eyes.children()
        os.kill(child, signal.SIGSTOP)
        assert "has not been seen for" in eyes.until(lambda: eyes.budget(2).closed)
        os.kill(child, signal.SIGCONT)
        eyes.until(lambda: eyes.is_open(0, 1, 2))

    @fault(85)
    def test_sampler_that_is_stopped_is_replaced_and_no_gpu_is_blamed(self, eyes: Eyes) -> None:
        (stopped,) = eyes.children()
        os.kill(stopped, signal.SIGSTOP)
        eyes.until(lambda: eyes.children() != [stopped])
        eyes.until(lambda: eyes.is_open(0, 1, 2))
        assert len(eyes.troubles) == 1
        assert "did not answer for 0.8 s, though it waits for no call of the NVIDIA library" in eyes.troubles[0]

    def test_hanging_sampler_ends_with_its_scheduler(self, eyes: Eyes) -> None:
        eyes.box.set(hang=1)
        (child,) = eyes.children()
        assert eyes.gpus._samplers is not None
        group = eyes.gpus._samplers._groups[0]
        wait_until(group.child.call)
        assert group.child._process.stdin is not None
        group.child._process.stdin.close()
        wait_until(lambda: group.child.code() is not None)
        assert child == group.child._process.pid


class TestCriticalErrors:
    @pytest.mark.parametrize(
        ("xid", "what"), [(79, "it has fallen off the bus"), (48, "an uncorrectable memory error")]
    )
    def test_gpu_with_a_fatal_error_is_drained_for_good(self, box: Box, look_at: Any, xid: int, what: str) -> None:
        eyes = look_at(box)
        box.set(1, xid=xid)
        eyes.until(lambda: eyes.budget(1).closed)
        assert eyes.budget(1).closed.startswith(f"reported XID {xid} ({what}), so it needs a reset: ")
        end = time.monotonic() + 2 * QUICK.retry
        eyes.until(lambda: time.monotonic() > end)
        assert eyes.budget(1).closed
        assert eyes.is_open(0, 2)
        (said,) = [sentence for sentence in eyes.troubles if "XID" in sentence]
        assert said.endswith("no task of this run starts there any more")

    def test_error_of_a_program_and_one_from_before_the_run_close_nothing(self, box: Box, look_at: Any) -> None:
        box.set(0, xid=79)
        eyes = look_at(box)
        box.set(1, xid=31)
        came = time.monotonic()
        eyes.until(lambda: all(eyes.looked_at(device) > came + 1.5 for device in (0, 1, 2)))
        assert eyes.is_open(0, 1, 2)


class TestCost:
    def test_sampler_costs_a_few_percent_of_a_core_at_most(self, eyes: Eyes, tree: Callable[..., Tree]) -> None:
        trees = [tree() for _ in range(10)]
        for number, one in enumerate(trees):
            eyes.watch(number, one, number % 3)
            eyes.box.hold(number % 3, one.pid(), GIB)
        eyes.until(lambda: all(eyes.used(number, number % 3) == GIB for number in range(10)))
        (child,) = eyes.children()

        def spent() -> float:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before, began = spent(), time.monotonic()
        eyes.until(lambda: time.monotonic() > began + 3)
        assert (spent() - before) / (time.monotonic() - began) < 0.05
