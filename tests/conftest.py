"""Settings for all tests: Ctrl-C has its usual meaning, and reports of tests that run in parallel can be sent."""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any

import pytest


def pytest_configure() -> None:
    """Restore Ctrl-C: a shell that starts the tests in its background has it ignored by them and all their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Replace bytes that are not UTF-8 in a report: they would end all tests."""
    return _fit((yield))


def _fit(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_fit(name): _fit(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_fit, value))
    return value
