"""Joins what is needed to look at runs and at the machine; light, since people look often."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from scheduler.core import columns, command
from scheduler.core.brain import Brain
from scheduler.core.confidential import masked, shown, without_secrets
from scheduler.core.events import Asked, Changed, Exited, Skipped, Submitted
from scheduler.core.fields import Form, unpack_cells, unpack_terms
from scheduler.core.model import UNFINISHED, Budget, Device, Job, Order, State, Terms
from scheduler.core.results import Fold, Totals, totals
from scheduler.core.rules import Rules
from scheduler.errors import Elsewhere, NoSuchRun, SchedulerError
from scheduler.paths import Places, find_places, make_private
from scheduler.settings import Settings
from scheduler.store.journal import Journal, Recorded, Row
from scheduler.store.runs import RunInfo, Runs
from scheduler.wiring.standing import standing, states, told

if TYPE_CHECKING:
    from scheduler.core.control import Granted
    from scheduler.core.ports import Request
    from scheduler.store.profiles import Profiles
    from scheduler.wiring.everybody import Looking


def places(settings: Settings) -> Places:
    """The user's state."""
    return find_places(settings.state or None)


def profiles(settings: Settings) -> Profiles:
    """What earlier runs learned."""
    from scheduler.store.profiles import Profiles

    home = places(settings)
    make_private(home.root)
    return Profiles(home.profiles)


def all_runs(settings: Settings) -> list[RunInfo]:
    """Every run of this user here, newest first."""
    return list(Runs(places(settings)).all())


def find_run(settings: Settings, word: str | None) -> RunInfo:
    """A run by number or name, or the latest; raises NoSuchRun, naming the machine that has it where one does."""
    home = places(settings)
    try:
        return Runs(home).find(word)
    except NoSuchRun:
        elsewhere = _find_elsewhere(home, word) if word is not None else ""
        if not elsewhere:
            raise
    raise Elsewhere(elsewhere)


def _find_elsewhere(home: Places, word: str) -> str:
    """Which other machine's state has that run, in a sentence; empty: none."""
    for other in home.of_other_machines():
        with contextlib.suppress(SchedulerError):
            info = Runs(other).find(word)
            there = info.elsewhere or other.root.name
            where = f"run {info.number} belongs to {there}, not to this machine"
            return f"{where}: go there, or look at it with --state {other.root}"
    return ""


class Telling:
    """A run as its journal tells it, for views; nothing of it is ever written."""

    def __init__(self, info: RunInfo, journal: Journal | None = None, *, only_states: bool = False) -> None:
        """`only_states`: where each task stands, without its story, which takes a kilobyte and most of the time."""
        self.info = info
        self._journal = journal or Journal.read(info.places.journal)
        self._own = journal is None
        kept, chosen = json.loads(info.meta["settings"]), json.loads(info.meta.get("choices", "{}"))
        limits = {name: chosen.get(name) for name in ("jobs", "slots", "max_per_device")}
        limits |= {name: kept[name] for name in ("buffer",) if name in kept}
        self.brain = Brain(Rules(order=Order(kept["order"]), **limits), [])
        self.fold = Fold()
        self.ended: float | None = None
        """When an attempt last ended."""
        self._only_states = only_states
        self._seen = 0
        with self._journal.at_one_moment():
            self.brain.terms.extend(unpack_terms(text) for text in self._journal.terms())
            self._take(self._journal.submissions(), self._journal.moves() if only_states else self._journal.events())

    def _take(self, submitted: Iterable[Submitted], events: Iterable[Recorded]) -> None:
        for batch in submitted:
            self.brain.apply(batch)
        for recorded in events:
            self._seen = recorded.seq
            self.brain.apply(recorded.event, recorded.at)
            if isinstance(recorded.event, Exited):
                self.ended = recorded.at
            if not self._only_states or isinstance(recorded.event, Skipped):
                self.fold.take(recorded.event, recorded.at)

    def recorded(self) -> Iterator[Recorded]:
        """All of the journal's events that were taken in."""
        return (one for one in self._journal.events() if one.seq <= self._seen)

    def catch_up(self) -> None:
        """Take in what the run's scheduler has recorded since."""
        events = list(self._journal.events(self._seen))
        if any(isinstance(recorded.event, Changed) for recorded in events):
            self.brain.terms[:] = [unpack_terms(text) for text in self._journal.terms()]
        submitted = list(self._journal.submissions(self.brain.roll.batches))
        if submitted:
            terms = [unpack_terms(text) for text in self._journal.terms()]
            self.brain.terms.extend(terms[len(self.brain.terms) :])
        self._take(submitted, events)

    def asked_meanwhile(self, requests: Iterable[Request]) -> None:
        """Go on as the next scheduler of the run will: it is resumed, and does what was asked since."""
        self.brain.apply(Asked("resume"))
        for request in requests:
            for event in self.grant(request).events:
                self.brain.apply(event)

    def grant(self, request: Request) -> Granted:
        """What a request would come to now; of the devices only the names are known."""
        from scheduler.core.control import grant  # who only looks does not need it

        return grant(self.brain, request, [Budget(device, 0) for device in self.devices], self._number)

    @property
    def devices(self) -> list[Device]:
        """The run's devices, of which its journal knows the names."""
        labels = self.labels.items()
        numbers = {key: label.removeprefix("GPU ") for key, label in labels if label.startswith("GPU ")}
        return [Device(key, label, 0, 1.0, int(numbers.get(key, "-1"))) for key, label in labels]

    @property
    def unfinished(self) -> bool:
        """Whether anything of it may still run."""
        return any(self.brain.roll.counts[state] for state in UNFINISHED)

    def _number(self, terms: Terms) -> int:
        if terms not in self.brain.terms:
            self.brain.terms.append(terms)
        return self.brain.terms.index(terms)

    def close(self) -> None:
        """Let go of the journal, where it was opened here."""
        if self._own:
            self._journal.close()

    def totals(self) -> Totals:
        """The run in numbers."""
        return totals(self.fold, self.brain.roll.counts, int(self.info.meta.get("capacity", "0")))

    def rows(self, states: frozenset[State] | None = None, *, secrets: bool = False) -> Iterator[dict[str, Any]]:
        """One row for each task, by id, with `***` for secrets; only those in the given states, if there are some."""
        make = self._maker(secrets)
        for task, batch, row in self._rows():
            if states is None or self.brain.state(task) in states:
                yield make(task, batch, row)

    def _rows(self) -> Iterator[tuple[int, int, Row]]:
        """Those that were accepted since the events were read are not known yet."""
        return (one for one in self._journal.rows() if one[0] in self.brain.roll)

    def rows_of(self, tasks: Iterable[int]) -> Iterator[dict[str, Any]]:
        """The rows of some tasks, in their order; without secrets."""
        make = self._maker(secrets=False)
        for task in tasks:
            yield make(task, self.brain.roll.batch(task), self._journal.row(task))

    def _maker(self, secrets: bool) -> Callable[[int, int, Row], dict[str, Any]]:
        """Makes the row of a task from its batch and what was accepted."""
        forms = [Form.unpack(text) for text in self._journal.forms()]
        labels = self.labels
        submitted = float(self.info.meta.get("accepted", "0"))

        def make(task: int, batch: int, row: Row) -> dict[str, Any]:
            form = forms[row.form]
            spec = form.spec(unpack_cells(row.text), row.row)
            spec = replace(spec, terms=self.brain.terms[self.brain.roll.terms(task)])
            job = Job(spec, command.name(spec, secrets=secrets), command.key(spec, row.nth), form.append)
            argv = command.argv(spec, task, spec.terms.epochs, self.info.meta["python"], form.append)
            made = columns.row(
                task, batch, job, self.brain.state(task), self.fold.stories.get(task), shown(argv, secrets=secrets),
                self._log(task),
                self.fold.submitted(batch, submitted), labels, self._done_by(task),
            )  # fmt: skip
            return made if secrets else masked(made, columns.OURS, columns.TEXTS)

        return make

    def done(self) -> Iterator[tuple[command.Content, int]]:
        """Every row that is done, as what it says, and the run that did it: this one, or one before it."""
        forms = [Form.unpack(text) for text in self._journal.forms()]
        directory = self.info.meta["directory"]
        for task, _, row in self._rows():
            by = self.info.number if self.brain.state(task) is State.SUCCEEDED else self._done_by(task)
            if by is not None:
                form = forms[row.form]
                spec = form.spec(unpack_cells(row.text), row.row)
                yield command.content(spec, row.nth, form.append, directory), by

    def _done_by(self, task: int) -> int | None:
        """The earlier run because of which a task is skipped."""
        return self.fold.done_by.get(task) if self.brain.state(task) is State.SKIPPED else None

    def name(self, task: int) -> str:
        """What a task is called."""
        row = self._journal.row(task)
        return command.name(Form.unpack(self._journal.forms()[row.form]).spec(unpack_cells(row.text), row.row))

    @property
    def labels(self) -> dict[str, str]:
        """What people call the devices of the run, by their keys."""
        labels: dict[str, str] = json.loads(self.info.meta.get("labels", "{}"))
        return labels

    def _log(self, task: int) -> str:
        story = self.fold.stories.get(task)
        return str(self.info.places.task_log(task, len(story.attempts))) if story and story.attempts else ""

    def run_facts(self) -> dict[str, Any]:
        """The run itself, as results tell it."""
        return _run_facts(self.info, states(self.brain))


def _run_facts(info: RunInfo, states: Mapping[str, int]) -> dict[str, Any]:
    meta = info.meta
    return {
        "number": info.number,
        "name": meta.get("name", ""),
        "file": without_secrets(meta.get("file", "")),
        "alive": info.alive,
        "accepted": float(meta.get("accepted", "0")),
        "directory": meta.get("directory", ""),
        "host": meta.get("host", ""),
        "devices": json.loads(meta.get("labels", "{}")),
        "states": dict(states),
    }


def foreseen(info: RunInfo) -> dict[str, Any] | None:
    """What the scheduler of a run expects of it; None where none lives, or it has not looked ahead yet."""
    if not info.alive:
        return None
    try:
        said: dict[str, Any] = json.loads(info.places.forecast.read_bytes())
    except (OSError, ValueError):
        return None
    return said


def machine_facts(
    settings: Settings, look: Looking | None = None, kept: dict[int, Telling] | None = None
) -> dict[str, Any]:
    """What `status` shows: RAM, who holds what and who waits, without others' commands, and my latest runs.

    `look` and `kept` are for who looks again and again: how GPUs are looked at, and runs that need not be read anew.
    """
    from os import uname

    from scheduler.devices.host import available
    from scheduler.wiring import everybody

    total, free = available()
    runs = latest(settings, kept)
    labels = {key: label for run in reversed(runs) for key, label in run.get("devices", {}).items()}
    return {
        "format": 1,
        "hostname": uname().nodename,
        "host": {"total": total, "available": free},
        **everybody.facts(settings, labels, look),
        "runs": runs,
    }


def latest(settings: Settings, kept: dict[int, Telling] | None = None) -> list[dict[str, Any]]:
    """The facts of my latest runs."""
    return [*islice(_latest(Runs(places(settings)), kept), 10)]


def _latest(runs: Runs, kept: dict[int, Telling] | None) -> Iterator[dict[str, Any]]:
    """The facts of each run, newest first; one that cannot be read hides neither itself nor the others."""
    for number in reversed(runs.numbers()):
        try:
            info, journal = runs.open(number)
            with contextlib.closing(journal):
                yield _facts(info, journal, kept)
        except NoSuchRun:
            continue
        except SchedulerError as exc:
            if runs.places.run(number).log.exists():  # else it ended before its list was accepted
                yield {"number": number, "trouble": str(exc)}


def telling_facts(info: RunInfo) -> dict[str, Any]:
    """A run's facts, with whether it is over and when something last ended in it."""
    with contextlib.closing(Journal.read(info.places.journal)) as journal:
        return _facts(info, journal)


def _facts(info: RunInfo, journal: Journal, kept: dict[int, Telling] | None = None) -> dict[str, Any]:
    """As its scheduler left it, if little can have happened since; else all of its events are read."""
    stands = told(info, journal)
    if stands is None:
        telling = Telling(info, journal, only_states=True) if kept is None else _read_on(info, kept)
        stands = standing(info.meta, telling.brain, telling.ended)
    facts = _run_facts(info, stands["states"])
    return {**facts, **stands, "elsewhere": info.elsewhere, "expected": _expected(info)}


def _read_on(info: RunInfo, kept: dict[int, Telling]) -> Telling:
    """A run that was read before, with what has come since."""
    if info.number not in kept:
        kept[info.number] = Telling(info, only_states=True)
    telling = kept[info.number]
    telling.info = info
    telling.catch_up()
    return telling


def _expected(info: RunInfo) -> dict[str, Any] | None:
    """When a run is expected to be over; not what is expected of its tasks."""
    said = foreseen(info)
    return None if said is None else {name: said[name] for name in ("at", "end", "why")}
