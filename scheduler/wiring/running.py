"""Joins what makes a run go: its list, its book, its devices, its engine, its views."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from scheduler.core import command, packing
from scheduler.core.brain import Brain
from scheduler.core.events import Asked, Exited, Submitted
from scheduler.core.fields import Form
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Knowledge, Profile
from scheduler.core.model import HOST, Budget, Job, Machine, Manners, Order, Profiling, State, Terms
from scheduler.core.ports import Key
from scheduler.core.results import Fold
from scheduler.core.rules import Rules
from scheduler.errors import InputError
from scheduler.paths import RUN_CODE, Places, RunPlaces
from scheduler.settings import Settings
from scheduler.store.counter import Counter
from scheduler.store.profiles import Profiles
from scheduler.store.rundir import Book, Cells, Kinds
from scheduler.store.runs import RunInfo
from scheduler.units import GIB, count, size
from scheduler.wiring.finding import find_devices
from scheduler.wiring.reading import Telling, places

if TYPE_CHECKING:
    from scheduler.devices.pool import Pool
    from scheduler.doors.csv_batches import CsvFile, Mark
    from scheduler.interrupts import Interrupts
    from scheduler.loop import Ports
    from scheduler.store.leases import Ledger
    from scheduler.view.sink import Sink

MOST_PLANNED = 1000
"""A plan looks at the needs of so many tasks."""
CLASSIC_COUNTER = Path("scheduler_files/counter.txt")


@dataclass(frozen=True, slots=True)
class Choices:
    """What was asked of one run besides the Settings; kept in its journal, so that `resume` asks for the same."""

    devices: str = HOST
    """`auto`, or what `--devices` says; runs of older versions knew the host only."""
    slots: int | None = None
    jobs: int | None = None
    max_per_device: int | None = None
    name: str = ""
    learn_only: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """A door's rows, ready to be accepted."""

    what: str
    form: Form
    rows: Iterator[Cells]
    warnings: Callable[[], Sequence[str]] = field(default=lambda: ())
    file: CsvFile | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: enough for an exit code."""

    number: int
    states: Mapping[State, int]
    signal: int = 0

    @property
    def exit_code(self) -> int:
        """0 all succeeded, 1 some did not, 130 after INT, 143 after TERM."""
        if self.signal in (2, 15):
            return 128 + self.signal
        good = self.states.get(State.SUCCEEDED, 0) + self.states.get(State.SKIPPED, 0)
        return 0 if good == sum(self.states.values()) else 1


def rules(choices: Choices, settings: Settings) -> Rules:
    """What the core decides by."""
    usual = Rules()
    return Rules(
        order=Order(settings.order),
        buffer=settings.buffer,
        max_load=settings.max_load,
        max_gpu_load=settings.max_gpu_load,
        jobs=choices.jobs,
        slots=choices.slots,
        max_per_device=choices.max_per_device,
        profile=Profiling(settings.profile),
        profile_epochs=settings.profile_epochs,
        settle=usual.settle if settings.settle is None else settings.settle,
        gpu_settle=usual.gpu_settle if settings.settle is None else settings.settle,
        manners=Manners(settings.foreign),
        foreign_calm=settings.foreign_calm,
        margin=settings.margin[0],
        margin_bytes=settings.margin[1],
        learn_only=choices.learn_only,
    )


def csv_listing(path: str, *, header: int | None, defaults: Mapping[str, str], append: str, python: str) -> Listing:
    """A CSV file as a listing."""
    from scheduler.doors.csv_batches import CsvFile

    file = CsvFile(path, header=header, defaults=defaults, append=append, python=python)
    return Listing(path, file.form, file.rows(), lambda: file.warnings, file)


class _Following:
    """The CSV file of a run that goes on: rows appended behind what was accepted."""

    def __init__(self, file: CsvFile, mark: Mark) -> None:
        self.form = file.form
        self._file = file
        self._mark = self._next = mark

    def appended(self, *, last: bool) -> tuple[Sequence[Cells], str, str]:
        """The rows, the mark behind them, and what else happened to the file."""
        rows, self._next, sentence = self._file.appended(self._mark, last=last)
        return rows, self._next.pack() if rows else "", sentence or ""

    def accepted(self) -> None:
        """The rows told last are in the journal."""
        self._mark = self._next


class Session:
    """One run and everything that makes it go, from the accepted list to the last word."""

    def __init__(
        self, book: Book, brain: Brain, devices: Pool, choices: Choices, settings: Settings, meta: Mapping[str, str]
    ) -> None:
        self.book = book
        self.brain = brain
        self.devices = devices
        self.choices = choices
        self.settings = settings
        self.meta = meta
        self.places = book.places
        self.fold = Fold()
        """What the journal already tells, where the run was taken over."""
        self.just_ended: list[Key] = []
        """Attempts whose end was recorded last; an earlier scheduler may have died before it forgot them."""

    @property
    def number(self) -> int:
        """The run's number."""
        return self.book.places.number

    def go(self, stream: TextIO | None, words: Sequence[str] = ()) -> Ended:
        """Run it to its end; `stream` sees the lines, the run's log always does."""
        from scheduler.interrupts import Interrupts
        from scheduler.loop import Loop, Surroundings
        from scheduler.view.sink import Sink

        run = self.places
        with contextlib.ExitStack() as open_things:
            sink = Sink(run.log, stream)
            open_things.callback(sink.close)
            for line in words:
                sink.line(line, at=time.time())
            interrupts = Interrupts()
            open_things.callback(interrupts.close)
            around = Surroundings(
                str(self.number),
                self.meta["python"],
                self.meta["directory"],
                run,
                os.environ,
                same_id=self.settings.profile_id == "same",
            )
            loop = Loop(self.brain, self._ports(open_things, sink, interrupts), around)
            loop.adopt(self.just_ended)
            loop.run()
            if not loop.left_early:
                self._close(sink)
            return Ended(self.number, dict(self.brain.roll.counts), interrupts.last)

    def _ports(self, open_things: contextlib.ExitStack, sink: Sink, interrupts: Interrupts) -> Ports:
        """Everything the loop acts on; what has to be closed is given to `open_things`."""
        from scheduler.devices.pool import Watchers
        from scheduler.devices.watcher import HostWatcher
        from scheduler.engines.local import LocalEngine
        from scheduler.loop import Asking, Ports, RealWorld
        from scheduler.view.plain import PlainView

        run = self.places
        ledger = _ledger(self.settings, self.meta["token"])
        open_things.callback(ledger.close)
        engine = LocalEngine(run.tasks, run.shim, dict(os.environ), self.meta["token"])
        open_things.callback(engine.close)
        engine.warm()
        host = HostWatcher(run.code)
        open_things.callback(host.close)
        gpus = [] if self.devices.gpus is None else [self.devices.gpus]
        labels = {device.key: device.label for device in self.devices.discover()}
        view = PlainView(sink, self.book.job, run.task_log, lambda: self.brain.roll.counts, self.fold, labels)
        world = RealWorld([engine, host, *gpus, Asking(interrupts)])
        return Ports(world, self.book, self.devices, engine, Watchers([host, *gpus]), ledger, view)

    def _close(self, sink: Any) -> None:
        from scheduler.view import closing

        telling = Telling(self._info(), self.book.journal)
        for line in closing.lines(telling.totals(), telling.rows, self.number):
            sink.line(line, at=time.time())

    def first_words(self) -> list[str]:
        """The first lines of a new run."""
        from scheduler.loop import look_ahead
        from scheduler.view import opening

        look_ahead(self.brain, self.book.kind)
        said = [f"hint:   {self.book.kinds.profiles.said}"] if self.book.kinds and self.book.kinds.profiles.said else []

        said += [f"hint:   {note}" for note in self.devices.notes]
        budgets = self.devices.snapshot()
        return said + opening.lines(self._telling(), budgets, self.devices.source, self.settings, self.brain)

    def resuming_words(self) -> list[str]:
        """The first lines of a run taken over."""
        from scheduler.view import opening

        return opening.resuming_lines(self._telling(), self.brain)

    def write_json(self, out: TextIO) -> None:
        """The results as JSON."""
        from scheduler.view import tables

        telling = Telling(self._info(), self.book.journal)
        tables.write_json(telling.run_facts(), telling.rows(), out)

    def _info(self) -> RunInfo:
        return RunInfo(self.number, self.places, self.meta, alive=True)

    def _telling(self) -> dict[str, str]:
        return {**self.meta, "number": str(self.number), "root": str(self.places.root)}

    def close(self) -> None:
        """Let the run and its devices go."""
        self.devices.close()
        self.book.close()


def _ledger(settings: Settings, token: str) -> Ledger:
    from scheduler.processes import boot_id
    from scheduler.store.leases import Ledger, find_directory

    return Ledger(find_directory(settings.leases or None), token, boot_id())


def begin(listing: Listing, choices: Choices, settings: Settings, python: str) -> Session | None:
    """Accept a list durably and make its run; None where it has no rows. Raises what the door or a device refuses."""
    pool = find_devices(choices.devices, settings)
    try:
        return _begin(listing, choices, settings, python, pool)
    except BaseException:
        pool.close()
        raise


def _begin(listing: Listing, choices: Choices, settings: Settings, python: str, pool: Pool) -> Session | None:
    home = places(settings)
    counter = Counter(home.counter, _classic_first())
    budgets = pool.snapshot()
    _ledger(settings, "").close()  # better refused now than once the list is accepted
    book = Book.create(home, counter, RUN_CODE)
    brain = Brain(rules(choices, settings), book.terms, _knowledge(book, settings, python, os.getcwd(), pool))
    book.num = settings.num
    facts = _facts(listing, choices, settings, python, book.places)
    facts["accepted"] = str(time.time())
    facts["capacity"] = str(_capacity(budgets, settings))
    facts["labels"] = json.dumps({b.device.key: b.device.label for b in budgets})
    try:
        submitted = book.accept(
            listing.form,
            _batches(listing.rows, settings.num),
            _checker(listing.what, budgets, brain.rules),
            lambda tasks: {**facts, "mark": _mark(listing), "accepted": str(time.time()), "tasks": str(tasks)},
        )
    except BaseException:
        book.discard()
        raise
    if not submitted:
        book.discard()
        pool.close()
        return None
    for event in submitted:
        brain.apply(event)
    if listing.file is not None:
        book.source = _Following(listing.file, listing.file.mark)
        book.check = _checker(listing.what, budgets, brain.rules)
    return Session(book, brain, pool, choices, settings, facts)


def _capacity(budgets: Sequence[Budget], settings: Settings) -> int:
    """What there is to fill: the GPUs' memory, or the host's where there are none."""
    gpus = [b for b in budgets if b.device.is_gpu] or budgets
    return sum(packing.largest(b.device, b.cap) - settings.buffer for b in gpus)


def plan(listing: Listing, choices: Choices, settings: Settings, python: str, out: TextIO) -> int:
    """Check a whole list and show what would start now; nothing is accepted, nothing starts."""
    from scheduler.view import opening

    pool = find_devices(choices.devices, settings)
    budgets = pool.snapshot()
    pool.close()
    kinds = _kinds(places(settings), python, os.getcwd(), pool)
    known = kinds.profiles.known() if kinds is not None else {}
    brain = Brain(rules(choices, settings), knowledge=_known(known, settings))
    jobs: dict[int, Job] = {}
    first, numbers = 1, dict[Terms, int]()
    for batch, rows_ in enumerate(_batches(listing.rows, settings.num), 1):
        terms = []
        for offset, (row, cells, said, nth) in enumerate(rows_):
            if said not in numbers:
                _check(listing.what, said, row, budgets, brain.rules)
                numbers[said] = len(brain.terms)
                brain.terms.append(said)
            terms.append(numbers[said])
            if first + offset <= MOST_PLANNED:
                spec = listing.form.spec(cells, row)
                jobs[first + offset] = Job(spec, command.name(spec), command.key(spec, nth), listing.form.append)
        brain.apply(Submitted(batch, first, terms))
        first += len(terms)
    for task, job in jobs.items():
        brain.assign(task, kinds.of(job) if kinds is not None else Kind(f"row {task}", job.name, probes=False))
    decision = brain.decide(Machine(time.time(), budgets))
    out.writelines(line + "\n" for line in opening.plan_lines(listing.what, brain, decision, jobs))
    return 0


def _kinds(home: Places, python: str, directory: str, pool: Pool) -> Kinds | None:
    """What earlier runs learned, where there were any; a plan makes no state."""
    return _kinds_of(home, python, directory, pool) if home.profiles.exists() else None


def _kinds_of(home: Places, python: str, directory: str, pool: Pool) -> Kinds:
    return Kinds(Profiles(home.profiles), python, directory, _models(pool))


def _models(pool: Pool) -> Callable[[Terms], str]:
    """What a task runs on, as far as its memory depends on that: the host, or how many GPUs of which models."""
    found = pool.discover()
    on_host = " ".join(f"{d.key} {round(d.total / GIB)}GiB" for d in found if not d.is_gpu)
    models = sorted({f"{d.model} {round(d.total / GIB)}GiB" for d in found if d.is_gpu})
    on_gpus = ", ".join(models) + (f" ({pool.driver}, by {pool.reads})" if models else "")

    def model(terms: Terms) -> str:
        gpus = packing.gpus_of(terms, bool(models))
        return f"{gpus} x {on_gpus}" if gpus else on_host

    return model


def _knowledge(book: Book, settings: Settings, python: str, directory: str, pool: Pool) -> Knowledge:
    """What earlier runs learned; the book learns on for later ones."""
    book.kinds = _kinds_of(places(settings), python, directory, pool)
    return _known(book.kinds.profiles.known(), settings)


def _known(known: Mapping[str, Profile], settings: Settings) -> Knowledge:
    return Knowledge(known, ignore=_names(settings.ignore_args), only=_names(settings.memory_args))


def _names(said: str) -> list[str]:
    return [name.strip() for name in said.split(",") if name.strip()]


def _batches(rows: Iterable[Cells], num: int) -> Iterator[list[Cells]]:
    from scheduler.doors.csv_batches import batches

    return batches(rows, num)


def _mark(listing: Listing) -> str:
    return listing.file.mark.pack() if listing.file is not None else ""


def _classic_first() -> int:
    """Ids start above the counter of the batch-by-batch original, where its file is there."""
    try:
        return int(CLASSIC_COUNTER.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return 0


def _facts(listing: Listing, choices: Choices, settings: Settings, python: str, run: RunPlaces) -> dict[str, str]:
    from scheduler.processes import boot_id, hostname, machine_id

    kept = {name: value for name, value in asdict(settings).items() if name not in ("source", "state", "leases")}
    return {
        "file": listing.what,
        "name": choices.name,
        "num": str(settings.num),
        "choices": json.dumps(asdict(choices)),
        "settings": json.dumps(kept),
        "python": python,
        "directory": os.getcwd(),
        "token": f"{run.number}-{os.urandom(4).hex()}",
        "host": hostname(),
        "boot": boot_id(),
        "machine": machine_id(),
    }


def _checker(what: str, budgets: Sequence[Any], rules_: Rules) -> Callable[[Terms, int], None]:
    return lambda terms, row: _check(what, terms, row, budgets, rules_)


def _check(what: str, terms: Terms, row: int, budgets: Sequence[Budget], rules_: Rules) -> None:
    """Refuse what no device here can ever hold, with the numbers."""
    gpus = [b.device for b in budgets if b.device.is_gpu]
    if (terms.gpus or 0) > len(gpus):
        here = f"this run has {count(len(gpus), 'GPU')}" if gpus else "this machine has none: 0 = host only"
        raise InputError(what, f"wants {count(terms.gpus or 0, 'GPU')}, {here}", row, "GPUs")
    for name, column in ((terms.device, "Device"), (terms.prefer, "Prefer")):
        if name and not any(packing.is_called(b.device, name) for b in budgets):
            labels = ", ".join(b.device.label for b in budgets)
            raise InputError(what, f"there is no device {name!r} in this run; there is: {labels}", row, column)
    refusal = packing.never_fits(terms, budgets)
    if refusal is not None:
        raise InputError(
            what,
            f"wants {size(refusal.wanted)}, the largest device ({refusal.device}) has {size(refusal.total)}: "
            f"lower it{' or give it more GPUs' if len(gpus) > (terms.gpus or 1) else ''}",
            row,
            "Memory" if terms.memory is not None and refusal.wanted == terms.memory else "HostMemory",
        )


def take_over(info: RunInfo, settings: Settings) -> Session:
    """Take a run over that no scheduler holds; raises StillRunning where one does."""
    home = places(settings)
    book = Book.resume(info, Counter(home.counter, _classic_first()))
    choices = Choices(**json.loads(info.meta["choices"]))
    kept = json.loads(info.meta["settings"])
    settings = replace(settings, **{**kept, "margin": tuple(kept["margin"])})
    pool = find_devices(choices.devices, settings)
    knowledge = _knowledge(book, settings, info.meta["python"], info.meta["directory"], pool)
    brain = Brain(rules(choices, settings), book.terms, knowledge)
    for submitted in book.journal.submissions():
        brain.apply(submitted)
    session = Session(book, brain, pool, choices, settings, info.meta)
    at = 0.0
    for recorded in book.journal.events():
        brain.apply(recorded.event, recorded.at)
        session.fold.take(recorded.event, recorded.at)
        if recorded.at != at and not isinstance(recorded.event, Asked):
            at = recorded.at
            session.just_ended.clear()
        if isinstance(recorded.event, Exited):
            session.just_ended.append((recorded.event.task, recorded.event.attempt))
    for key in session.just_ended:
        book.clear(*key)
    asked = Asked("resume")
    book.record([asked], time.time())
    brain.apply(asked)
    book.source = _source_of(info, book)
    book.check = _checker(info.meta["file"], pool.snapshot(), brain.rules)
    return session


def _source_of(info: RunInfo, book: Book) -> _Following | None:
    if not info.meta.get("mark"):
        return None
    from scheduler.doors.csv_batches import CsvFile, Mark

    form = Form.unpack(book.journal.forms()[0])
    file = CsvFile.resumed(info.meta["file"], form, python=info.meta["python"], cwd=info.meta["directory"])
    return _Following(file, Mark.unpack(info.meta["mark"]))


def this_python(settings: Settings) -> str:
    """What `-1` stands for."""
    return settings.python or sys.executable
