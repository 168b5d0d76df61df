"""The runs of a user: finding one, and the facts of each, which come from its recorded status or from its events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.app.observe.status_snapshot import facts_of, recorded_status, status_of
from scheduler.core.model import UNFINISHED
from scheduler.errors import Elsewhere, NoSuchRun, SchedulerError
from scheduler.runtime.paths import StatePaths, find_places, make_private
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunCatalog, RunInfo
from scheduler.store.run.journal_reader import JournalReader

if TYPE_CHECKING:
    from scheduler.app.observe.run_reader import RunReader
    from scheduler.core.brain import Brain
    from scheduler.core.reporting.forecast import Forecast
    from scheduler.store.profiles import ProfileStore


def places(settings: Settings) -> StatePaths:
    """Return the paths of the user's state directory."""
    return find_places(settings.state or None)


def profiles(settings: Settings) -> ProfileStore:
    """Open the profiles of earlier runs."""
    from scheduler.store.profiles import ProfileStore

    home = places(settings)
    make_private(home.root)
    return ProfileStore(home.profiles)


def runs_since(settings: Settings, words: Sequence[str], since: float) -> list[RunInfo]:
    """Return the named runs, in the given order. Without names, return the latest run, or with `since` all runs with
    tasks that may have ended after that time. Raise NoSuchRun if there is none.
    """
    if words or not since:
        named: list[str | None] = [*words] or [None]
        return list({info.number: info for info in (find_run(settings, word) for word in named)}.values())
    if not (infos := all_runs(settings)):
        raise NoSuchRun(f"there is no run yet in {places(settings).runs}: scheduler run FILE starts one")
    return [info for info in infos if _may_have(info, since)]


def _may_have(info: RunInfo, since: float) -> bool:
    """Tell whether tasks of a run may have ended after the time `since`; return False for a run that cannot be read."""
    try:
        facts = facts_of_run(info)
    except SchedulerError:
        return False
    return not facts["over"] or bool(facts["ended"] >= since)


def all_runs(settings: Settings) -> list[RunInfo]:
    """Return every run of this user on this machine, newest first."""
    return list(RunCatalog(places(settings)).all())


def find_run(settings: Settings, word: str | None, *, warn: bool = True) -> RunInfo:
    """Return a run by number or name, or the latest one. Raise NoSuchRun if there is none; if another machine has such
    a run, the error names that machine.

    With `warn`, report on standard error that a journal has lost its end.
    """
    home = places(settings)
    try:
        info = RunCatalog(home).find(word)
        if warn and info.lost:
            from scheduler.ui.terminal.sink import hint

            hint(info.lost)
        return info
    except NoSuchRun:
        elsewhere = _find_elsewhere(home, word) if word is not None else ""
        if not elsewhere:
            raise
    raise Elsewhere(elsewhere)


def _find_elsewhere(home: StatePaths, word: str) -> str:
    """Return a sentence that names another machine with such a run; empty if there is none."""
    for other in home.of_other_machines():
        with contextlib.suppress(SchedulerError):
            info = RunCatalog(other).find(word)
            there = info.elsewhere or other.root.name
            where = f"run {info.number} belongs to {there}, not to this machine"
            return f"{where}: go there, or look at it with --state {other.root}"
    return ""


def forecast_of(info: RunInfo) -> Forecast | None:
    """Return the latest forecast of a run's scheduler; None if the run has no scheduler or no forecast yet."""
    if not info.alive:
        return None
    from scheduler.core.reporting.forecast import Forecast  # not needed for a run that has ended

    try:
        return Forecast.from_dict(json.loads(info.places.forecast.read_bytes()))
    except (OSError, ValueError):
        return None


def forecast_with(info: RunInfo, brain: Brain) -> Forecast | None:
    """Return the latest forecast of a run's scheduler, unless all tasks have ended since; None if there is none."""
    found = forecast_of(info)
    if found is None or any(brain.state_counts[state] for state in UNFINISHED):
        return found
    from scheduler.core.reporting.forecast import IDLE, Forecast

    return Forecast(found.at, None, IDLE)


def facts_of_runs(runs: RunCatalog, kept: dict[int, RunReader] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the facts of each run, newest first; the facts of a run that cannot be read contain the error.

    `kept` holds the readers of earlier calls, so that no run is read twice.
    """
    for number in reversed(runs.numbers()):
        try:
            info, journal = runs.look(number)
            with contextlib.closing(journal) if journal is not None else contextlib.nullcontext():
                yield {"number": number, "trouble": info.lost} if info.lost else facts_in(info, journal, kept)
        except NoSuchRun:
            continue
        except SchedulerError as exc:
            if runs.places.run(number).log.exists():  # else it ended before its list was accepted
                yield {"number": number, "trouble": str(exc)}


def facts_of_run(info: RunInfo) -> dict[str, Any]:
    """Return a run's facts, including whether the run is over and when a task last ended."""
    if info.kept:
        return facts_in(info, None)
    with contextlib.closing(JournalReader.read(info.places.journal)) as journal:
        return facts_in(info, journal)


def facts_in(info: RunInfo, journal: JournalReader | None, kept: dict[int, RunReader] | None = None) -> dict[str, Any]:
    """Return the facts from the status that the run's scheduler recorded, if that status is recent; otherwise read all
    events.

    `journal` may be None if `info.kept` is True, which means that the recorded status is up to date.
    """
    status = recorded_status(info, journal)
    if status is None:
        assert journal is not None
        reader = _reader(info, journal, kept)
        status = status_of(info.meta, reader.brain, reader.ended)
    forecast = forecast_of(info)
    expected = forecast and forecast.run_to_dict()
    return {**facts_of(info, status["states"]), **status, "elsewhere": info.elsewhere, "expected": expected}


def _reader(info: RunInfo, journal: JournalReader, kept: dict[int, RunReader] | None) -> RunReader:
    """Return a reader of a run: the earlier one with its new events, or a new one."""
    from scheduler.app.observe.run_reader import RunReader  # the core's state takes 10 ms to load

    if kept is None:
        return RunReader(info, journal, only_states=True)
    if info.number not in kept:
        kept[info.number] = RunReader(info, only_states=True)
    reader = kept[info.number]
    reader.info = info
    reader.catch_up()
    return reader
