"""`scheduler.Executor` on stand-in GPUs: what a call sees, what it is known to need, and a lack of memory."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu_home import GpuHome
from tests.support.standin.box import NO_COMPILER, TRAIN

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

PROGRAM = f"""\
import json, os, sys, time, scheduler
def work(gib, seconds=0.5):
    sys.path.insert(0, {str(TRAIN.parent)!r})
    import client
    cuda = client.Cuda()
    try:
        cuda.allocate(0, int(gib * 2**30))
    except client.OutOfMemory:
        raise RuntimeError("CUDA out of memory. Tried to allocate %.2f GiB" % gib) from None
    time.sleep(seconds)
    return cuda.devices()
def told(future):
    exc = future.exception(60)
    said = [repr(exc), *getattr(exc, "__notes__", ())] if exc else future.result()
    return [future.task_id, future.peak, said]
with scheduler.Executor() as ex:
    calls = [ex.submit(work, *json.loads(words)) for words in sys.argv[1:]]
    print(json.dumps([told(call) for call in calls]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    (tmp_path / "main.py").write_text(PROGRAM)
    yield made
    made.end()


def called(home: GpuHome, *words: object) -> list[Any]:
    """Run the program with a call for each list of arguments, and return what it prints."""
    ours, home.command = home.command, [sys.executable]
    try:
        found: list[Any] = json.loads(home.call("main.py", *map(json.dumps, words), code=0).stdout)
        return found
    finally:
        home.command = ours


def sources(home: GpuHome, run: int) -> list[str]:
    tasks = json.loads(home.call("results", f"r{run}", "--json").stdout)["tasks"]
    return [task["source"] for task in tasks]


def test_a_call_gets_a_gpu_and_its_peak_there_is_known(home: GpuHome) -> None:
    ((_, peak, devices),) = called(home, [1.0])
    assert len(devices) == 1
    assert devices[0] in home.box.uuids
    assert 1 << 30 <= peak < 2 << 30


def test_a_later_program_knows_the_memory_of_the_same_call(home: GpuHome) -> None:
    called(home, [1.0])
    called(home, [1.0])
    assert sources(home, 2) == ["profile"]


def test_a_call_that_can_never_have_enough_raises_its_own_error(home: GpuHome) -> None:
    ((task, _, (error, note)),) = called(home, [400.0])
    assert error == "RuntimeError('CUDA out of memory. Tried to allocate 400.00 GiB')"
    why = "needs 400.0GiB; the largest device (GPU 0) has 24.0GiB"
    assert note == f"work gib-400.0 (task {task}) ended as refused: {why}"
