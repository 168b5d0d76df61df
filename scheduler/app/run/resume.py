"""Taking over a run that has no scheduler: `scheduler resume`."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

from scheduler.app.observe.run_facts import places
from scheduler.app.queue.parent_runs import ParentRuns
from scheduler.app.run.admission import checker
from scheduler.app.run.devices import cap_power, find_devices, limit_memory
from scheduler.app.run.options import ResumeOptions, RunOptions, rules
from scheduler.app.run.session import RunSession
from scheduler.app.run.shell_context import ShellContext, keep_shell, shell_of_resumed_run
from scheduler.app.run.start import counter, machine_facts, make_brain, screen_for, try_leases, use_mps
from scheduler.app.run.task_list import resumed
from scheduler.core.causes import Action
from scheduler.core.events import Asked, Event, Exited
from scheduler.core.model import Outcome, Placement
from scheduler.core.ports import Key
from scheduler.errors import Elsewhere, ForbiddenEvent, StateError, StillRunning
from scheduler.runtime import clock
from scheduler.runtime.settings import Settings
from scheduler.runtime.shim import hostname
from scheduler.store.queue.submitted_shells import SubmittedShells
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.journal_database import newer
from scheduler.store.run.removal import claims
from scheduler.store.run.run_store import SqliteRunStore
from scheduler.units import count, ranges
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.app.run.devices import RunDevices

EPOCH = "epoch"
"""The name of the fact that counts the takeovers of a run. Agents on nodes do not obey a scheduler with a lower count
than they know."""
JUST_ENDED = 500
"""The number of attempts that ended last and whose files may still exist: a scheduler starts the next tasks before it
removes files."""


def take_over(info: RunInfo, settings: Settings, how: ResumeOptions) -> RunSession:
    """Take over a run. Raise StillRunning if the run has a scheduler, Elsewhere if it belongs to another machine.

    The tasks of the run start with the environment of the shell that the run was started from, or of this shell.
    """
    if info.elsewhere and not how.gone:
        raise Elsewhere(
            f"run {info.number} belongs to {info.elsewhere}, this is {hostname()}: nothing was started. Resume it on "
            f"{info.elsewhere}; if that machine is gone for good, scheduler resume r{info.number} --takeover treats "
            "its running tasks as lost and starts them again here"
        )
    if info.lost and not how.gone:
        raise StateError(
            f"{info.lost}: nothing was started. scheduler resume r{info.number} --takeover continues from what is "
            "left, and starts tasks again that are not known to have ended"
        )
    options, settings = _first_options(info, settings)
    try_leases(settings)
    store = SqliteRunStore.resume(info, counter(places(settings)))
    if how.keep_going:
        options = replace(options, keep_going=True)
    if how.mps:
        options = replace(options, mps=how.mps, mps_exclusive=options.mps_exclusive and how.mps == "on")
    shell = shell_of_resumed_run(info.places, info.meta, settings, from_now=how.env_from_now)
    store.programs = shell.programs
    store.shells = SubmittedShells(store.places.shells, shell.shell.environ, on_nodes=bool(settings.on))
    pool = _find_devices(info, options, settings, shell)
    brain = make_brain(store, options, settings, shell, pool)
    session = RunSession(store, brain, pool, options, settings, _facts(info, shell), shell)
    try:
        _replay(session)
        if info.lost:
            _forget_what_is_lost(info, session)
        if how.env_from_now:
            keep_shell(store.places, shell)
        _claim(session, info.elsewhere, drain=how.drain)
    except BaseException:
        session.close()
        raise
    store.source = resumed(info, store.journal, store.programs)
    _check_more_rows(session)
    return session


def _check_more_rows(session: RunSession) -> None:
    """Prepare the store for rows that are appended to the list, or submitted."""
    store = session.store
    store.earlier.others = ParentRuns(session.settings, session.number)
    store.earlier.others.follow(session.brain.dependencies)
    store.what = session.meta["file"]
    budgets = session.devices.snapshot()
    store.check = checker(store.what, budgets, session.brain.rules)
    store.screen = screen_for(
        store, store.what, session.meta["door"], session.devices, budgets, session.meta["directory"]
    )


def _find_devices(info: RunInfo, options: RunOptions, settings: Settings, shell: ShellContext) -> RunDevices:
    """Return the devices of the run, shared under MPS if the run uses it. A node that cannot be reached does not
    prevent the use of the others.
    """
    if settings.on:
        from scheduler.app.cluster.nodes import connect, known_devices

        return connect(options, settings, shell.shell.environ, info.meta["python"], known_devices(info.meta))
    pool = find_devices(options.devices, settings, shell.for_devices(), expect=options.mps == "off")
    try:
        limit_memory(pool, options)
        use_mps(pool, options, settings)
        cap_power(pool, options, settings)
    except BaseException:
        pool.close()
        raise
    return pool


def _first_options(info: RunInfo, settings: Settings) -> tuple[RunOptions, Settings]:
    """Return the options and settings with which a run began; raise Newer if this version does not know one of them."""
    kept = json.loads(info.meta["settings"])
    kept = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    try:
        options, settings = RunOptions.from_dict(json.loads(info.meta["choices"])), replace(settings, **kept)
        rules(options, settings)
    except (TypeError, ValueError) as exc:
        raise newer(info.places.journal, f"one of its options or settings is unknown here: {exc}") from exc
    return options, settings


def _forget_what_is_lost(info: RunInfo, session: RunSession) -> None:
    """Remove files of attempts that the journal has lost; raise StillRunning if one of them is alive."""
    known = {(task.id, task.attempts) for task in session.brain.living()}
    unknown = [claim for claim in claims(info.places) if claim[:2] not in known]
    alive = sorted({task for task, _, _, shim in unknown if shim})
    if alive:
        raise StillRunning(
            f"run {info.number}: its journal has lost the start of {count(len(alive), 'task')} that still "
            f"{'runs' if len(alive) == 1 else 'run'} ({ranges(alive)}): take the run over once "
            f"{'it has' if len(alive) == 1 else 'they have'} ended"
        )
    for _, _, path, _ in unknown:
        path.unlink(missing_ok=True)
    session.store.journal.accept_loss()


def _replay(session: RunSession) -> None:
    """Apply all events of the journal to the Brain, and remove the files of the attempts that ended last."""
    store, brain, session.resumed = session.store, session.brain, True
    for submitted in store.journal.submissions():
        brain.apply(submitted, float(session.meta["accepted"]))
    ended: deque[Key] = deque(maxlen=JUST_ENDED)
    for recorded in store.journal.events():
        try:
            brain.apply(recorded.event, recorded.at)
        except (ForbiddenEvent, LookupError) as exc:
            raise store.journal.contradiction(exc) from exc
        session.history.take(recorded.event, recorded.at)
        if isinstance(recorded.event, Exited):
            ended.append((recorded.event.task, recorded.event.attempt))
    session.just_ended.extend(ended)
    for key in session.just_ended:
        store.clear(*key)


def _facts(info: RunInfo, shell: ShellContext) -> dict[str, str]:
    """Return the facts to record about a run that this machine has taken over."""
    taken_over = str(int(info.meta.get(EPOCH, "0")) + 1)
    return {**info.meta, **machine_facts(), **shell.facts, EPOCH: taken_over}


def _claim(session: RunSession, elsewhere: str, *, drain: bool) -> None:
    """Record that the run belongs to this machine now; attempts on the run's other machine, if that will not come back,
    count as lost.

    Attempts on other nodes continue, and their agents report them.
    """
    why = f"it ran on {elsewhere}, which was given up with --takeover"
    living = [task for task in session.brain.living() if elsewhere and _is_on_head(task.placement)]
    events: list[Event] = [Asked(Action.RESUME)]
    events += [Exited(task.id, task.attempts, Outcome.LOST, reason=why) for task in living]
    events += [Asked(Action.DRAIN)] if drain else []
    now = clock.now()
    session.store.record(events, now)
    for event in events:
        session.brain.apply(event, now)
        session.history.take(event, now)
    with session.store.journal.transaction():
        names = {*machine_facts(), *session.shell.facts, EPOCH}
        session.store.journal.put_meta({name: text for name, text in session.meta.items() if name in names})


def _is_on_head(placement: Placement | None) -> bool:
    """Tell whether an attempt is on the machine of its scheduler."""
    from scheduler.cluster.link import LOCAL

    return placement is None or placement.node in ("", LOCAL)
