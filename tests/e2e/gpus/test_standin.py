"""The stand-in behaves as NVIDIA's driver does: NVML, CUDA's numbering and the faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.units import parse_size
from tests.support.killing import state_of
from tests.support.standin import client
from tests.support.standin.box import GPU_IS_LOST, NO_COMPILER, TRAIN, Box, build
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(build() is None, reason=NO_COMPILER)]

GIB = 1 << 30

NVML = """
import json, sys, time
import pynvml as n

def device(i):
    return n.nvmlDeviceGetHandleByIndex(i)

def sizes(processes):
    return [[p.pid, p.usedGpuMemory] for p in processes]

def memory(i, *version):
    info = n.nvmlDeviceGetMemoryInfo(device(i), *version)
    return {name: getattr(info, name) for name, _ in info._fields_ if name != "version"}

def timed(call):
    start = time.monotonic()
    call()
    return time.monotonic() - start

def answer(question):
    try:
        return eval(question)
    except n.NVMLError as error:
        return f"error {error.value}"
    except n.NVMLLibraryMismatchError:
        return "error mismatch"

if sys.argv[1] == "init":
    n.nvmlInit()
for question in sys.argv[2:]:
    print(json.dumps(answer(question)), flush=True)
"""


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    """Yield a function that makes machines; end everything that they started."""
    made: list[Box] = []

    def make(**said: Any) -> Box:
        made.append(Box(tmp_path / str(len(made)), **{"gpus": 2, **said}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def box(boxes: Callable[..., Box]) -> Box:
    return boxes()


def start(box: Box, *argv: str | Path, **env: str) -> subprocess.Popen[str]:
    everything = {**os.environ, **box.env, **env}
    return subprocess.Popen(argv, env=everything, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(box: Box, *argv: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    started = start(box, *argv, **env)
    out, err = started.communicate(timeout=30)
    return subprocess.CompletedProcess(argv, started.returncode, out, err)


def nvml(box: Box, *questions: str, init: bool = True) -> list[Any]:
    """Return the answers of an unmodified nvidia-ml-py to Python expressions, errors of NVML as `error <code>`."""
    done = run(box, sys.executable, "-c", NVML, "init" if init else "not yet", *questions)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def answer(box: Box, question: str, init: bool = True) -> Any:
    return nvml(box, question, init=init)[0]


def train(box: Box, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run(box, sys.executable, "-S", "-E", TRAIN, *options, **env)


LISTED = "sizes(n.nvmlDeviceGetComputeRunningProcesses(device(0)))"


# ---- devices ----


def test_nvml_shows_the_devices_as_they_were_made(boxes: Callable[..., Box]) -> None:
    box = boxes(gpus=3, name=["One", "Two", "Three"], pci_order=[2, 0, 1])
    names, uuids, buses, capability = nvml(
        box,
        "[n.nvmlDeviceGetName(device(i)) for i in range(n.nvmlDeviceGetCount())]",
        "[n.nvmlDeviceGetUUID(device(i)) for i in range(3)]",
        "[n.nvmlDeviceGetPciInfo(device(i)).busId for i in range(3)]",
        "n.nvmlDeviceGetCudaComputeCapability(device(0))",
    )
    assert names == ["One", "Two", "Three"]
    assert uuids == box.uuids
    assert buses == ["00000000:11:00.0", "00000000:21:00.0", "00000000:01:00.0"]
    assert capability == [8, 9]


def test_a_device_is_found_by_uuid_and_by_bus(box: Box) -> None:
    assert nvml(
        box,
        f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(b'{box.uuids[1]}'))",
        "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(b'0000:11:00.0'))",
        "n.nvmlDeviceGetHandleByUUID(b'GPU-none')",
        "device(2)",
    ) == [1, 1, "error 6", "error 2"]


def test_before_init_and_without_a_driver_calls_are_refused(box: Box) -> None:
    assert answer(box, "n.nvmlDeviceGetCount()", init=False) == "error 1"
    without = {**os.environ, **box.env}
    del without["STANDIN_GPUS"]
    argv = [sys.executable, "-c", NVML, "not yet", "n.nvmlInit()"]
    assert "error 9" in subprocess.run(argv, env=without, capture_output=True, text=True, check=True).stdout


def test_reserved_memory_is_used_in_the_first_version_and_apart_in_the_second(box: Box) -> None:
    box.unmanaged(0, "3GiB")
    first, second = nvml(box, "memory(0)", "memory(0, n.nvmlMemory_v2)")
    reserved, total = 300 << 20, 24 * GIB
    assert first == {"total": total, "free": total - reserved - 3 * GIB, "used": reserved + 3 * GIB}
    assert second == {"total": total, "reserved": reserved, "free": first["free"], "used": 3 * GIB}


# ---- processes ----


@pytest.mark.parametrize(
    ("kind", "lists"),
    [
        (client.COMPUTE, ["Compute"]),
        (client.GRAPHICS, ["Graphics"]),
        (client.COMPUTE | client.GRAPHICS, ["Compute", "Graphics"]),
        (client.COMPUTE | client.MPS, ["Compute", "MPSCompute"]),
    ],
)
def test_a_process_is_in_the_lists_of_its_kind(box: Box, kind: int, lists: list[str]) -> None:
    pid = box.unmanaged(1, "2GiB", kind=kind).pid
    every = [f"{name}RunningProcesses_{v}" for name in ("Compute", "Graphics", "MPSCompute") for v in ("v2", "v3")]
    answers = zip(every, nvml(box, *(f"sizes(n.nvmlDeviceGet{name}(device(1)))" for name in every)), strict=True)
    assert {name.partition("Running")[0] for name, seen in answers if seen == [[pid, 2 * GIB]]} == set(lists)


def test_a_list_asks_for_a_larger_buffer_until_it_fits(box: Box) -> None:
    for _ in range(3):
        box.unmanaged(0, "1GiB")
    call = "n._nvmlGetFunctionPointer('nvmlDeviceGetComputeRunningProcesses_v3')"
    ask = "(lambda room, out: [{call}(device({i}), n.byref(room), out), room.value])(n.c_uint({room}), {out})"
    array = "(n.c_nvmlProcessInfo_v3_t * 5)()"
    assert nvml(
        box,
        ask.format(call=call, i=0, room=0, out=None),
        ask.format(call=call, i=0, room=2, out=array),
        ask.format(call=call, i=0, room=5, out=array),
        ask.format(call=call, i=1, room=0, out=None),
    ) == [[7, 3], [7, 3], [0, 3], [0, 0]]


def test_memory_of_a_killed_process_is_free_before_it_is_reaped(box: Box) -> None:
    process = start(box, sys.executable, "-S", "-E", TRAIN, "--peak", "4GiB", "--profile", "flat", "--seconds", "60")
    wait_until(lambda: box.used(0) == 4 * GIB)
    process.kill()
    wait_until(lambda: state_of(process.pid) == "Z")
    assert nvml(box, LISTED, "memory(0)['used']") == [[], 300 << 20]
    process.communicate()


def test_process_of_another_user_grows_shrinks_and_ends(box: Box) -> None:
    with box.unmanaged(0, "6GiB") as unmanaged:
        unmanaged.resize("8GiB")
        assert answer(box, LISTED) == [[unmanaged.pid, 8 * GIB]]
        unmanaged.resize("1GiB")
        assert (box.used(0), box.peak_used(0)) == (GIB, 8 * GIB)
    assert box.processes(0) == []


def test_any_process_can_be_made_to_hold_memory(box: Box) -> None:
    box.hold(0, os.getpid(), "2GiB", busy=0.5)
    assert answer(box, LISTED) == [[os.getpid(), 2 * GIB]]
    assert [(one.size, one.busy) for one in box.processes(0)] == [(2 * GIB, 0.5)]


def test_utilisation_is_given_until_there_is_no_newer_sample(box: Box) -> None:
    pid = box.unmanaged(0, "1GiB", busy=0.3).pid
    box.unmanaged(0, "1GiB")
    assert nvml(
        box,
        "n.nvmlDeviceGetUtilizationRates(device(0)).gpu",
        "[[s.pid, s.smUtil] for s in n.nvmlDeviceGetProcessUtilization(device(0), 0)]",
        "n.nvmlDeviceGetProcessUtilization(device(0), int(time.time() * 1e6) + 10**6)",
        "n.nvmlDeviceGetProcessUtilization(device(1), 0)",
    ) == [30, [[pid, 30]], "error 6", "error 6"]


def test_an_overloaded_device_is_shared_by_the_load_of_each_process(box: Box) -> None:
    wants = {box.unmanaged(0, "1GiB", busy=share).pid: share for share in (0.5, 1.0)}
    rate, shares = nvml(
        box,
        "n.nvmlDeviceGetUtilizationRates(device(0)).gpu",
        "{s.pid: s.smUtil for s in n.nvmlDeviceGetProcessUtilization(device(0), 0)}",
    )
    assert rate == 100
    assert {int(pid): percent for pid, percent in shares.items()} == {p: round(w / 0.015) for p, w in wants.items()}


def test_process_killed_in_mid_call_blocks_no_other(box: Box) -> None:
    look = f"import sys; sys.path.insert(0, {str(TRAIN.parent)!r}); import client; g = client.Cuda()\n"
    for _ in range(5):
        process = start(box, sys.executable, "-S", "-c", look + "while 1: g.allocate(0, 4096); g.available(0)")
        wait_until(lambda: box.used(0))
        process.kill()
        process.communicate()
        assert box.used(0) == 0


# ---- switches ----


def test_a_lost_device_is_counted_and_answers_nothing_while_the_others_do(box: Box) -> None:
    box.set(1, error=GPU_IS_LOST)
    assert nvml(
        box,
        "n.nvmlDeviceGetCount()",
        "device(1)",
        "memory(0)['total']",
        f"n.nvmlDeviceGetHandleByUUID(b'{box.uuids[0]}')",
    ) == [2, "error 15", 24 * GIB, "error 15"]


def test_a_device_fails_with_any_code_until_it_is_reset(box: Box) -> None:
    box.set(0, error=4)
    assert nvml(box, "device(0)", f"device(1) and n.nvmlDeviceGetHandleByUUID(b'{box.uuids[1]}') and 1") == [
        "error 4",
        1,
    ]
    box.set(0, error=0)
    assert answer(box, LISTED) == []


def test_slow_calls_take_their_time_on_one_device(box: Box) -> None:
    box.set(1, slow=150)
    quick, slow = nvml(box, "timed(lambda: device(0))", "timed(lambda: device(1))")
    assert quick < 0.1 < slow


def test_calls_hang_on_one_device_until_released(box: Box) -> None:
    box.set(1, hang=1)
    process = start(box, sys.executable, "-c", NVML, "init", "memory(0)['total']", "memory(1)['total']")
    assert process.stdout is not None
    assert process.stdout.readline() == f"{24 * GIB}\n"
    assert process.poll() is None
    box.set(1, hang=0)
    assert process.communicate(timeout=10)[0] == f"{24 * GIB}\n"


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGABRT])
def test_the_library_crashes_on_one_device(box: Box, how: signal.Signals) -> None:
    box.set(1, crash=how)
    done = run(box, sys.executable, "-c", NVML, "init", "memory(0)['total']", "memory(1)")
    assert (done.returncode, done.stdout) == (-how, f"{24 * GIB}\n")


def test_memory_per_process_can_be_unknown(box: Box) -> None:
    pid = box.unmanaged(0, "2GiB").pid
    box.set(memory_na=1)
    assert nvml(box, LISTED, "memory(0)['used']") == [[[pid, None]], 2 * GIB + (300 << 20)]


def test_processes_can_be_hidden_though_memory_is_used(box: Box) -> None:
    box.unmanaged(0, "2GiB")
    box.set(hidden=1)
    assert nvml(box, LISTED, "memory(0)['used']") == [[], 2 * GIB + (300 << 20)]


def test_pids_can_be_those_of_the_host(box: Box) -> None:
    pid = box.unmanaged(0, "2GiB", busy=0.2).pid + 1_000_000
    box.set(host_pids=1, accounting=1)
    assert nvml(
        box,
        LISTED,
        "[s.pid for s in n.nvmlDeviceGetProcessUtilization(device(0), 0)]",
        f"n.nvmlSystemGetProcessName({pid})",
    ) == [[[pid, 2 * GIB]], [pid], "error 6"]


@pytest.mark.parametrize("listed", [0, 1])
def test_memory_lingers_after_the_end_of_a_process(box: Box, listed: int) -> None:
    box.set(0, linger=60_000, linger_listed=listed)
    unmanaged = box.unmanaged(0, "2GiB", busy=0.5)
    unmanaged.close()
    seen = [[unmanaged.pid, 2 * GIB]] if listed else []
    assert nvml(box, LISTED, "memory(0)['used']") == [seen, 2 * GIB + (300 << 20)]
    assert [(one.size, one.busy, one.dead) for one in box.processes(0)] == [(2 * GIB, 0, True)]
    box.set(0, linger=0)
    assert box.used(0) == 0


def test_a_device_may_support_neither_its_memory_nor_utilisation_per_process(box: Box) -> None:
    box.unmanaged(0, "1GiB", busy=0.5)
    box.set(0, no_memory=1, no_utilization=1)
    assert nvml(box, "memory(0)", "n.nvmlDeviceGetProcessUtilization(device(0), 0)") == ["error 3", "error 3"]


def test_accounting_knows_the_peak_during_and_after_life(box: Box) -> None:
    peak = "(lambda s: [s.maxMemoryUsage, s.isRunning])(n.nvmlDeviceGetAccountingStats(device(0), {pid}))"
    pids = "n.nvmlDeviceGetAccountingPids(device(0))"
    assert nvml(box, "n.nvmlDeviceGetAccountingMode(device(0))", pids) == [0, "error 3"]
    box.set(accounting=1)
    with box.unmanaged(0, "4GiB") as unmanaged:
        unmanaged.resize("1GiB")
        assert nvml(box, pids, peak.format(pid=unmanaged.pid)) == [[unmanaged.pid], [4 * GIB, 1]]
    assert nvml(box, pids, peak.format(pid=unmanaged.pid)) == [[unmanaged.pid], [4 * GIB, 0]]
    assert answer(box, peak.format(pid=1)) == "error 6"


def test_modes_are_reported_as_set(box: Box) -> None:
    modes = [
        "n.nvmlDeviceGetMigMode(device(0))",
        "n.nvmlDeviceGetComputeMode(device(0))",
        "n.nvmlDeviceGetPersistenceMode(device(0))",
        "n.nvmlDeviceGetUtilizationRates(device(0)).gpu",
    ]
    assert nvml(box, *modes) == [[0, 0], 0, 0, 0]
    box.set(mig=1, compute_mode=3, persistence=1)
    assert nvml(box, *modes) == [[1, 1], 3, 1, "error 3"]
    box.set(mig=-1)
    assert answer(box, modes[0]) == "error 3"


@pytest.mark.parametrize("code", [9, 18, 999])
def test_init_fails_with_a_chosen_code(box: Box, code: int) -> None:
    box.set(init_error=code)
    assert nvml(box, "n.nvmlInit()", "n.nvmlDeviceGetCount()", init=False) == [f"error {code}", "error 1"]


def test_init_hangs_until_released(box: Box) -> None:
    box.set(init_hang=1)
    process = start(box, sys.executable, "-c", NVML, "not yet", "1", "n.nvmlInit()")
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    box.set(init_hang=0)
    assert process.wait(10) == 0
    process.communicate()


def test_unknown_switch_is_refused(box: Box) -> None:
    with pytest.raises(ValueError, match="'hangs'"):
        box.set(hangs=1)


@pytest.mark.parametrize(
    ("driver", "third", "second"),
    [("615", True, True), ("470", False, True), ("450", False, False)],
)
def test_an_old_driver_lacks_the_newer_calls(boxes: Callable[..., Box], driver: str, third: bool, second: bool) -> None:
    box = boxes(driver=driver)
    pid = box.unmanaged(0, "2GiB").pid
    seen = [[pid, 2 * GIB]]
    assert nvml(
        box,
        LISTED,
        "sizes(n.nvmlDeviceGetComputeRunningProcesses_v2(device(0)))",
        "memory(0, n.nvmlMemory_v2)['used']",
        "memory(0)['used']",
    ) == [
        seen if third else "error mismatch",
        seen if second else "error 13",
        2 * GIB if third else "error 13",
        2 * GIB + (300 << 20),
    ]


# ---- what CUDA shows a process ----


@pytest.mark.parametrize("said", [None, "", "2,0", "1,1", "0,x,1", "GPU-", "-1", "{2}", "{1},{0}", "{1},0", "7"])
@pytest.mark.parametrize("order", ["PCI_BUS_ID", ""])
def test_libcuda_opens_the_visible_device(tmp_path: Path, said: str | None, order: str) -> None:
    with Box(tmp_path / "box", gpus=3, cuda_order=(2, 0, 1), pci_order=(1, 0, 2)) as box:
        env = {**box.env, **({"CUDA_DEVICE_ORDER": order} if order else {})}
        if said is not None:
            env["CUDA_VISIBLE_DEVICES"] = said.format(*box.uuids)
        opened = []
        for ordinal in range(4):
            words = [sys.executable, "-S", TRAIN.parent / "opens.py", str(ordinal)]
            done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
            opened += done.stdout.split()
            assert done.returncode == 0 or "CUDA_ERROR_" in done.stderr
        assert opened == client.Cuda(env).devices()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("1gpu,2", [1, 2]),
        ("0,3,1", [0]),
        ("0,-1,1", [0]),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,1", []),
        ("0,GPU-bb", [0]),
        ("GPU-bb,GPU-ab", [2, 1]),
        ("GPU-aa-1,GPU-bb-1", [0, 2]),
        ("GPU-bb,GPU-a", [2]),
        ("GPU-bb,0", [2]),
        ("GPU-bb,GPU-bb-1", []),
        ("GPU-cc,GPU-aa", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(said: str | None, shown: list[int]) -> None:
    assert client.visible(said, ["GPU-aa-1", "GPU-ab-1", "GPU-bb-1"]) == shown


def test_cuda_sorts_by_speed_unless_told_to_sort_by_bus(boxes: Callable[..., Box]) -> None:
    box = boxes(gpus=3, cuda_order=[2, 0, 1], pci_order=[1, 0, 2])
    zero, one, two = box.uuids

    def shown(**env: str) -> list[str]:
        return client.Cuda({**box.env, **env}).devices()

    assert shown() == [two, zero, one]
    assert shown(CUDA_VISIBLE_DEVICES="1,0") == [zero, two]
    assert shown(CUDA_DEVICE_ORDER="PCI_BUS_ID") == [one, zero, two]
    assert shown(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="0") == [one]
    assert shown(CUDA_VISIBLE_DEVICES=f"{one},{two[:10]}") == [one, two]


def test_memory_is_taken_on_the_visible_device(box: Box) -> None:
    cuda = client.Cuda({**box.env, "CUDA_VISIBLE_DEVICES": "1"})
    cuda.allocate(0, 2 * GIB)
    assert (box.used(0), box.used(1)) == (0, 2 * GIB)
    cuda.free(0, GIB)
    assert cuda.available(0) == box.free(1) == 24 * GIB - (300 << 20) - GIB
    cuda.free(0, GIB)
    assert box.processes(1) == []


def test_a_full_device_gives_no_more_and_counts_it(box: Box) -> None:
    box.unmanaged(0, "20GiB")
    cuda = client.Cuda(box.env)
    with pytest.raises(client.OutOfMemory) as full:
        cuda.allocate(0, 5 * GIB)
    available = 4 * GIB - (300 << 20)
    assert (full.value.requested, full.value.free, full.value.total) == (5 * GIB, available, 24 * GIB)
    cuda.allocate(0, available)
    assert (box.ooms(0), box.ooms(1)) == (1, 0)
    assert box.peak_used(0) == 20 * GIB + available


@pytest.mark.parametrize(
    ("load", "slower"), [(0.0, 1.0), (0.95, 1.0), (1.9, 2**0.5), (2.0, (2 / 0.95) ** 0.5), (4.0, 2 * (2 / 0.95) ** 0.5)]
)
def test_work_slows_down_with_the_load_of_a_device(load: float, slower: float) -> None:
    assert client.slowdown(load) == pytest.approx(slower)


def test_ended_processes_slow_no_other_down(box: Box) -> None:
    cuda = client.Cuda(box.env)
    with box.unmanaged(0, "1GiB", busy=1.9):
        assert cuda.pace(0) == pytest.approx(2**0.5)
    wait_until(lambda: cuda.pace(0) == 1.0)


# ---- the training ----


@pytest.mark.parametrize("profile", ["ramp", "late", "leak", "flat", "children"])
def test_a_training_reaches_its_peak_and_prints_its_epochs(box: Box, profile: str) -> None:
    options = ["--peak", "3.5GiB,1GiB", "--seconds", "0.3", "--epochs", "3", "--profile", profile, "--lr", "1e-3", "-x"]
    done = train(box, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert [box.peak_used(device) for device in (0, 1)] == [int(3.5 * GIB), GIB]
    assert [box.used(device) for device in (0, 1)] == [0, 0]


@pytest.mark.parametrize(
    ("profile", "first"), [("ramp", "300MiB"), ("late", "6GiB"), ("leak", "300MiB"), ("flat", "10GiB")]
)
def test_the_first_step_takes_what_the_profile_says(box: Box, profile: str, first: str) -> None:
    process = start(box, sys.executable, "-S", TRAIN, "--peak", "10GiB", "--seconds", "60", "--profile", profile)
    size = wait_until(lambda: box.used(0))
    process.kill()
    process.communicate()
    assert parse_size(first) <= size < parse_size(first) * 1.2


def test_children_hold_the_memory_of_their_parent(box: Box) -> None:
    options = ("--peak", "1GiB,1GiB", "--seconds", "60", "--profile", "children")
    process = start(box, sys.executable, "-S", TRAIN, *options)
    wait_until(lambda: box.used(0) and box.used(1))
    pids = [one.pid for device in (0, 1) for one in box.processes(device)]
    for pid in [process.pid, *pids]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert len({process.pid, *pids}) == 3


@pytest.mark.parametrize(
    ("env", "share"),
    [({}, 0.9), ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, 0), ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 0)],
)
def test_preallocation_takes_nearly_all_unless_it_is_switched_off(box: Box, env: dict[str, str], share: float) -> None:
    done = train(box, "--peak", "1GiB", "--seconds", "0.1", "--profile", "prealloc", **env)
    assert done.returncode == 0
    assert box.peak_used(0) == max(GIB, int(share * box.free(0)))


@pytest.mark.parametrize("profile", ["ramp", "children"])
def test_a_training_that_runs_out_of_memory_prints_the_message_of_torch(box: Box, profile: str) -> None:
    box.unmanaged(0, "22GiB")
    done = train(box, "--peak", "2GiB", "--seconds", "0.1", "--profile", profile)
    assert done.returncode == 1
    assert done.stderr.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.71 GiB. GPU 0 has a")
    assert box.ooms(0) == 1


def test_a_training_fails_with_too_few_visible_devices(box: Box) -> None:
    done = train(box, "--peak", "1GiB,1GiB", CUDA_VISIBLE_DEVICES="0")
    assert (done.returncode, done.stderr) == (1, "RuntimeError: 2 CUDA devices wanted, 1 available\n")


def test_the_peak_of_a_training_may_depend_on_its_own_option(box: Box) -> None:
    done = train(box, "--per", "batch=64MiB", "--batch=32", "--peak", "1GiB", "--seconds", "0.1")
    assert done.returncode == 0
    assert box.peak_used(0) == 3 * GIB


def test_a_training_without_a_gpu_takes_real_host_memory(tmp_path: Path) -> None:
    argv = ["-S", "-E", TRAIN, "--host", "64MiB", "--seconds", "60"]
    process = subprocess.Popen([sys.executable, *argv], env={})
    status = Path(f"/proc/{process.pid}/status")

    def resident() -> int:
        return next((int(li.split()[1]) for li in status.read_text().splitlines() if li.startswith("VmRSS")), 0)

    wait_until(lambda: resident() >= 64 << 10)
    process.kill()
    process.wait()


# ---- what others make of it ----


def test_gpustat_shows_the_processes(box: Box) -> None:
    pytest.importorskip("gpustat")
    process = start(box, sys.executable, TRAIN, "--peak", "2GiB", "--profile", "flat", "--seconds", "60")
    wait_until(lambda: box.used(0))
    done = run(box, sys.executable, "-m", "gpustat", "--json")
    process.kill()
    process.communicate()
    first, second = json.loads(done.stdout)["gpus"]
    assert (first["uuid"], first["memory.used"], first["memory.total"]) == (box.uuids[0], 2048, 24576)
    assert [(one["pid"], one["gpu_memory_usage"]) for one in first["processes"]] == [(process.pid, 2048)]
    assert second["processes"] == []


@pytest.mark.parametrize("driver", ["615", "470", "450"])
def test_nvitop_shows_the_processes(boxes: Callable[..., Box], driver: str) -> None:
    pytest.importorskip("nvitop")
    box = boxes(driver=driver)
    process = start(box, sys.executable, TRAIN, "--peak", "2GiB", "--profile", "flat", "--seconds", "60")
    wait_until(lambda: box.used(0))
    done = run(box, sys.executable, "-m", "nvitop", "--once")
    process.kill()
    process.communicate()
    row = next(line.split() for line in done.stdout.splitlines() if f" {process.pid} " in line)
    assert row[1:6] == ["0", str(process.pid), "C", row[4], "2048MiB"]


# ---- the build ----


def test_without_a_compiler_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build(tmp_path) is None


def test_library_is_compiled_once(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert built is not None
    made = (built / "libstandin.so").stat().st_mtime_ns
    assert build(tmp_path) == built
    assert (built / "libstandin.so").stat().st_mtime_ns == made
    assert {entry.name for entry in tmp_path.iterdir()} == {built.name, ".gitignore"}
