"""Readers of runs, from the events in their journals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.app.observe.metric_files import AttemptMetrics
from scheduler.app.observe.metric_files import columns as metric_columns
from scheduler.app.observe.status_snapshot import facts_of, states
from scheduler.core.brain import Brain
from scheduler.core.causes import Action
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Asked, Changed, Exited, Skipped, Submitted
from scheduler.core.metrics.record import MetricRecord
from scheduler.core.model import NO_TASK, UNFINISHED, Device, DeviceBudget, Job, RankOrder, State, Terms
from scheduler.core.reporting import columns
from scheduler.core.reporting.run_history import RunHistory, RunTotals, TaskHistory, totals
from scheduler.core.tasks import command
from scheduler.core.tasks.after import parent_word
from scheduler.core.tasks.fields import unpack_terms
from scheduler.core.tasks.redaction import masked, shown
from scheduler.errors import ForbiddenEvent
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.journal_database import newer
from scheduler.store.run.journal_reader import JournalReader, Recorded, Row
from scheduler.store.task_texts import TaskTexts
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.core.control.requests import GrantedRequest
    from scheduler.core.ports import Request

MANY = 500
"""The most rows that are read one by one; to return more, all rows are read in one statement."""


class RunReader:
    """The reader of one run's journal, for views; it writes nothing."""

    def __init__(self, info: RunInfo, journal: JournalReader | None = None, *, only_states: bool = False) -> None:
        """Read a run; `only_states` leaves out the history of each task, which takes most of the time."""
        self.info = info
        self._journal = journal or JournalReader.read(info.places.journal)
        self._own = journal is None
        self._texts = TaskTexts(self._journal)
        kept, chosen = json.loads(info.meta["settings"]), json.loads(info.meta.get("choices", "{}"))
        limits = {name: chosen.get(name) for name in ("jobs", "slots", "max_per_device")}
        limits |= {name: kept[name] for name in ("buffer", "directory_wait", "window") if name in kept}
        try:
            order = RankOrder(kept["order"])
        except ValueError as exc:
            raise newer(info.places.journal, f"its setting order={kept['order']} is unknown here") from exc
        self.brain = Brain(SchedulingConfig(order=order, **limits), [])
        self.history = RunHistory()
        self.metrics = AttemptMetrics(info)
        self.ended: float | None = None
        """The time at which an attempt last ended."""
        self._only_states = only_states
        self._seen = 0
        with self._journal.at_one_moment():
            self.brain.terms.extend(unpack_terms(text) for text in self._journal.terms())
            self._take(
                self._journal.submissions(), self._journal.state_events() if only_states else self._journal.events()
            )

    def _take(self, submitted: Iterable[Submitted], events: Iterable[Recorded]) -> None:
        for batch in submitted:
            self.brain.apply(batch)
        for recorded in events:
            self._seen = recorded.seq
            try:
                self.brain.apply(recorded.event, recorded.at)
            except (ForbiddenEvent, LookupError) as exc:
                raise self._journal.contradiction(exc) from exc
            if isinstance(recorded.event, Exited):
                self.ended = recorded.at
            if not self._only_states or isinstance(recorded.event, Skipped):
                self.history.take(recorded.event, recorded.at)

    def history_of(self, task: int) -> TaskHistory:
        """Return the history of one task, even if this reader reads only states."""
        history = self.history
        if self._only_states:
            history = RunHistory()
            for recorded in self._journal.task_events(task):
                history.take(recorded.event, recorded.at)
        return history.tasks.get(task, TaskHistory())

    def recorded(self) -> Iterator[Recorded]:
        """Yield the journal's events, and apply each of them."""
        return (one for one in self._journal.events() if one.seq <= self._seen)

    def catch_up(self) -> None:
        """Read and apply the events that were recorded since the last call."""
        events = list(self._journal.events(self._seen))
        if any(isinstance(recorded.event, Changed) for recorded in events):
            self.brain.terms[:] = [unpack_terms(text) for text in self._journal.terms()]
        submitted = list(self._journal.submissions(self.brain.task_table.batches))
        if submitted:
            terms = [unpack_terms(text) for text in self._journal.terms()]
            self.brain.terms.extend(terms[len(self.brain.terms) :])
        self._take(submitted, events)

    def asked_meanwhile(self, requests: Iterable[Request]) -> None:
        """Apply these requests as the next scheduler of the run will apply them when it resumes the run."""
        self.brain.apply(Asked(Action.RESUME))
        for request in requests:
            for event in self.grant(request).events:
                self.brain.apply(event)

    def grant(self, request: Request) -> GrantedRequest:
        """Return the answers that a request would get now. A reader knows only the names of the devices, so the answers
        do not depend on their memory.
        """
        from scheduler.core.control.requests import grant  # views do not need it

        budgets = [DeviceBudget(device, 0) for device in self.devices]
        return grant(self.brain, request, budgets, self._number, time.time())

    @property
    def devices(self) -> list[Device]:
        """Return the run's devices with their names from its journal."""
        found = []
        for key, label in self.labels.items():
            number, _, part = (label.removeprefix("GPU ") if label.startswith("GPU ") else "").partition(".")
            found.append(Device(key, label, 0, 1.0, int(number or -1), part=int(part or -1)))
        return found

    @property
    def unfinished(self) -> bool:
        """Tell whether a task of the run may still start or go on."""
        return any(self.brain.state_counts[state] for state in UNFINISHED)

    @property
    def dead(self) -> bool:
        """Tell whether the run has unfinished tasks on this machine but no scheduler."""
        return self.unfinished and not self.info.alive and not self.info.elsewhere

    def _number(self, terms: Terms) -> int:
        if terms not in self.brain.terms:
            self.brain.terms.append(terms)
        return self.brain.terms.index(terms)

    def close(self) -> None:
        """Close the journal, if this reader opened it."""
        if self._own:
            self._journal.close()

    def totals(self) -> RunTotals:
        """Return the totals of the run."""
        found = totals(self.history, self.brain.state_counts, int(self.info.meta.get("capacity", "0")))
        return replace(found, energy_wh=self.energy())

    def energy(self) -> float | None:
        """Return the watt hours of the run's GPUs; None if their power was not recorded."""
        path = self.info.places.devices
        if not path.exists():
            return None
        from scheduler.core.reporting.energy import whole
        from scheduler.devices.load_recorder import read_history

        return whole(read_history(path))

    def rows(self, states: frozenset[State] | None = None, *, secrets: bool = False) -> Iterator[dict[str, Any]]:
        """Return a row for each task by id, with `***` for secrets; with `states`, only for tasks in one of these
        states.
        """
        return map(self.with_metrics, self.rows_alone(states, secrets=secrets))

    def rows_alone(self, states: frozenset[State] | None = None, *, secrets: bool = False) -> Iterator[dict[str, Any]]:
        """Return the rows without values that are read from files of the tasks."""
        make = self._maker(secrets)
        for task, batch, row in self._rows():
            if states is None or self.brain.state(task) in states:
                yield make(task, batch, row)

    def rows_and_metrics(self, *, secrets: bool = False) -> Iterator[tuple[dict[str, Any], MetricRecord | None]]:
        """Return the rows, each with the metrics of its task."""
        for row in self.rows_alone(secrets=secrets):
            record = self.metrics.of_task(row["id"], self.history.tasks.get(row["id"]))
            yield metric_columns(record, row), record

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the metrics that the user of the run has named, the most important one first."""
        return tuple(self.metrics.names.split(",")) if self.metrics.names else ()

    def with_metrics(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a task's row with the last values of its metrics."""
        task = row["id"]
        return metric_columns(self.metrics.of_task(task, self.history.tasks.get(task)), row)

    def _rows(self) -> Iterator[tuple[int, int, Row]]:
        """Return the rows; leave out tasks that were accepted after the events were read."""
        return (one for one in self._journal.rows() if one[0] in self.brain.task_table)

    def ended_at(self, task: int) -> float | None:
        """Return when the last attempt of a task ended; None if there was no attempt, or if that attempt has not
        ended.
        """
        found = self.history.tasks.get(task)
        last = found.last if found is not None else None
        return last.ended if last is not None else None

    def rows_of(self, tasks: Sequence[int], *, secrets: bool = False, brief: bool = False) -> Iterator[dict[str, Any]]:
        """Return the rows of some tasks, with `***` for secrets. The rows are in the order of `tasks`; for more than
        `MANY` tasks, they are ordered by id.

        With `brief`, rows have no command and no key, because these take longer to make than all other columns.
        """
        make, found = self._maker(secrets, brief=brief), {*tasks} if len(tasks) > MANY else ()
        rows = (one for one in self._rows() if one[0] in found) if found else self._rows_one_by_one(tasks)
        for task, batch, row in rows:
            yield self.with_metrics(make(task, batch, row))

    def _rows_one_by_one(self, tasks: Iterable[int]) -> Iterator[tuple[int, int, Row]]:
        return ((task, self.brain.batch_of(task), self._journal.row(task)) for task in tasks)

    def _maker(self, secrets: bool, *, brief: bool = False) -> Callable[[int, int, Row], dict[str, Any]]:
        """Return a function that makes the row of a task from its batch and its accepted fields."""
        labels = self.labels
        submitted = float(self.info.meta.get("accepted", "0"))
        energies = self._energies()

        def make(task: int, batch: int, row: Row) -> dict[str, Any]:
            form, spec = self._texts.form(row), replace(self._texts.spec(row), terms=self.brain.terms_of(task))
            key = "" if brief else command.key(spec, row.nth)
            job = Job(spec, command.name(spec, varies=form.varies, secrets=secrets), key, form.append)
            words = () if brief else self._texts.started(row, spec, task, self.info.meta["python"], self._port(task))
            line = shown(words, secrets=secrets)
            made = columns.row(
                task, batch, job, self.brain.state(task), self.history.tasks.get(task), line, self._log(task),
                self.history.submitted(batch, submitted), labels, self._done_by(task),
                self._skipped_for(task), energies.get(task),
            )  # fmt: skip
            if form.varies:
                made = columns.with_parameters(made, command.row_parameters(spec), form.varies)
            return made if secrets else masked(made, columns.OURS, columns.TEXTS)

        return make

    def _energies(self) -> Mapping[int, float]:
        """Return the energy of each task in watt hours; empty if the power of the run's GPUs was not recorded."""
        try:
            text = self.info.places.devices.read_bytes()
        except OSError:
            return {}  # most runs without GPUs; what follows is not loaded then
        from scheduler.core.reporting.device_history import parsed
        from scheduler.core.reporting.energy import watt_hours

        return watt_hours(parsed(text), self.history.tasks)

    def done(self) -> Iterator[tuple[command.Content, int]]:
        """Yield the content of every done row, with the run that completed it: this run or an earlier one."""
        directory = self.info.meta["directory"]
        for task, _, row in self._rows():
            by = self.info.number if self.brain.state(task) is State.SUCCEEDED else self._done_by(task)
            if by is not None:
                yield command.content(self._texts.spec(row), row.nth, self._texts.form(row).append, directory), by

    def _done_by(self, task: int) -> int | None:
        """Return the earlier run that completed a skipped task, or None."""
        return self.history.done_by.get(task) if self.brain.state(task) is State.SKIPPED else None

    def _skipped_for(self, task: int) -> str | None:
        """Return the task or run whose end caused a task to be skipped, as `17` or `r3`; None if it was skipped for
        another reason.
        """
        cause = self.brain.dependencies.cause(task)
        return None if cause == NO_TASK else parent_word(cause)

    def name(self, task: int) -> str:
        """Return the name of a task."""
        return self._texts.name(self._journal.row(task))

    @property
    def varies(self) -> tuple[str, ...]:
        """Return the columns of the parameters that vary in the run's lists."""
        names = dict.fromkeys(name for form in self._texts.forms() for name in form.varies)
        return tuple(map(columns.column_of, names))

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the run's devices by their keys."""
        labels: dict[str, str] = json.loads(self.info.meta.get("labels", "{}"))
        return labels

    def _port(self, task: int) -> int:
        """Return the port of a task's newest attempt; 0 if there was no attempt."""
        found = self.history.tasks.get(task)
        return found.attempts[-1].port if found is not None and found.attempts else 0

    def _log(self, task: int) -> str:
        found = self.history.tasks.get(task)
        return str(self.info.places.task_log(task, len(found.attempts))) if found and found.attempts else ""

    def run_facts(self) -> dict[str, Any]:
        """Return the facts of the run that are part of its results."""
        return facts_of(self.info, states(self.brain))
