"""The pytest plug-in: the fixture `gpu` gives each worker of a test run a lease for as long as the run takes.

The plug-in is loaded in every pytest of an environment, so it imports nothing of the scheduler before a test requests
the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scheduler import ProcessLease

OPTIONS = {
    "memory": "memory that each worker's tests need on the GPU, such as 8GiB (default: learned)",
    "gpus": "number of GPUs for each worker (default: 1 where there are GPUs)",
    "wait": "how long a worker may wait for its lease: yes (default), no, or a time such as 10m",
}
"""The options, each with its help; the setting of the same name in pytest's configuration is its default."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture."""
    group = parser.getgroup("gpu", "GPUs by scheduler lease (fixture gpu)")
    for name, text in OPTIONS.items():
        group.addoption(f"--gpu-{name}", dest=f"gpu_{name}", default=None, metavar=name.upper(), help=text)
        parser.addini(f"gpu_{name}", text, default="")


@pytest.fixture(scope="session")
def gpu(request: pytest.FixtureRequest) -> Iterator[ProcessLease]:
    """Hold a lease of GPUs for this worker; tests that request the fixture see only these GPUs."""
    import gpu_batch_scheduler as scheduler

    said = {name: _said(request.config, name) for name in OPTIONS}
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    try:
        lease = scheduler.lease(
            gpus=_number(said["gpus"]),
            memory=said["memory"] or None,
            wait=said["wait"] or "yes",
            name=f"lease of pytest {worker}".strip(),
        ).acquire()
    except scheduler.SchedulerError as exc:
        pytest.fail(f"the fixture gpu has no lease: {exc}", pytrace=False)
    yield lease
    lease.release()


def _said(config: pytest.Config, name: str) -> str:
    """Return the value of an option or, if it was not given, of the setting with that name."""
    return str(config.getoption(f"gpu_{name}") or config.getini(f"gpu_{name}") or "")


def _number(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise pytest.UsageError(f"--gpu-gpus {text}: {text!r} is not a whole number")
    return int(text)
