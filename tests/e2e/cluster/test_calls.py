"""Calls of Python functions on several machines, which share no directory of the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import killing
from tests.support.standin.box import build
from tests.support.standin.nodes import MISSING, Lab, can_be_made
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not can_be_made(), reason=MISSING)

EXECUTOR = """\
import socket, scheduler
class Odd(Exception):
    pass
def where(x, data):
    print("called with", x)
    if x % 2:
        raise Odd(f"{x} is odd")
    return socket.gethostname(), data
with scheduler.Executor(on="ssh:n1,n2", gpus=0) as ex:
    calls = [ex.submit(where, x, bytes(300_000 * x)) for x in range(6)]
    for x, call in enumerate(calls):
        said = call.exception() or (call.result()[0] in ("n1", "n2") and call.result()[1] == bytes(300_000 * x))
        print(repr(said), call.log().splitlines()[0], call.peak > 0)
"""
MAP = """\
import socket, scheduler
def where(x):
    if x == 2:
        raise ValueError("two")
    return x, socket.gethostname() in ("n1", "n2")
print(*scheduler.map(where, range(4), gpus=0, on="ssh:n1,n2"), sep="\\n")
"""
MODULES = """\
import scheduler, sizes
from models import small
with scheduler.Executor(on="ssh:n1,n2", gpus=0) as ex:
    calls = [ex.options(node=node).submit(small.build, x) for node, x in (("n1", 2), ("n2", 3))]
    for call in calls:
        print(*call.result())
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Yield a head whose directories no node sees, and two nodes."""
    build()
    made = Lab(tmp_path, "n1", "n2", gpus=1)
    made.command = [sys.executable]
    yield made
    made.end()


def test_calls_of_an_executor_reach_nodes_and_their_values_come_back(lab: Lab) -> None:
    (lab.root / "program.py").write_text(EXECUTOR)
    said = lab.call("program.py", code=0).stdout.splitlines()
    ends = [f"Odd('{x} is odd')" if x % 2 else "True" for x in range(6)]
    assert said == [f"{end} called with {x} True" for x, end in enumerate(ends)]
    left = [path for home in (lab, *lab.nodes.values()) for path in home.state.rglob("*") if path.is_file()]
    assert not [path for path in left if path.suffix in (".call", ".value") or "guests" in path.parts]


def test_the_values_of_map_come_from_nodes(lab: Lab) -> None:
    (lab.root / "program.py").write_text(MAP)
    said = lab.call("program.py", code=0).stdout.splitlines()
    assert [line for line in said if line.startswith("(")] == ["(0, True)", "(1, True)", "(3, True)"]
    assert "ValueError: two" in said[2]


def test_calls_are_refused_where_a_node_lacks_their_directory(lab: Lab) -> None:
    (lab.state / "here").mkdir()
    program = "import scheduler\nprint(scheduler.Executor(on='ssh:n1').submit(abs, 1).exception())"
    said = lab.call("-c", program, code=0, cwd=lab.state / "here").stdout
    assert f"n1: there is no directory {lab.state}/here: make it the same as here" in said


def test_modules_of_the_program_are_sent_to_a_machine_that_lacks_them_or_has_others(lab: Lab) -> None:
    (lab.root / "models").mkdir()
    (lab.root / "sizes.py").write_text("SIZE = 3\n")
    (lab.root / "models" / "__init__.py").write_text("")
    (lab.root / "models" / "small.py").write_text(
        "def build(x):\n    import sizes\n    return __file__, x * sizes.SIZE\n"
    )
    (lab.root / "program.py").write_text(MODULES)
    lab.nodes["n1"].put(lab.root / "models" / "small.py", "def build(x):\n    return 'older', 0\n")
    there, here = lab.call("program.py", code=0).stdout.splitlines()
    assert there.endswith("given/modules-1.zip/models/small.py 6")
    assert here == f"{lab.root}/models/small.py 9"


HOLDING = """\
import os, time, scheduler
def hold(name):
    with open(name, "a") as file:
        file.write("begun ")
    while not os.path.exists("go"):
        time.sleep(0.02)
    return name
with scheduler.Executor(on="ssh:n1,n2", gpus=0) as ex:
    print(*[call.result() for call in [ex.submit(hold, name) for name in ("one", "two")]])
"""


def test_a_killed_program_leaves_no_call_on_any_node(lab: Lab) -> None:
    (lab.root / "program.py").write_text(HOLDING)
    with lab.start("program.py") as program:
        wait_until(lambda: all((lab.root / name).exists() for name in ("one", "two")), 30)
        program.kill()
    wait_until(lambda: not [node for node in lab.nodes.values() if node.processes("python")], 20)


def test_calls_on_nodes_go_on_once_each_when_their_scheduler_is_killed(lab: Lab) -> None:
    (lab.root / "program.py").write_text(HOLDING)
    with lab.start("program.py", stdout=subprocess.PIPE) as program:
        wait_until(lambda: all((lab.root / name).exists() for name in ("one", "two")), 30)
        killing.kill(lab.scheduler())
        (lab.root / "go").touch()
        assert program.communicate(timeout=60)[0] == "one two\n"
    assert [(lab.root / name).read_text() for name in ("one", "two")] == ["begun ", "begun "]
