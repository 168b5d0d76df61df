"""A task that no device can ever hold fails at once, whatever else is on the GPUs at that moment."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_home import GpuHome, holding
from tests.support.standin.box import NO_COMPILER

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

NEW = 120.0
"""Seconds for which nothing starts on a GPU with new unmanaged memory."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    yield made
    made.end()


def test_a_task_that_needs_more_than_any_gpu_fails_at_once_though_one_has_new_unmanaged_memory(home: GpuHome) -> None:
    home.jobs(holding("2GiB", more="90GiB"))
    home.box.unmanaged(1, "12GiB")
    with home.going(code=1):
        home.wait_for_use(0, 2 << 30)
        began = time.monotonic()
        home.write("more", "now")
    assert time.monotonic() - began < NEW / 4
    assert [one.outcome for one in home.tries()] == ["oom"]
    assert re.search(r"needs 9[0-9]\.[0-9]GiB; the largest device \(GPU [01]\) has 24\.0GiB", home.log())
