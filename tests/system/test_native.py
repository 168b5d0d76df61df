"""The shim in C as runs come by it: made when it is worth it, used if it works, and never needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler import native
from scheduler.core.model import Outcome
from scheduler.paths import Places
from tests.system.conftest import Driver, compiled
from tests.system.killing import Home
from tests.waiting import wait_until

Drivers = Callable[..., Driver]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "state")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)
    return path


def test_it_is_made_once_and_found_afterwards(places: Places) -> None:
    compiled()
    assert native.find(places) is None
    made = native.find(places, native.COMPILED)
    assert made is not None
    inode = made.stat().st_ino
    assert native.find(places, native.COMPILED) == native.find(places) == made
    assert made.stat().st_ino == inode
    assert list(made.parent.iterdir()) == [made]


def test_who_wants_none_gets_none(places: Places) -> None:
    compiled()
    native.find(places, native.COMPILED)
    assert native.find(places, native.PYTHON) is None


def test_another_compiler_makes_another_one(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled()
    first = native.find(places, native.COMPILED)
    real = next(path for name in native.COMPILERS for path in [native._on_path(name)] if path)
    program(tmp_path / "bin/cc", f'#!/bin/sh\nexec {real} "$@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert native.find(places) is None
    assert native.find(places, native.COMPILED) not in (None, first)


def test_a_broken_compiler_is_remembered_and_not_tried_again(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin/cc", f"#!/bin/sh\necho tried >>{tmp_path}/tried\necho no libc; exit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert native.find(places, native.COMPILED) is None
    (said,) = (places.root / "native").iterdir()
    assert said.read_text().endswith("no libc\n")
    before = (tmp_path / "tried").read_text()
    native.begin(places)
    assert (tmp_path / "tried").read_text() == before


def test_where_the_libraries_cannot_be_put_in_it_is_made_without_them(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    real = next(path for name in native.COMPILERS for path in [native._on_path(name)] if path)
    program(tmp_path / "bin/cc", f'#!/bin/sh\ncase $* in *-static*) exit 1; esac\nexec {real} "$@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert native.find(places, native.COMPILED) is not None


def test_without_a_compiler_there_is_none(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.find(places, native.COMPILED) is None


@pytest.mark.parametrize("text", ["", "damaged", "#!/nowhere/interpreter\n"])
def test_one_that_does_not_work_costs_nobody_a_task(drivers: Drivers, tmp_path: Path, text: str) -> None:
    driver = drivers(native=program(tmp_path / "shim", text))
    assert [driver.run_sh(f"exit {code}").code for code in (0, 3)] == [0, 3]


@pytest.mark.parametrize("text", ["exit 1", "sleep 1"])
def test_one_that_says_nothing_and_dies_is_given_up(drivers: Drivers, tmp_path: Path, text: str) -> None:
    driver = drivers(native=program(tmp_path / "shim", f"#!/bin/sh\n{text}\n"))
    first = driver.run("true")
    assert first.outcome in (Outcome.SUCCEEDED, Outcome.LOST)  # lost is run again by whoever ordered it
    assert driver.run("true").outcome is Outcome.SUCCEEDED


def test_many_tasks_have_it_made_for_the_next_run(home: Home, tmp_path: Path) -> None:
    compiled()
    home.env["SCHEDULER_SHIM"] = "auto"
    program(tmp_path / "bin/nice", '#!/bin/sh\nshift 2\nexec "$@"\n')  # on a busy machine it would take minutes
    home.env["PATH"] = f"{tmp_path}/bin:{home.env['PATH']}"
    home.commands(*["true"] * 110, "sleep 300")
    with home.start("run", "jobs.csv", "--slots", "4") as scheduler:
        wait_until(lambda: [path for path in (home.state / "native").glob("shim-*") if not path.suffix], 120)
        scheduler.terminate()
    assert not (home.state / "runs/1/code/scheduler/shim").exists()
    home.commands("true", name="more.csv")
    home.call("run", "more.csv", code=0)
    assert (home.state / "runs/2/code/scheduler/shim").exists()


def test_a_run_goes_on_with_its_own_copy(home: Home) -> None:
    compiled()
    home.env["SCHEDULER_SHIM"] = "c"
    home.commands("sh -c 'readlink /proc/$PPID/exe; exit 3'")
    home.call("run", "jobs.csv", code=1)
    (task,) = home.tasks()
    assert task["exit_code"] == 3
    (log,) = home.state.rglob("1.log")
    assert log.read_text() == f"{home.state}/runs/1/code/scheduler/shim\n"
