"""A run while its one scheduler lives: made or taken over, locked, filled with rows and events."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from scheduler import clocks
from scheduler.core import command
from scheduler.core.events import Arrived, Changed, Event, Exited, Submitted
from scheduler.core.fields import SEPARATOR, Form, is_text, pack_cells, pack_terms, unpack_cells, unpack_terms
from scheduler.core.kinds import Kind, files_of, kind, script_of
from scheduler.core.knowledge import Evidence
from scheduler.core.model import Job, Terms
from scheduler.core.ports import Arrivals, Happening
from scheduler.environments import Programs
from scheduler.errors import InputError, StateError, StillRunning
from scheduler.paths import Places, RunPlaces, make_private, open_plain
from scheduler.store.counter import Counter
from scheduler.store.journal import Journal
from scheduler.store.launching import launched, located
from scheduler.store.locks import take_lock
from scheduler.store.profiles import Profiles
from scheduler.store.runs import RunInfo, Runs

Cells = tuple[int, list[str], Terms, int]
"""A row of a door: its number in the source, its cells, their terms, and which of its equals it is."""
LARGEST_RESULT = 64 * 1024
MOST_JOBS = 256
"""So many texts are kept of tasks that live."""
LARGEST_SCRIPT = 16 * 1024 * 1024


class Rows(Protocol):
    """A source that may grow while its run goes on."""

    form: Form

    @property
    def more(self) -> bool:
        """Whether the run is not over when nothing of it is left: more may come."""

    def fileno(self) -> int:
        """Readable when there may be rows; -1: only a look tells."""

    def collect(self) -> Sequence[Happening]:
        """Read what there is; never blocks, and nothing has happened before its rows are accepted."""

    def appended(self, *, last: bool) -> tuple[Sequence[Cells], str, str]:
        """Rows that came since, what to remember once they are accepted, and a sentence about anything else."""

    def accepted(self) -> None:
        """The rows told last were taken; until then they are told again when the source changes."""

    def untaken(self) -> tuple[Sequence[Cells], str]:
        """Rows that stand there and were not taken, and what is wrong with the one behind them; looks anew."""


class Again(Protocol):
    """What earlier runs of the same list mean for a new one."""

    def refuse(self) -> None:
        """Raise where this list must not begin now; nobody else accepts a list meanwhile."""

    def events(self, first: int) -> Sequence[Event]:
        """What is known of its rows from the beginning, the first of them having this id."""


class _Later:
    """Rows that join a run: from which batch on."""

    def __init__(self, batch: int) -> None:
        self._arrived = Arrived(batch)

    def refuse(self) -> None:
        """They are of the run's own list."""

    def events(self, first: int) -> Sequence[Event]:
        """When they came."""
        return [self._arrived]


class Book:
    """The journal of a run while its one scheduler lives: rows in, events in, texts out."""

    def __init__(self, places: RunPlaces, journal: Journal, counter: Counter, lock: int) -> None:
        self.places = places
        self.journal = journal
        self.terms: list[Terms] = []
        self.source: Rows | None = None
        self.num = 20
        self.kinds: Kinds | None = None
        self.programs = Programs(os.environ)
        """Finds the programs of rows, as the shell does that the run was started from."""
        self.check: Callable[[Terms, int], None] = lambda terms, row: None
        """Refuses terms that this machine can never serve."""
        self._counter = counter
        self._lock = lock
        self._numbers: dict[int, tuple[Terms, int]] = {}
        self._by_value: dict[Terms, int] = {}
        self._forms: list[Form] = []
        self._batch = 0
        self._jobs: dict[int, Job] = {}
        self._ended: list[tuple[int, int]] = []
        """Attempts whose end is not durable yet, and whose result stays until it is."""
        self._changed: dict[int, int] = {}
        """The terms of tasks that were given others than their rows say."""

    # ---- opening ----

    @classmethod
    def create(cls, places: Places, counter: Counter, code: Sequence[tuple[Path, str]]) -> Book:
        """A new run with the next number; nobody sees it before its list is accepted."""
        make_private(places.runs)
        with counter.held() as held:
            number = max([held.run, *(n + 1 for n in Runs(places).numbers())])
            held.advance(task=held.task, run=number + 1)
        run = places.run(number)
        make_private(run.root)
        try:
            lock = _take_lock(run, number)
            _copy_code(run, code)
            make_private(run.tasks)
            return cls(run, Journal.create(run.journal), counter, lock)
        except BaseException:
            shutil.rmtree(run.root, ignore_errors=True)
            raise

    @classmethod
    def resume(cls, info: RunInfo, counter: Counter, code: Sequence[tuple[Path, str]] = ()) -> Book:
        """An existing run, taken over; raises StillRunning where its scheduler lives. `code` is copied anew.

        Raises StateError where it is somebody else's: their commands would run as this user, which only root could try.
        """
        owner = info.places.root.stat().st_uid
        if owner != os.getuid():
            raise StateError(
                f"run {info.number} belongs to user {owner}: its tasks would run as you, let them resume it"
            )
        lock = _take_lock(info.places, info.number)
        _copy_code(info.places, code)
        book = cls(info.places, Journal.open(info.places.journal), counter, lock)
        book.num = int(info.meta.get("num", "20"))
        book.terms = [unpack_terms(text) for text in book.journal.terms()]
        book._by_value = {terms: number for number, terms in enumerate(book.terms)}
        book._forms = [Form.unpack(text) for text in book.journal.forms()]
        book._batch = book.journal.count()[1]
        for event in book.journal.changes():
            book._changed.update(dict.fromkeys(event.tasks, event.terms))
        return book

    def close(self) -> None:
        """Let the run go; the next may take it."""
        if self.kinds is not None:
            self.kinds.profiles.close()
        with contextlib.suppress(StateError):
            self.journal.checkpoint()
        self.journal.close()
        os.close(self._lock)

    def discard(self) -> None:
        """Undo `create`: the list was refused."""
        self.journal.close()
        shutil.rmtree(self.places.root, ignore_errors=True)
        os.close(self._lock)

    # ---- accepting ----

    def accept(
        self,
        form: Form,
        batches: Iterable[Sequence[Cells]],
        check: Callable[[Terms, int], None],
        meta: Callable[[int], Mapping[str, str]],
        again: Again | None = None,
    ) -> list[Submitted]:
        """Take a whole list in one durable transaction; whatever `check`, `again` or the rows raise leaves nothing."""
        submitted: list[Submitted] = []
        known, forms = len(self.terms), len(self._forms)
        try:
            with self._counter.held() as held, self.journal.transaction():
                if again is not None:
                    again.refuse()
                self.journal.put_rows(self._rows(batches, held.task, self._form_number(form), check, submitted))
                for terms in range(known, len(self.terms)):
                    self.journal.put_terms(terms, pack_terms(self.terms[terms]))
                self.journal.put_meta(dict(meta(sum(len(s.terms) for s in submitted))))
                if submitted:
                    self.journal.put_events(again.events(submitted[0].first) if again is not None else (), clocks.now())
                    held.advance(task=submitted[-1].first + len(submitted[-1].terms), run=held.run)
        except BaseException:
            self._undo(known, forms)
            raise
        self._batch += len(submitted)
        return submitted

    def _undo(self, terms: int, forms: int) -> None:
        """Forget what a refused list brought along: the journal has none of it."""
        del self.terms[terms:], self._forms[forms:]
        self._by_value = {known: number for number, known in enumerate(self.terms)}
        self._numbers.clear()

    def _form_number(self, form: Form) -> int:
        for number, known in enumerate(self._forms):
            if known.pack() == form.pack():
                return number
        self._forms.append(form)
        self.journal.put_form(len(self._forms) - 1, form.pack())
        return len(self._forms) - 1

    def _rows(
        self,
        batches: Iterable[Sequence[Cells]],
        first: int,
        form: int,
        check: Callable[[Terms, int], None],
        submitted: list[Submitted],
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
        """Append events, durably at once or with those of the next call."""
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
        """The text of a task; that of one that lives is asked for more than once."""
        if task not in self._jobs:
            if len(self._jobs) >= MOST_JOBS:
                self._jobs.clear()
            self._jobs[task] = self._job(task)
        return self._jobs[task]

    def _job(self, task: int) -> Job:
        row = self.journal.row(task)
        form = self._forms[row.form]
        said = form.spec(unpack_cells(row.text), row.row)
        if task in self._changed:
            said = replace(said, terms=self.terms[self._changed[task]])
        spec, variables = launched(said, self.programs)
        return Job(spec, command.name(said), command.key(said, row.nth), form.append, variables)

    def number_of(self, terms: Terms) -> int:
        """The number of these terms, new ones written down."""
        number = self._by_value.get(terms)
        if number is None:
            number = len(self.terms)
            with self.journal.transaction():
                self.journal.put_terms(number, pack_terms(terms))
            self._by_value[terms] = number
            self.terms.append(terms)
        return number

    def kind(self, task: int) -> Kind:
        """What kind a task is of."""
        assert self.kinds is not None
        return self.kinds.of(self._job(task))

    def learn(self, kind: Kind, evidence: Evidence) -> None:
        """Keep what an ended attempt taught."""
        if self.kinds is not None and any(evidence.peaks.values()):
            self.kinds.profiles.learn(kind, kind.device, evidence, clocks.now())

    def probe_id(self, task: int) -> int:
        """A fresh id from the counter, and its folder."""
        with self._counter.held() as held:
            told = held.task
            held.advance(task=told + 1, run=held.run)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.places.task(told), 0o700)
        return told

    def end_probe(self, task: int, told: int) -> None:
        """Remove what a probe left under an id of its own."""
        if told != task:
            shutil.rmtree(self.places.task(told), ignore_errors=True)

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        """The flat JSON object that an attempt left; it stays until its end is recorded."""
        path = self.places.result(task, attempt)
        if not os.access(path, os.F_OK):
            return {}
        try:
            with open_plain(path) as file:
                text = file.read(LARGEST_RESULT + 1)
        except OSError:
            return {}
        return flat_object(text)

    def clear(self, task: int, attempt: int) -> None:
        """Remove the result and the progress of an attempt whose end is recorded."""
        for leftover in (self.places.result(task, attempt), self.places.progress(task, attempt)):
            if os.access(leftover, os.F_OK, follow_symlinks=False):  # most leave none, and an error takes longer
                with contextlib.suppress(OSError):
                    os.unlink(leftover)

    def arrivals(self, *, last: bool) -> Arrivals:
        """Rows appended to the source, as new batches."""
        if self.source is None:
            return Arrivals()
        rows, mark, sentence = self.source.appended(last=last)
        if not rows:
            return Arrivals(sentence=sentence, more=self.source.more)
        num = len(rows) if self.source.more else self.num  # what never ends has no batches but its arrivals
        batches = [sorted(rows[i : i + num], key=lambda r: r[2].priority) for i in range(0, len(rows), num)]
        try:
            later = _Later(self._batch + 1)
            submitted = self.accept(self.source.form, batches, self.check, lambda count: {"mark": mark}, later)
        except InputError as exc:
            return Arrivals(sentence=f"{exc}; none of the appended rows is taken before it is mended")
        self.source.accepted()
        return Arrivals(submitted, sentence, more=self.source.more)

    def untaken(self) -> str:
        """Of a run that ends: which appended row never joined it, why, and what to do; empty where all did."""
        if self.source is None:
            return ""
        rows, sentence = self.source.untaken()
        try:
            for row, _, terms, _ in rows:
                self.check(terms, row)
        except InputError as exc:
            sentence = str(exc)
        onward = f"mend it, then scheduler resume {self.places.number} runs them"
        return f"{sentence}; this row and what stands behind it never joined: {onward}" if sentence else ""


class Kinds:
    """Finds the kind of a task: reads its script once for each version of it."""

    def __init__(self, profiles: Profiles, programs: Programs, directory: str, device: Callable[[Terms], str]) -> None:
        self.profiles = profiles
        self.device = device
        """What a task runs on, as far as its memory depends on that."""
        self._programs = programs
        self._directory = directory
        self._digests: dict[tuple[str, int, int], str] = {}

    def of(self, job: Job) -> Kind:
        """The kind of a row as it stands now; a program on PATH is known by its path."""
        job = replace(job, spec=located(job.spec, self._programs))
        place = os.path.join(self._directory, job.spec.directory)
        files = files_of(job.spec, script_of(job.spec))
        digest = next(filter(None, (self._digest(os.path.join(place, file)) for file in files)), "")
        return kind(job.spec, job.append, self._programs.python.path, digest, self.device(job.spec.terms))

    def _digest(self, path: str) -> str:
        """The script's content; nothing where it is no readable file."""
        try:
            status = os.stat(path)
            key = (path, status.st_mtime_ns, status.st_size)
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_SCRIPT:
                return ""
            if key not in self._digests:
                self._digests[key] = blake2b(Path(path).read_bytes(), digest_size=10).hexdigest()
        except OSError:
            return ""
        return self._digests[key]


def flat_object(text: bytes) -> dict[str, Any]:
    """A flat JSON object as its numbers, texts and truths; anything else is nothing."""
    if len(text) > LARGEST_RESULT:
        return {}
    try:
        data = json.loads(text)
        json.dumps(data, ensure_ascii=False).encode()  # half a character can be written as JSON, and nowhere else
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(k): v for k, v in data.items() if v is None or isinstance(v, (str, int, float, bool))}


def _take_lock(run: RunPlaces, number: int) -> int:
    fd = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        take_lock(fd)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise StillRunning(f"run {number} is alive (process {pid or 'unknown'}): scheduler status shows it") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def _copy_code(run: RunPlaces, code: Sequence[tuple[Path, str]]) -> None:
    """A run uses the code it started with, whatever becomes of the installation."""
    for source, name in code:
        target = run.code / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if os.access(source, os.X_OK):
            target.chmod(0o700)
