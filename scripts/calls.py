"""A plugin of pytest for `./scripts/mutate --core`: it writes which functions of the core each test enters.

The file is $TEST_OUTCOMES with `.calls` behind it. It has one line of JSON per test: its name and its functions, each
as a file below scheduler/core and the line at which its definition begins.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import scheduler.core
from scripts.outcomes import VARIABLE

_CORE = str(Path(scheduler.core.__file__).parent) + os.sep
_OUT = os.environ.get(VARIABLE, "") + ".calls"
_ENTERED: set[CodeType] = set()


def _note(frame: FrameType, event: str, argument: object) -> None:
    if event == "call":
        _ENTERED.add(frame.f_code)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Write down what a test has entered, in any of its phases."""
    _ENTERED.clear()
    sys.setprofile(_note)
    yield
    sys.setprofile(None)
    entered = [code for code in _ENTERED if code.co_filename.startswith(_CORE)]
    functions = [[code.co_filename.removeprefix(_CORE), code.co_firstlineno] for code in entered]
    with open(_OUT, "a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, functions]) + "\n")
