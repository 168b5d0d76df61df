"""Running a session: its first lines, its ports and observers, the loop, its last lines.

`run_to_end` is the composition; the functions below it build one part each.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, TextIO

from scheduler.app import notify
from scheduler.app.live.terminal_view import LiveScreen, live_view
from scheduler.app.observe.device_readings import ReadingsWriter
from scheduler.app.observe.run_facts import places
from scheduler.app.observe.run_reader import RunReader
from scheduler.app.observe.status_snapshot import DeviceNamesRecorder, StatusRecorder
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import CALLS, QUEUE
from scheduler.core.model import GOOD_ENDS, Profiling, State
from scheduler.core.ports import Engine, LeaseRegistry, Request, SubmissionResult, View, Watcher
from scheduler.core.reporting.run_history import totals
from scheduler.errors import StateError
from scheduler.runtime import clock
from scheduler.runtime.paths import PACKAGE
from scheduler.store.run.requests import pending
from scheduler.store.run.run_code import RunCode
from scheduler.values import dataclass, replace

if TYPE_CHECKING:
    from scheduler.cluster.head import Nodes
    from scheduler.core.attempts.launch_spec import TaskEnvironment
    from scheduler.devices.pool import DevicePool
    from scheduler.execution.engine import LocalEngine
    from scheduler.runtime.event_sources import EventSource, Observer, SystemWorld
    from scheduler.runtime.loop import Ports
    from scheduler.runtime.settings import Settings
    from scheduler.store.machine.leases import FileLeaseRegistry
    from scheduler.store.run.requests import RequestInbox
    from scheduler.ui.terminal.closing import ClosingFacts
    from scheduler.ui.terminal.sink import LineSink

MOST_RANKED = 500
"""The most tasks that a run may have for its closing lines to name the best task."""
PRELOADING = 300.0
"""Seconds within which the fork server must answer if it loads the modules of an executor first."""
FIRST_SUBMISSION = 0.5
"""Seconds for which a new queue waits for the submission that started it."""
FILE_CHECKS = 1.0
"""Seconds between two checks that the run's own files still exist."""

LAZY = (
    "concurrent.futures.thread", "csv", "ctypes", "encodings.idna", "hashlib", "psutil", "pwd", "shlex", "shutil",
    "tempfile", "tomllib", "traceback",
)  # fmt: skip
"""Modules that a run, or the standard library modules it uses, would otherwise load late."""
NOT_IN_A_RUN = (
    "scheduler.api", "scheduler.cli", "scheduler.compat", "scheduler.experiment", "scheduler._",
    "scheduler.ui.terminal.live_view", "scheduler.ui.terminal.screen", "scheduler.ui.terminal.top", "scheduler.ui.live",
    "scheduler.app.live.tasks", "scheduler.app.live.details", "scheduler.app.live.requests",
    "scheduler.app.live.machine", "scheduler.ui.verbs.doctor", "scheduler.ui.verbs.why", "scheduler.ui.verbs.status",
    "scheduler.ui.web.report", "scheduler.ui.web.server", "scheduler.ui.web.status_data", "scheduler.app.observe.web",
    "scheduler.app.observe.machine_status", "scheduler.app.doctor", "scheduler.app.observe.why",
    "scheduler.app.control.retention", "scheduler.app.observe.monitor", "scheduler.app.control.devices",
    "scheduler.app.control.completion_data", "scheduler.app.agents", "scheduler.app.observe.report",
    "scheduler.app.observe.wait", "scheduler.app.queue.exec_client", "scheduler.app.cluster", "scheduler.cluster",
)  # fmt: skip
"""Entry points and modules of other verbs, which are not loaded because they would slow every start."""

ViewWrapper = Callable[[View], View]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The facts about the end of a run that determine the exit code."""

    number: int
    states: Mapping[State, int]
    signal: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code: 0 if all tasks succeeded or were stopped early by their metrics, 1 if some did not, 130 after
        SIGINT, 143 after SIGTERM.
        """
        if self.signal in (2, 15):
            return 128 + self.signal
        good = sum(self.states.get(state, 0) for state in GOOD_ENDS)
        return 0 if good == sum(self.states.values()) else 1


def run_to_end(
    session: RunSession, stream: TextIO | None = None, wrap: ViewWrapper | None = None, *, live: bool = False
) -> RunResult:
    """Run a session to its end and return how it ended.

    All lines go to the run's log and to `stream`; with `live`, a stream that is a terminal shows the live view instead,
    between the first and the last lines. `wrap` puts a view of the caller around the run's view; then no last lines are
    printed.
    """
    from scheduler.runtime.loop import Loop
    from scheduler.ui.terminal.sink import LineSink

    with contextlib.ExitStack() as stack:
        sink = LineSink(session.places.log, stream)
        stack.callback(sink.close)
        sink_lines(sink, _first_lines(session))
        stack.callback(session.signals.close)
        world, ports = _make_ports(session, sink, stack)
        views = _attach_views(session, world, ports, sink, stream if live else None, stack)
        ports = views.ports if wrap is None else replace(views.ports, view=wrap(views.ports.view))
        loop = Loop(session.brain, ports, _task_environment(session))
        loop.adopt(session.just_ended)
        is_queue = session.meta["door"] == QUEUE
        # Requests recorded without a scheduler come before the first start; the one that starts a queue comes at once.
        loop.digest(ports.world.wait(FIRST_SUBMISSION if is_queue else 0.0))
        if is_queue:
            load_modules()  # now that the first submission is answered, whose client waits
        loop.run()
        with contextlib.suppress(StateError):  # on a full disk readers read all events instead
            views.status.write()
        if views.screen is not None:
            views.screen.close(repeat=loop.left_early)
        if not loop.left_early and wrap is None:
            _write_last_lines(session, sink)
        if views.notifier is not None and not loop.left_early:
            views.notifier.end(sink)
        return RunResult(session.number, dict(session.brain.state_counts), session.signals.last)


def run_here(session: RunSession, *, as_json: bool, live: bool) -> int:
    """Run a session to its end on this terminal, close it, and return its exit code; with `as_json`, print its results
    as JSON.
    """
    with contextlib.closing(session):
        ended = run_to_end(session, sys.stderr if as_json else sys.stdout, live=live)
        if as_json:
            write_json(session, sys.stdout)
    return ended.exit_code


def sink_lines(sink: LineSink, lines: Sequence[str]) -> None:
    """Write lines with the current time."""
    for line in lines:
        sink.line(line, at=clock.now())


# ---- the parts ----


def _make_ports(session: RunSession, sink: LineSink, stack: contextlib.ExitStack) -> tuple[SystemWorld, Ports]:
    """Build the objects through which the loop acts and waits; `stack` closes them."""
    from scheduler.devices.pool import DevicePool
    from scheduler.runtime.event_sources import Asking, PeriodicCheck, SystemWorld
    from scheduler.runtime.loop import Ports
    from scheduler.store.run.requests import RequestInbox

    store, devices = session.store, session.devices
    parts = _parts_here(session, devices, stack) if isinstance(devices, DevicePool) else _parts_there(session, stack)
    inbox = RequestInbox(session.places)
    stack.callback(inbox.close)
    files = PeriodicCheck(store.check_files, FILE_CHECKS)  # a run ends if its directory or journal is removed
    asked = inbox if parts.nodes is None else _node_requests(parts.nodes, inbox)
    world = SystemWorld([*parts.sources, Asking(session.signals), asked, files, store.earlier.others])
    if store.source is not None:
        world.add(store.source)
    if session.meta["door"] == QUEUE:
        world.add(_guests(session, stack))
    view = _make_view(session, sink, stack)
    return world, Ports(
        world, store, devices, parts.engine, parts.watcher, parts.leases, view, inbox.answer, _receiver(session),
        devices.mps, session.disks(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Parts:
    """The ports that start and watch the attempts of a run: on this machine, or on its nodes."""

    engine: Engine
    leases: LeaseRegistry
    watcher: Watcher
    sources: Sequence[EventSource]
    nodes: Nodes | None = None


def _parts_here(session: RunSession, devices: DevicePool, stack: contextlib.ExitStack) -> _Parts:
    from scheduler.devices.pool import Watchers

    code = session.places.code
    leases = stack.enter_context(contextlib.closing(open_leases(session.settings, session.meta["token"])))
    engine = _make_engine(session)
    stack.callback(engine.close)
    if session.meta["door"] != QUEUE:  # the tasks of a queue may wait for long, and each process takes memory
        engine.warm()
        load_modules()  # while the fork server starts
    host = devices.host.watcher(code)
    stack.callback(host.close)
    gpus, mps = devices.moved_gpus(code), devices.serving_mps(code)
    return _Parts(engine, leases, Watchers([host, *gpus, *mps]), [engine, host, *gpus, *mps])


def _node_requests(nodes: Nodes, inbox: RequestInbox) -> EventSource:
    """Return the inbox without requests about the nodes themselves, which `NodeRequests` carries out."""
    from scheduler.app.cluster.node_requests import NodeRequests

    return NodeRequests(nodes, inbox, inbox.answer)


def _parts_there(session: RunSession, stack: contextlib.ExitStack) -> _Parts:
    from scheduler.app.cluster.content import needs_of_waiting
    from scheduler.app.cluster.nodes import join
    from scheduler.cluster.devices import ClusterDevices

    assert isinstance(session.devices, ClusterDevices)
    nodes, shell = session.devices.nodes, session.shell.shell
    stack.callback(lambda: nodes.close(over=session.brain.over))
    nodes.needs = lambda: needs_of_waiting(session.store, session.brain, session.meta["directory"])
    warm = _warm(session) if session.meta["door"] == CALLS else {}
    ports = join(nodes, session.places, session.meta, shell.umask, warm, session.brain)
    load_modules()
    nodes.await_reports()
    return _Parts(ports.engine, ports.leases, ports.watcher, [ports.nodes], ports.nodes)


def _guests(session: RunSession, stack: contextlib.ExitStack) -> EventSource:
    """Return the watch over the processes that asked for leases; `stack` closes it."""
    from scheduler.app.queue.guest_watch import GuestWatch

    return stack.enter_context(contextlib.closing(GuestWatch(session.brain)))


def _receiver(session: RunSession) -> Callable[[Request], SubmissionResult]:
    """Return the function that accepts submissions."""
    from scheduler.core.control.requests import refuse_submission
    from scheduler.store.queue.submission import SubmissionReceiver

    if session.meta["door"] != QUEUE:
        return refuse_submission
    return SubmissionReceiver(session.store, session.meta.get("mark", ""), session.settings.on).accept


def open_leases(settings: Settings, token: str) -> FileLeaseRegistry:
    """Open the machine's leases for the run with this token; raise StateError if the lease directory cannot be used."""
    from scheduler.runtime.shim import boot_id
    from scheduler.store.machine.lease_directory import find_directory
    from scheduler.store.machine.leases import FileLeaseRegistry

    return FileLeaseRegistry(find_directory(settings.leases or None), token, boot_id())


@dataclass(frozen=True, slots=True)
class _Views:
    """The observers that show or record a run while it goes on, and the ports that feed them."""

    ports: Ports
    status: StatusRecorder
    screen: LiveScreen | None
    notifier: notify.NotifyingView | None


def _attach_views(
    session: RunSession,
    world: SystemWorld,
    ports: Ports,
    sink: LineSink,
    terminal: TextIO | None,
    stack: contextlib.ExitStack,
) -> _Views:
    """Attach the forecast, the status in the journal, the live view on a `terminal`, and notifications."""
    from scheduler.app.observe.eta import EtaUpdater
    from scheduler.devices.load_recorder import LoadRecorder
    from scheduler.runtime.event_sources import ObservedWorld

    eta, status = EtaUpdater(session, ports), StatusRecorder(session)
    load = LoadRecorder(session.devices.snapshot, session.brain.placements_exist, session.places.devices)
    stack.callback(eta.close)
    stack.callback(load.close)
    observers: list[Observer] = [eta, status, load, DeviceNamesRecorder(session)]
    if session.devices.gpus is not None or "nodes" in session.meta:
        observers.append(ReadingsWriter(session))
    screen = None if session.inherits else live_view(session, ports, world, lambda: eta.forecast, sink, terminal)
    if screen is not None:
        stack.callback(screen.close)
        observers.append(screen.view)
        ports = replace(ports, view=screen.view)
    notifier = notify.notifying_view(session, ports, world)
    if notifier is not None:
        ports = notifier.watch(ports)
    return _Views(replace(ports, world=ObservedWorld(world, observers)), status, screen, notifier)


def _make_engine(session: RunSession) -> LocalEngine:
    from scheduler.execution.engine import PATIENCE, LocalEngine
    from scheduler.execution.fork_server import ForkServer
    from scheduler.store.run.shell_state import this_shell

    run, shell = session.places, session.shell.shell
    server = ForkServer(run.shim, shell.environ, shell.beyond(this_shell()), run.server)
    patience = PATIENCE
    if session.meta["door"] == CALLS:
        server.warm, server.lasting = _warm(session), False
        session.store.journal.lasting = False  # a power failure ends the program and all its calls
        patience = PRELOADING if session.options.preload else PATIENCE
    engine = LocalEngine(run.tasks, server, session.meta["token"], patience=patience, log_max=session.settings.log_max)
    code = RunCode(run.code, json.loads(session.meta.get("code", "{}")))
    engine.mend_code(code.mend)
    code.sync_later()
    if session.settings.cgroup == "never":
        engine.ungroup()
    if session.options.plain:
        engine.loosen((1, 2) if session.inherits else ())
    return engine


def _warm(session: RunSession) -> dict[str, Any]:
    """Return what the fork server loads before it starts calls of an executor."""
    modules = ["cloudpickle", *session.options.preload]
    program = str(session.places.launcher)
    return {"python": sys.executable, "program": program, "modules": modules, "path": [*session.options.path]}


def load_modules() -> None:
    """Load all modules that a run may need while it goes on, so that an upgrade during the run cannot remove them."""
    for name in LAZY:
        import_module(name)
    for module in walk_packages([str(PACKAGE)], "scheduler."):
        if not module.name.startswith(NOT_IN_A_RUN):
            with contextlib.suppress(ImportError):  # a package that is not installed now is not needed later
                import_module(module.name)


def _make_view(session: RunSession, sink: LineSink, stack: contextlib.ExitStack) -> View:
    """Build the view that writes lines; if tasks inherit standard output, the view leaves that stream to them."""
    from scheduler.ui.terminal.plain_view import PlainView

    store, brain = session.store, session.brain
    session.devices.discover()
    labels = session.devices.labels
    plain = PlainView(sink, store.job, session.places.task_log, lambda: brain.state_counts, session.history, labels)
    if not session.inherits:
        return plain
    from scheduler.ui.terminal.sink import LineSink
    from scheduler.ui.terminal.slot_view import SlotView

    out = LineSink(None, sys.stdout)
    stack.callback(out.close)
    return SlotView(plain, out, lambda task: store.job(task).spec.own[0][1])


def _task_environment(session: RunSession) -> TaskEnvironment:
    from scheduler.core.attempts.launch_spec import TaskEnvironment
    from scheduler.core.metrics.stop_rules import wanted

    return TaskEnvironment(
        str(session.number),
        session.meta["python"],
        session.meta["directory"],
        session.places,
        session.shell.shell.environ,
        session.settings.metrics,
        wanted(session.settings.stop_when, session.settings.keep_best),
        same_id=session.settings.profile_id == "same" or session.settings.profile == Profiling.SEQUENTIAL,
        fence=session.devices.fence,
    )


# ---- first and last lines ----


def _first_lines(session: RunSession) -> list[str]:
    """Return the first lines of a run.

    The first lines of a new run are hints, the list, the devices, the Python, and what is known about memory.
    """
    if session.inherits:
        return []
    if session.resumed:
        return _resuming_lines(session)
    from scheduler.runtime.look_ahead import look_ahead
    from scheduler.ui.terminal import opening

    brain, devices, settings = session.brain, session.devices, session.settings
    look_ahead(brain, session.store.kind)
    classes = session.store.kinds
    hints = [classes.profiles.trouble if classes else "", places(settings).why, _warn_of_leases(settings)]
    hints += [*devices.notes, *session.notes_on_earlier]
    unknown = brain.profiles.unheard()
    if unknown:
        hints.append(f"no task has an argument {', '.join(unknown)} (--memory-args, --ignore-args)")
    if devices.mps is None and any(terms.thread_percentage is not None for terms in brain.terms):
        hints.append("thread percentages have no effect: this run does not use MPS (--mps)")
    lines = opening.lines(session.facts, devices.snapshot(), devices.limits, settings, brain)
    return [*(f"hint:   {hint}" for hint in hints if hint), *lines]


def _resuming_lines(session: RunSession) -> list[str]:
    """Return the first lines of a run that was taken over."""
    from scheduler.ui.terminal import opening

    lines = opening.resuming_lines(session.facts, session.brain, asked=bool(pending(session.places)))
    hints = [_warn_of_leases(session.settings), *session.notes]
    return [*lines, *(f"hint:   {hint}" for hint in hints if hint)]


def _warn_of_leases(settings: Settings) -> str:
    """Return a warning if another user could change the lease directory; otherwise nothing."""
    from scheduler.store.machine.lease_directory import find_directory, of_another_user

    return of_another_user(find_directory(settings.leases or None))


def _write_last_lines(session: RunSession, sink: LineSink) -> None:
    from scheduler.ui.terminal import closing, slot_view

    reader = RunReader(session.info, session.store.journal)

    def rows() -> Iterator[dict[str, Any]]:  # reads the whole journal: for short lists, and for failures
        return reader.rows_alone()

    counts = session.brain.state_counts
    if session.inherits:
        slot_view.close(slot_view.last_words(rows(), counts, session.number), sink)
        return
    summary = totals(session.history, counts, int(session.meta.get("capacity", "0")))
    summary = replace(summary, energy_wh=reader.energy())
    facts = replace(_of_metrics(reader, summary.tasks), untaken=session.store.untaken(), width=sink.width)
    sink_lines(sink, [*closing.lines(summary, rows, session.number, facts)])


def _of_metrics(reader: RunReader, tasks: int) -> ClosingFacts:
    """Return the parameters, the metrics and the best task of a run, if the run has few enough tasks to read them
    all.
    """
    from scheduler.core.metrics import ranking
    from scheduler.ui.terminal.closing import ClosingFacts
    from scheduler.ui.verbs.ranking import MOST_PARAMETERS, answer

    if tasks > MOST_RANKED:
        return ClosingFacts()
    found = [*reader.rows_and_metrics()]
    names = ranking.metrics_of((row for row, _ in found), reader.metric_names)
    varies = [name for name in reader.varies if name not in names]
    if not names:
        return ClosingFacts(varies)
    best = ranking.rank(found, names[0])
    several = sum(row["best"] is not None for row in best.rows) > 1
    said = answer(best, varies[:MOST_PARAMETERS]) if several else ""
    return ClosingFacts(varies, names, {row["id"]: row for row, _ in found}, said)


def write_json(session: RunSession, out: TextIO) -> None:
    """Write the results of the run as JSON."""
    from scheduler.ui.export import tables

    reader = RunReader(session.info, session.store.journal)
    tables.write_json(reader.run_facts(), reader.rows(), out)
