"""Reports of tests that run beside each other, made fit to be sent."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A failure that shows bytes that are no UTF-8 would end all tests instead of being told."""
    return _fit((yield))


def _fit(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_fit(name): _fit(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_fit, value))
    return value
