"""`map`: calls of a function on many values, each in a process of its own, packed by their memory."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from scheduler.app.observe import run_reader
from scheduler.app.run import run_loop, start
from scheduler.app.run.options import RunOptions, check_counts, nodes_of, run_name
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import PythonCalls
from scheduler.inputs import python_calls
from scheduler.inputs.python_calls import CallTarget, PythonCall
from scheduler.runtime import task_launcher
from scheduler.runtime.settings import read_settings
from scheduler.ui.terminal.sink import hint
from scheduler.units import count

NAME = 60


@dataclass(frozen=True, slots=True)
class Failure:
    """The result of a call that failed: its state, its error and its log."""

    state: str
    """The state: failed, oom, timeout, interrupted, …"""
    error: str
    """The exception in one line, or how the process ended."""
    log: str
    task: int

    def __bool__(self) -> bool:
        return False


def map(  # noqa: PLR0913  # each is a column or a flag, by keyword only
    function: Callable[[Any], Any],
    configs: Iterable[Any],
    *,
    devices: str = "auto",
    gpus: int | None = None,
    memory: str = "",
    retries: int = 0,
    jobs_at_once: int | None = None,
    on: str | Sequence[str] = "",
    name: str = "",
    state: str | None = None,
) -> list[Any]:
    """Call `function(config)` for each value, as many at once as their memory allows, and return the results in order.

    A failed call yields a Failure, which is false; no exception is raised for it. The function is found by the file
    that defines it, so it must belong to a module or to the script: ConfigError is raised for any other function, and
    for values that cannot be pickled. `on` names other machines ("ssh:gpu1,gpu2"). The run is an ordinary one:
    `scheduler list`, `results` and `resume` work on it.
    """
    check_counts(jobs_at_once=jobs_at_once)
    task_launcher.stop_loading()
    target = python_calls.target_function(function)
    each = [_call(target, number, config) for number, config in enumerate(configs, 1)]
    if not each:
        return []
    varied = dict.fromkeys(name for call in each for name in call.varied)
    made = PythonCalls(target, each, varied, {"what": "function"}, gpus=gpus, memory=memory, retries=retries)
    settings = read_settings({"num": str(len(each)), "state": state, "on": nodes_of(on)})
    choices = RunOptions(devices, jobs=jobs_at_once, name=run_name("name=", name), keep_going=True)
    what = f"{target.name} of {target.file or target.module}"
    session = start.begin(made.listing(what), choices, settings)
    assert session is not None  # there is something to do
    with closing(session):
        hint(f"run {session.number}: {count(len(each), 'call')} of {target.name} (scheduler list r{session.number})")
        ended = run_loop.run_to_end(session)
        if ended.signal in (2, 15):
            raise SystemExit(ended.exit_code)
        return _results(session)


def _call(target: CallTarget, number: int, config: Any) -> PythonCall:
    varied = config if isinstance(config, dict) else {"config": config}
    text = ",".join(f"{key}-{value}" for key, value in varied.items())
    pickled = python_calls.pickled(config, f"config {number}")  # a generator may give one object again and again
    return PythonCall(target, f"{target.name} {text}"[:NAME], {str(key): v for key, v in varied.items()}, pickled)


def _results(session: RunSession) -> list[Any]:
    """Return the result of each call, in the order of the rows."""
    sys.modules.setdefault(task_launcher.MAIN, sys.modules["__main__"])  # its module's name in the tasks
    reader = run_reader.RunReader(session.info, session.store.journal)
    by_row = {row["row"]: row for row in reader.rows_alone(secrets=True)}
    return [_result(session, by_row[number]) for number in sorted(by_row)]


def _result(session: RunSession, row: dict[str, Any]) -> Any:
    try:
        with task_launcher.open_own(session.places.value(row["id"], row["attempts"])) as file:
            error = task_launcher.said_in(file)["error"]
            if not error and row["state"] == "succeeded":
                return pickle.load(file)
    except (OSError, ValueError, KeyError) as exc:
        error = str(exc) if row["state"] == "succeeded" else ""
    except Exception as exc:  # noqa: BLE001  # what a value of the user's raises as it is read back
        error = f"its result cannot be read here: {exc}"
    return Failure(row["state"], error or _how(row), row["log"] or "", row["id"])


def _how(row: dict[str, Any]) -> str:
    code = row["exit_code"]
    return row["reason"] or (f"exit {code}" if code is not None else row["state"])
