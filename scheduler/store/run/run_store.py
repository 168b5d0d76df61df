"""The store of one run for its scheduler: it is created or resumed, locked, and filled with rows and events."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from scheduler.core.events import Arrived, Changed, Event, Exited, Submitted
from scheduler.core.model import Job, Spec, Terms
from scheduler.core.ports import Arrivals
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.tasks import command
from scheduler.core.tasks.fields import (
    SEPARATOR,
    RowForm,
    is_text,
    pack_cells,
    pack_terms,
    unpack_terms,
)
from scheduler.core.tasks.list_dependencies import ListDependencies
from scheduler.core.tasks.parameters import ParameterSample, varying
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.errors import StateError, UsageError
from scheduler.runtime import clock
from scheduler.runtime.paths import RunPaths, StatePaths, make_private
from scheduler.runtime.python_envs import Programs
from scheduler.store.earlier_tasks import EarlierTasks
from scheduler.store.queue.submitted_shells import SubmittedShells
from scheduler.store.result_file import has_lines, ignored, read_result
from scheduler.store.run import run_code
from scheduler.store.run.catalog import RunCatalog, RunInfo, final_facts, keep_facts
from scheduler.store.run.counter import PATIENCE, Counter, HeldCounter
from scheduler.store.run.journal import Journal
from scheduler.store.run.journal_reader import Row
from scheduler.store.run.launch_command import launched
from scheduler.store.run.removal import clear_up, finish
from scheduler.store.run.run_lock import Hold
from scheduler.store.task_classes import TaskClassFinder
from scheduler.store.task_texts import TaskTexts
from scheduler.values import replace

MOST_JOBS = 256
"""The number of task texts that are kept in memory."""
MOST_UNFLUSHED = 10_000
"""The number of rows above which a list is synced to disk before the counter is locked, so that the lock is held only
for a short time.
"""
LOOP_PATIENCE = 0.2
"""Seconds for which a running scheduler waits for the counter before it tries again later."""


class RerunPlan(Protocol):
    """The effects that earlier runs of a list have on a new run."""

    def refuse(self) -> None:
        """Raise StateError if this list must not start now. No other list is accepted during this call."""

    def events(self, first: int) -> Sequence[Event]:
        """Return the events with which the rows of the new run begin; `first` is the id of the first row."""


class _Later:
    """The plan for rows that join an existing run; `batch` is the number of their first batch."""

    def __init__(self, batch: int) -> None:
        self._arrived = Arrived(batch)

    def refuse(self) -> None:
        """Refuse nothing, because the rows belong to the run's own list."""

    def events(self, first: int) -> Sequence[Event]:
        """Return the event that tells that these rows have arrived."""
        return [self._arrived]


class SqliteRunStore:
    """The store of a run, used by its only scheduler: it accepts rows, records events and returns the texts of
    tasks.
    """

    num = 20
    """The number of rows in a batch."""
    what = ""
    """The name of the run's list in error messages."""

    def __init__(self, places: RunPaths, journal: Journal, counter: Counter, hold: Hold) -> None:
        self.places = places
        self.journal = journal
        self.terms: list[Terms] = []
        self.source: RowSource | None = None
        self.code: dict[str, str] = {}
        """The digests of the code that was copied for a new run, by name."""
        self.kinds: TaskClassFinder | None = None
        self.programs = Programs(os.environ)
        """The finder of the rows' programs, which uses the environment of the shell that started the run."""
        self.shells = SubmittedShells(places.shells, {})
        """The shells from which the tasks of a queue were submitted."""
        self.check: Callable[[Terms, int], None] = lambda terms, row: None
        """The check that raises an error for terms which this machine can never satisfy."""
        self.screen: Callable[[RowForm, Iterable[Sequence[InputRow]]], Iterable[Sequence[InputRow]]] = (
            lambda form, rows: rows
        )
        """A function that passes on the batches of a list, and raises an error for rows whose commands contradict their
        terms.
        """
        self._counter = counter
        self._hold = hold
        hold.remember()
        self._numbers: dict[int, tuple[Terms, int]] = {}
        self._by_value: dict[Terms, int] = {}
        self._forms: list[RowForm] = []
        self._texts = TaskTexts(journal, self._forms)
        self.earlier = EarlierTasks(self._texts)
        self._form_numbers: dict[str, int] = {}
        self._batch = 0
        self._jobs: dict[int, Job] = {}
        self._ended: list[tuple[int, int]] = []
        """Attempts whose end is not durable yet; their result files are kept until it is."""
        self._changed: dict[int, int] = {}
        """The numbers of the terms of tasks whose terms were changed after the tasks were accepted."""

    # ---- opening ----

    @classmethod
    def create(cls, places: StatePaths, counter: Counter, code: Sequence[tuple[Path, str]]) -> SqliteRunStore:
        """Create a run with the next number; it does not appear among the runs before its list is accepted."""
        make_private(places.runs)
        with counter.held() as held:  # `clear_up` needs it too, so it never sees a new run without its lock
            clear_up(places)
            number = max([held.run, *(n + 1 for n in RunCatalog(places).numbers())])
            held.advance(task=held.task, run=number + 1)
            run = places.run(number)
            make_private(run.root)
            hold = Hold(run)
        try:
            finish(places)
            digests = run_code.copy(run.code, code)
            make_private(run.tasks)
            book = cls(run, Journal.create(run.journal), counter, hold)
            book.code = digests
            return book
        except BaseException:
            shutil.rmtree(run.root, ignore_errors=True)
            hold.close()
            raise

    @classmethod
    def resume(cls, info: RunInfo, counter: Counter) -> SqliteRunStore:
        """Take over an existing run. Raise StillRunning if its scheduler is alive.

        Raise StateError for a run of another user, because its commands would run as this user.
        """
        owner = info.places.root.stat().st_uid
        if owner != os.getuid():
            raise StateError(
                f"run {info.number} belongs to user {owner}: its tasks would run as you, only that user can resume it"
            )
        hold = Hold(info.places)
        try:
            book = cls(info.places, Journal.open(info.places.journal), counter, hold)
        except BaseException:
            hold.close()
            raise
        book.num = int(info.meta.get("num", "20"))
        book.terms = [unpack_terms(text) for text in book.journal.terms()]
        book._by_value = {terms: number for number, terms in enumerate(book.terms)}
        forms = book.journal.forms()
        book._forms += [RowForm.unpack(text) for text in forms]
        book._form_numbers = {text: number for number, text in enumerate(forms)}
        book._batch = book.journal.count()[1]
        for event in book.journal.changed_terms():
            book._changed.update(dict.fromkeys(event.tasks, event.terms))
        return book

    def close(self) -> None:
        """Close the run and release its lock."""
        if self.kinds is not None:
            self.kinds.profiles.close()
        facts: Mapping[str, str] = {}
        with contextlib.suppress(StateError):
            self.journal.checkpoint()
            facts = final_facts(self.journal)
        self.journal.close()
        if facts:
            keep_facts(self.places, facts)
        self._hold.close()

    def check_files(self) -> None:
        """Raise StateError if the run's directory or journal was moved or replaced.

        A journal that was removed is written again, unless another file is at its path.
        """
        gone = self._hold.misplaced()
        if gone is None:
            return
        number, path = self.places.number, self.places.journal
        goes_on = "nothing more starts; running tasks continue under their shims"
        if gone == self.places.root:
            raise StateError(f"run {number}: its directory {gone} was removed or moved while it ran: {goes_on}")
        lost = f"run {number}: {gone} was removed or replaced while it ran: {goes_on}"
        kept = path
        try:
            if gone == path:
                kept = self.journal.write_again()
            else:
                self.journal.checkpoint()
        except (StateError, OSError) as exc:
            raise StateError(f"{lost}, and the journal cannot be written again: {exc}") from exc
        if kept == path:
            raise StateError(f"{lost}; the journal is whole again: scheduler resume r{number} continues the run")
        raise StateError(f"{lost}; the journal that this scheduler wrote is kept as {kept}")

    def discard(self) -> None:
        """Remove a run that was just created, because its list was refused; return its number to the counter if that
        number is still the last one.
        """
        self.journal.close()
        shutil.rmtree(self.places.root, ignore_errors=True)
        self._counter.give_back(self.places, LOOP_PATIENCE)
        self._hold.close()

    # ---- accepting ----

    def accept(
        self,
        form: RowForm,
        batches: Iterable[Sequence[InputRow]],
        check: Callable[[Terms, int], None],
        meta: Callable[[int], Mapping[str, str]],
        again: RerunPlan | None = None,
        patience: float = PATIENCE,
    ) -> list[Submitted]:
        """Accept a whole list in one durable transaction; if `check`, `again` or a row raises, nothing is stored.

        The counter is locked only after all rows were read, checked and stored; it stays locked while their numbers are
        taken and the transaction ends. Raise StateError if it cannot be locked within `patience` seconds.
        """
        submitted: list[Submitted] = []
        known, forms = len(self.terms), len(self._forms)
        try:
            with ExitStack() as lock, self.journal.transaction():  # the lock outlives the transaction
                first = self._counter.next_task()
                dependencies = self._put_list(form, batches, first, check, submitted)
                tasks = sum(len(s.terms) for s in submitted)
                self.journal.put_meta(dict(meta(tasks)))
                if tasks > MOST_UNFLUSHED:
                    self.journal.flush()
                held = lock.enter_context(self._counter.held(patience))
                if tasks and held.task != first:
                    by = self._move(lock, held, first, tasks)
                    held = lock.enter_context(self._counter.held(patience))
                    submitted = [replace(batch, first=batch.first + by) for batch in submitted]
                self._put_dependencies(dependencies, submitted)
                if again is not None:
                    again.refuse()
                    self.journal.put_events(again.events(submitted[0].first) if submitted else (), clock.now())
                if tasks:
                    held.advance(task=max(held.task, submitted[0].first + tasks), run=held.run)
        except BaseException:
            self._undo(known, forms)
            raise
        self._batch += len(submitted)
        return submitted

    def _put_list(
        self,
        form: RowForm,
        batches: Iterable[Sequence[InputRow]],
        first: int,
        check: Callable[[Terms, int], None],
        submitted: list[Submitted],
    ) -> ListDependencies:
        """Store the rows and the new terms of a list, and return the dependencies of the rows."""
        known, forms, dependencies = len(self.terms), len(self._forms), ListDependencies(form)
        number, sample = self._form_number(form), ParameterSample()
        rows = dependencies.noting(self.screen(form, batches))
        self.journal.put_rows(self._rows(rows, first, number, check, submitted, sample))
        if number >= forms:
            form.varies = varying(sample.rows)
            self.journal.put_form(number, form.pack())
        for terms in range(known, len(self.terms)):
            self.journal.put_terms(terms, pack_terms(self.terms[terms]))
        dependencies.resolve(self.earlier.before(first), self.what)
        return dependencies

    def _put_dependencies(self, dependencies: ListDependencies, submitted: list[Submitted]) -> None:
        """Store the dependencies of the rows as events, and add these events to the rows' last batch."""
        if submitted and (events := self.earlier.events(dependencies, submitted[0].first)):
            submitted[-1] = replace(submitted[-1], dependencies=events)
            self.journal.put_events(events, clock.now())

    def _move(self, lock: ExitStack, held: HeldCounter, first: int, tasks: int) -> int:
        """Give the next free ids to the rows whose ids begin at `first`, and return by how much the ids were raised.

        The ids are taken first; the rows are moved after the lock on the counter was released.
        """
        by = held.task - first
        held.advance(task=held.task + tasks, run=held.run)
        lock.close()
        self.journal.move_rows(first, by)
        self.journal.flush()
        return by

    def _undo(self, terms: int, forms: int) -> None:
        """Forget the terms and forms of a refused list; they are not in the journal."""
        del self.terms[terms:], self._forms[forms:]
        self._by_value = {known: number for number, known in enumerate(self.terms)}
        self._form_numbers = {text: number for text, number in self._form_numbers.items() if number < forms}
        self._numbers.clear()

    def _form_number(self, form: RowForm) -> int:
        text = form.pack()
        number = self._form_numbers.get(text)
        if number is None:
            number = self._form_numbers[text] = len(self._forms)
            self._forms.append(form)
        return number

    def _rows(
        self,
        batches: Iterable[Sequence[InputRow]],
        first: int,
        form: int,
        check: Callable[[Terms, int], None],
        submitted: list[Submitted],
        sample: ParameterSample,
    ) -> Iterator[tuple[int, int, int, int, int, int, str]]:
        batch = self._batch
        for rows in batches:
            batch += 1
            numbers: list[int] = []
            for row, cells, terms, nth in rows:
                known = self._numbers.get(id(terms))
                number = known[1] if known is not None else self._terms_number(terms, row, check)
                text = SEPARATOR.join(cells)
                if text.count(SEPARATOR) != len(cells) - 1 or text[:1] == "[" or not is_text(text):
                    text = pack_cells(cells)
                if sample.wants_next():
                    sample.rows.append(command.row_parameters(self._forms[form].spec(cells, row)))
                yield (first + len(numbers), batch, row, nth, number, form, text)
                numbers.append(number)
            submitted.append(Submitted(batch, first, numbers))
            first += len(numbers)

    def _terms_number(self, terms: Terms, row: int, check: Callable[[Terms, int], None]) -> int:
        number = self._by_value.get(terms)
        if number is None:
            check(terms, row)
            number = self._by_value[terms] = len(self.terms)
            self.terms.append(terms)
        if len(self._numbers) > 50_000:
            self._numbers.clear()
        self._numbers[id(terms)] = (terms, number)
        return number

    # ---- the port ----

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        """Append events; with `later`, defer the writing to the next call."""
        self.journal.record(events, at, later=later)
        for event in events:
            if isinstance(event, Exited):
                self._ended.append((event.task, event.attempt))
                self._jobs.pop(event.task, None)
            elif isinstance(event, Changed):
                self._jobs.clear()
                self._changed.update(dict.fromkeys(event.tasks, event.terms))
        if not later:
            ended, self._ended = self._ended, []
            for task, attempt in ended:
                self.clear(task, attempt)

    def job(self, task: int) -> Job:
        """Return the text of a task, from which its command is made."""
        if task not in self._jobs:
            if len(self._jobs) >= MOST_JOBS:
                self._jobs.clear()
            self._jobs[task], _ = self._job(task)
        return self._jobs[task]

    def said(self, task: int) -> tuple[Spec, Programs]:
        """Return the row of a task in the form in which it was given, and the finder of programs for the task's
        shell.
        """
        row, said = self._row(task)
        return said, self.programs_of(self._forms[row.form])

    def _row(self, task: int) -> tuple[Row, Spec]:
        row = self.journal.row(task)
        said = self._texts.spec(row)
        return row, replace(said, terms=self.terms[self._changed[task]]) if task in self._changed else said

    def programs_of(self, form: RowForm) -> Programs:
        """Return the finder of programs for the shell from which rows of this form were submitted."""
        return self.shells.of(form.shell).programs if form.shell else self.programs

    def _job(self, task: int) -> tuple[Job, Programs]:
        """Return the text of a task, and the finder of programs for the task's shell."""
        row, said = self._row(task)
        form = self._forms[row.form]
        programs = self.programs_of(form)
        shell = self.shells.of(form.shell).task_shell if form.shell else None
        spec, variables = launched(said, programs)
        return Job(
            spec, command.name(said, varies=form.varies), command.key(said, row.nth), form.append, variables, shell,
            self.earlier.results_for(task), form.adapts,
        ), programs  # fmt: skip

    def number_of(self, terms: Terms) -> int:
        """Return the number of these terms; if they are new, write them to the journal."""
        number = self._by_value.get(terms)
        if number is None:
            number = len(self.terms)
            with self.journal.transaction():
                self.journal.put_terms(number, pack_terms(terms))
            self._by_value[terms] = number
            self.terms.append(terms)
        return number

    def kind(self, task: int) -> TaskClass:
        """Return the class of a task. Raise TimeoutError if the folder of the task's script does not answer."""
        assert self.kinds is not None
        return self.kinds.of(*self._job(task))

    def learn(self, kind: TaskClass, evidence: Observation, devices: Sequence[str]) -> None:
        """Add the observation of an ended attempt to the profile of its class, for the hardware on which the attempt
        ran.
        """
        if self.kinds is not None and any(evidence.peaks.values()):
            there = kind.on(self.kinds.hardware.ran_on(devices))
            if there is not None:
                self.kinds.profiles.learn(there, there.device, evidence, clock.now())

    def probe_id(self, task: int) -> int:
        """Take an id for a probe from the counter, and create the folder of that id. Raise StateError if that fails."""
        with self._counter.held(LOOP_PATIENCE) as held:
            told = held.task
            held.advance(task=told + 1, run=held.run)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.places.task(told), 0o700)
        return told

    def end_probe(self, task: int, told: int) -> None:
        """Remove the folder of a probe, unless the probe used the id and the folder of its task; `told` is the id that
        the probe was given.
        """
        if told != task:
            shutil.rmtree(self.places.task(told), ignore_errors=True)

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        """Return the flat JSON object that an attempt wrote as its result; the file stays until the end of the attempt
        is recorded.
        """
        return read_result(self.places.result(task, attempt))

    def ignored_result(self, task: int, attempt: int) -> str:
        """Return why the result file of an ended attempt was ignored; empty if there is no such file, or if it was
        read.
        """
        return ignored(self.places.result(task, attempt))

    def clear(self, task: int, attempt: int) -> None:
        """Remove the result and progress files of an attempt whose end is recorded; keep JSON lines, because their
        curve may not be read to its end yet.
        """
        for leftover in (self.places.result(task, attempt), self.places.progress(task, attempt)):
            there = os.access(leftover, os.F_OK, follow_symlinks=False)
            if there and not has_lines(leftover):  # most attempts leave none, and an exception takes longer
                with contextlib.suppress(OSError):
                    os.unlink(leftover)

    def arrivals(self, *, last: bool) -> Arrivals:
        """Accept rows that were appended to the source, as new batches."""
        if self.source is None:
            return Arrivals()
        rows, mark, sentence = self.source.appended(last=last)
        if not rows:
            return Arrivals(sentence=sentence, more=self.source.more)
        num = len(rows) if self.source.more else self.num  # in a source without an end, each arrival is a batch
        batches = [sorted(rows[i : i + num], key=lambda r: r[2].priority) for i in range(0, len(rows), num)]
        try:
            submitted = self.accept_more(self.source.form, batches, {"mark": mark})
        except UsageError as exc:  # an invalid row, or one that needs what a node lacks
            return Arrivals(sentence=f"{exc}; no appended row is accepted before this is corrected")
        self.source.accepted()
        return Arrivals(submitted, sentence, more=self.source.more)

    @property
    def next_batch(self) -> int:
        """The number of the batch that is accepted next."""
        return self._batch + 1

    def accept_more(
        self, form: RowForm, batches: Iterable[Sequence[InputRow]], facts: Mapping[str, str]
    ) -> list[Submitted]:
        """Accept rows that join the run, together with new values of facts, in one durable transaction; raise the
        errors that `accept` raises.
        """
        later = _Later(self.next_batch)
        return self.accept(form, batches, self.check, lambda count: facts, later, LOOP_PATIENCE)

    def untaken(self) -> str:
        """Return a sentence about appended rows that were never accepted; empty if there are none."""
        if self.source is None:
            return ""
        rows, sentence = self.source.untaken()
        try:
            for row, _, terms, _ in rows:
                self.check(terms, row)
        except UsageError as exc:
            sentence = str(exc)
        onward = f"correct it, then scheduler resume r{self.places.number} runs them"
        return f"{sentence}; this row and the rows after it were not accepted: {onward}" if sentence else ""
