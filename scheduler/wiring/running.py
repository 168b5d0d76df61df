"""Joins what makes a run go: its list, its book, its devices, its engine, its views."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from scheduler import clocks, native
from scheduler.core.brain import Brain
from scheduler.core.model import State
from scheduler.core.ports import Key, View
from scheduler.core.results import Fold, totals
from scheduler.errors import StateError
from scheduler.interrupts import Interrupts
from scheduler.settings import Settings
from scheduler.store.requests import pending
from scheduler.store.rundir import Book
from scheduler.store.runs import RunInfo
from scheduler.values import dataclass
from scheduler.wiring import notifying, watching
from scheduler.wiring.choices import Choices
from scheduler.wiring.reading import Telling, places
from scheduler.wiring.shells import Origin
from scheduler.wiring.standing import Standing

if TYPE_CHECKING:
    from scheduler.core.orders import Surroundings
    from scheduler.devices.pool import Pool
    from scheduler.engines.local import LocalEngine
    from scheduler.loop import Ports
    from scheduler.realworld import RealWorld
    from scheduler.store.leases import Ledger
    from scheduler.view.plain import PlainView
    from scheduler.view.sink import Sink
    from scheduler.wiring.idleness import Looks
    from scheduler.wiring.outlook import Outlook


Dress = Callable[[View], View]


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


class Session:
    """One run and everything that makes it go, from the accepted list to the last word."""

    def __init__(
        self,
        book: Book,
        brain: Brain,
        devices: Pool,
        choices: Choices,
        settings: Settings,
        meta: Mapping[str, str],
        origin: Origin,
    ) -> None:
        self.book = book
        self.brain = brain
        self.devices = devices
        self.choices = choices
        self.settings = settings
        self.meta = meta
        self.origin = origin
        self.places = book.places
        self.fold = Fold()
        """What the journal already tells, where the run was taken over."""
        self.earlier: list[str] = []
        """What is to be said of earlier runs of the same list."""
        self.just_ended: list[Key] = []
        """Attempts whose end was recorded last; an earlier scheduler may have died before it forgot them."""
        self.outlook: Outlook | None = None
        """What is expected of it, while it goes on."""
        self.world: RealWorld | None = None
        """In which it goes on."""
        self.inherits = False
        """Whether its tasks write to this process's own standard streams, and not to their logs."""
        self.detached = False
        """Whether it runs without a terminal."""
        self.interrupts = Interrupts()
        """From now on: what is accepted must not end with its terminal before it begins."""

    @property
    def number(self) -> int:
        """The run's number."""
        return self.book.places.number

    def go(
        self, stream: TextIO | None, words: Sequence[str] = (), dress: Dress | None = None, *, live: bool = False
    ) -> Ended:
        """Run it to its end; `stream` sees the lines, the run's log always does; `dress` makes another view of them.

        `live`: a stream that is a terminal sees the live view instead, between the first lines and the last.
        """
        from scheduler.loop import Loop
        from scheduler.view.sink import Sink

        with contextlib.ExitStack() as open_things:
            sink = Sink(self.places.log, stream)
            open_things.callback(sink.close)
            for line in words:
                sink.line(line, at=clocks.now())
            open_things.callback(self.interrupts.close)
            ports = self._ports(open_things, sink)
            lively = watching.live_view(self, ports, sink, stream) if live and not self.inherits else None
            if lively is not None:
                open_things.callback(lively.close)
                ports = lively.ports
            ports = self._foreseen(ports, open_things)
            ports, telling = notifying.notified(self, ports)
            if dress is not None:
                ports = replace(ports, view=dress(ports.view))
            loop = Loop(self.brain, ports, self._surroundings())
            loop.adopt(self.just_ended)
            loop.digest(ports.world.wait(0.0))  # what was asked while nobody was here comes before the first start
            loop.run()
            with contextlib.suppress(StateError):  # on a full disk whoever looks reads all of it
                Standing(self).write()
            if lively is not None:
                lively.close(repeat=loop.left_early)
            if not loop.left_early and dress is None:
                self._close(sink)
            if telling is not None and not loop.left_early:
                telling.end(sink)
            return Ended(self.number, dict(self.brain.roll.counts), self.interrupts.last)

    def _surroundings(self) -> Surroundings:
        """What every task is told."""
        from scheduler.core.orders import Surroundings

        return Surroundings(
            str(self.number),
            self.meta["python"],
            self.meta["directory"],
            self.places,
            self.origin.shell.environ,
            same_id=self.settings.profile_id == "same",
        )

    def _ports(self, open_things: contextlib.ExitStack, sink: Sink) -> Ports:
        """Everything the loop acts on; what has to be closed is given to `open_things`."""
        from scheduler.devices.pool import Watchers
        from scheduler.loop import Ports
        from scheduler.realworld import Asking, RealWorld
        from scheduler.store.disks import Disks
        from scheduler.store.requests import Requests
        from scheduler.view.plain import PlainView
        from scheduler.wiring import provisions

        run = self.places
        ledger = open_things.enter_context(contextlib.closing(open_ledger(self.settings, self.meta["token"])))
        engine = self._engine()
        open_things.callback(engine.close)
        engine.warm()
        provisions.load()  # while the server starts
        host = self.devices.host.watcher(run.code)
        open_things.callback(host.close)
        gpus = self.devices.moved_gpus(run.code)
        labels = {device.key: device.label for device in self.devices.discover()}
        plain = PlainView(sink, self.book.job, run.task_log, lambda: self.brain.roll.counts, self.fold, labels)
        requests = Requests(run)
        open_things.callback(requests.close)
        mps = self.devices.serving_mps(run.code)
        self.world = RealWorld([engine, host, *gpus, *mps, Asking(self.interrupts), requests, self._looks()])
        if self.book.source is not None:
            self.world.add(self.book.source)
        watchers = Watchers([host, *gpus, *mps])
        answer, sharing = requests.answer, self.devices.mps
        view = self._beside_output(plain, open_things) if self.inherits else plain
        disks = Disks([run.root, run.tasks], *self.settings.disk_min)
        return Ports(self.world, self.book, self.devices, engine, watchers, ledger, view, answer, sharing, disks)

    def _foreseen(self, ports: Ports, open_things: contextlib.ExitStack) -> Ports:
        """The ports with a look ahead, and one at how it stands, now and then."""
        from scheduler.realworld import LookedAt
        from scheduler.wiring.outlook import Outlook

        if self.world is None:
            return ports
        self.outlook = Outlook(self, ports)
        open_things.callback(self.outlook.close)
        self.world.add(self.outlook)
        return replace(ports, world=LookedAt(LookedAt(ports.world, self.outlook), Standing(self)))

    def _engine(self) -> LocalEngine:
        from scheduler.engines.local import LocalEngine
        from scheduler.store.shell import this_shell

        run, shell = self.places, self.origin.shell
        engine = LocalEngine(
            run.tasks,
            run.shim,
            shell.environ,
            self.meta["token"],
            bounds=shell.beyond(this_shell()),
            log_max=self.settings.log_max,
        )
        if self.settings.cgroup == "never":
            engine.ungroup()
        compiled = run.native if self.settings.shim != native.PYTHON and run.native.exists() else None
        engine.prefer(compiled, lambda: native.begin(places(self.settings), self.settings.shim))
        if self.choices.plain:
            engine.loosen((1, 2) if self.inherits else ())
        return engine

    def _beside_output(self, plain: PlainView, open_things: contextlib.ExitStack) -> View:
        """A view that leaves the terminal to the tasks."""
        import sys

        from scheduler.view.processing import ProcessingView
        from scheduler.view.sink import Sink

        out = Sink(None, sys.stdout)
        open_things.callback(out.close)
        return ProcessingView(plain, out, lambda task: self.book.job(task).spec.own[0][1])

    def _looks(self) -> Looks:
        """So that `status` can tell who has done nothing for long."""
        from scheduler.wiring import everybody
        from scheduler.wiring.holders import holders
        from scheduler.wiring.idleness import Looks

        return Looks(lambda: everybody.idle(self.settings, holders(self.settings), self.devices.snapshot(), {}))

    def _close(self, sink: Any) -> None:
        from scheduler.view import closing, processing

        def rows() -> Iterator[dict[str, Any]]:  # reads the whole journal: for short lists, and what failed
            return Telling(self.info(), self.book.journal).rows()

        counts = self.brain.roll.counts
        if self.inherits:
            processing.close(processing.last_words(rows(), counts, self.number), sink)
            return
        in_numbers = totals(self.fold, counts, int(self.meta.get("capacity", "0")))
        for line in closing.lines(in_numbers, rows, self.number, self.book.untaken()):
            sink.line(line, at=clocks.now())

    def first_words(self) -> list[str]:
        """The first lines of a new run."""
        from scheduler.loop import look_ahead
        from scheduler.view import opening

        look_ahead(self.brain, self.book.kind)
        said = [f"hint:   {self.book.kinds.profiles.said}"] if self.book.kinds and self.book.kinds.profiles.said else []
        said += [f"hint:   {why}" for why in (places(self.settings).why,) if why]
        said += [f"hint:   {note}" for note in self.devices.notes]
        said += [f"hint:   {sentence}" for sentence in self.earlier]
        unheard = self.brain.knowledge.unheard()
        if unheard:
            said.append(f"hint:   no task has an argument {', '.join(unheard)} (--memory-args, --ignore-args)")
        if self.devices.mps is None and any(terms.thread_percentage is not None for terms in self.brain.terms):
            said.append("hint:   thread percentages mean nothing outside of MPS, and this run has none of it (--mps)")
        budgets = self.devices.snapshot()
        return said + opening.lines(self._telling(), budgets, self.devices.limits, self.settings, self.brain)

    def resuming_words(self) -> list[str]:
        """The first lines of a run taken over."""
        from scheduler.view import opening

        said = opening.resuming_lines(self._telling(), self.brain, asked=bool(pending(self.places)))
        return [*said, *(f"hint:   {note}" for note in self.notes())]

    def notes(self) -> Sequence[str]:
        """What its tasks lack of what the run was started with; nothing where none will start."""
        return self.origin.notes if self.brain.waiting or self.brain.living() else ()

    def write_json(self, out: TextIO) -> None:
        """The results as JSON."""
        from scheduler.view import tables

        telling = Telling(self.info(), self.book.journal)
        tables.write_json(telling.run_facts(), telling.rows(), out)

    def info(self) -> RunInfo:
        """The run, as views find it."""
        return RunInfo(self.number, self.places, self.meta, alive=True)

    def _telling(self) -> dict[str, str]:
        detached = "yes" if self.detached else ""
        return {**self.meta, "number": str(self.number), "root": str(self.places.root), "detached": detached}

    def close(self) -> None:
        """Let the run, its devices and the signals go."""
        self.interrupts.close()
        self.devices.close()
        self.book.close()


def open_ledger(settings: Settings, token: str) -> Ledger:
    """This run's place among the machine's promises."""
    from scheduler.processes import boot_id
    from scheduler.store.leases import Ledger, find_directory

    return Ledger(find_directory(settings.leases or None), token, boot_id())
