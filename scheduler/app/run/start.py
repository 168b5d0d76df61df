"""Starting a run: checking and accepting a list durably, and making the session that runs it.

`resume` takes over a run that was accepted before, `dry_run` plans one; both use the parts made here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.app.observe.run_facts import places
from scheduler.app.queue.parent_runs import ParentRuns
from scheduler.app.run.admission import Screen, check_sequential, checker, launcher_screen
from scheduler.app.run.devices import cap_power, check_slots, find_run_devices, limit_memory
from scheduler.app.run.options import RunOptions, ranked, rules
from scheduler.app.run.previous_runs import PreviousRuns, RerunOptions
from scheduler.app.run.run_loop import open_leases
from scheduler.app.run.session import RunSession
from scheduler.app.run.shell_context import ShellContext, keep_shell, shell_of_new_run
from scheduler.app.run.task_list import CALLS, TaskList, batches
from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Event
from scheduler.core.model import DeviceBudget
from scheduler.core.placement.device_capacity import largest
from scheduler.core.profiling.class_profile import Profile
from scheduler.core.profiling.hardware import Hardware
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.errors import UsageError
from scheduler.runtime import clock
from scheduler.runtime.paths import RUN_CODE, RunPaths, StatePaths
from scheduler.runtime.python_envs import Programs
from scheduler.runtime.settings import READERS, YES, Settings
from scheduler.runtime.shim import boot_id, hostname, machine_id
from scheduler.runtime.threads import BoundedCalls
from scheduler.store.profiles import ProfileStore
from scheduler.store.queue.submitted_shells import SubmittedShells
from scheduler.store.run.counter import Counter
from scheduler.store.run.run_store import SqliteRunStore
from scheduler.store.task_classes import TaskClassFinder

if TYPE_CHECKING:
    from scheduler.app.run.devices import RunDevices

UNWRITTEN = ("state", "leases", "notify", "features")
"""Settings that the journal does not keep: they belong to one machine, or may be secret."""
CLASSIC_COUNTER = Path("scheduler_files/counter.txt")
"""The file in which the older batch-by-batch tool counts task ids."""


def begin(
    listing: TaskList, options: RunOptions, settings: Settings, rerun: RerunOptions | None = None
) -> RunSession | None:
    """Accept a list durably and return its session; None if the list has no rows.

    Raise InputError, UsageError or DeviceError for an invalid list, and SameList if an earlier run of the file has not
    ended.
    """
    settings = ranked(settings, listing.form.known)
    listing.form.adapts = settings.launcher_args == YES
    check_slots(options)
    check_sequential(options, settings)
    previous = previous_runs_of(listing, options, settings, rerun or RerunOptions())
    previous.refuse()
    check_place(listing, settings)
    pool = find_run_devices(options, settings)
    try:
        session = _accept(listing, options, settings, pool, previous)
    except BaseException:
        pool.close()
        raise
    if session is None:
        pool.close()
    return session


def try_leases(settings: Settings) -> None:
    """Refuse a lease directory that cannot be used, before a list is accepted; nodes check their own lease
    directories.
    """
    if not settings.on:
        open_leases(settings, "").close()


def check_place(listing: TaskList, settings: Settings) -> None:
    """Refuse a list that can run on this machine only, if the run is on nodes."""
    if settings.on and listing.local:
        raise UsageError(f"on {settings.on}: {listing.local} cannot run on nodes yet; leave the setting `on` out")


def previous_runs_of(listing: TaskList, options: RunOptions, settings: Settings, rerun: RerunOptions) -> PreviousRuns:
    """Return the earlier runs of a list; a run that only learns has no earlier runs, and later runs ignore it."""
    return PreviousRuns(places(settings), "" if options.learn_only else listing.path, rerun)


def _accept(
    listing: TaskList, options: RunOptions, settings: Settings, pool: RunDevices, previous: PreviousRuns
) -> RunSession | None:
    """Write a list into the journal of a new run, and apply the list to a new Brain."""
    budgets = pool.snapshot()
    _check_lines(listing, budgets, rules(options, settings))
    try_leases(settings)
    mps = _could_use_mps(pool, options, settings)  # a daemon starts once every row has been checked
    shell = shell_of_new_run(settings)
    store = _new_store(settings, shell)
    facts = {
        **_facts(listing, options, settings, store.places),
        **_device_facts(budgets, settings),
        **_node_facts(pool),
        "code": json.dumps(store.code),
        **shell.facts,
        **previous.facts(),
    }
    previous.look_back()
    check = checker(listing.what, budgets, rules(options, settings, mps=mps), listing.form)
    store.check, store.screen = check, screen_for(store, listing.what, listing.door, pool, budgets, os.getcwd())

    def final_facts(tasks: int) -> dict[str, str]:  # the session has the same facts as the journal
        facts.update(mark=listing.mark, accepted=str(clock.now()), tasks=str(tasks))
        return facts

    try:
        keep_shell(store.places, shell)
        listing.prepare(store.places)
        store.what = listing.what
        rows = previous.noting(batches(listing.rows, settings.num), listing.form)
        submitted = store.accept(listing.form, rows, check, final_facts, previous)
        _set_up(pool, options, settings, mps=mps, wanted=bool(submitted) or listing.is_open)
    except BaseException:
        store.discard()
        raise
    if not submitted and not listing.is_open:
        store.discard()
        return None
    brain = make_brain(store, options, settings, shell, pool)
    _apply(brain, (*submitted, *(previous.events(submitted[0].first) if submitted else ())))
    store.source = listing.source
    session = RunSession(store, brain, pool, options, settings, facts, shell)
    session.notes_on_earlier.extend(previous.words())
    return session


def _check_lines(listing: TaskList, budgets: Sequence[DeviceBudget], config: SchedulingConfig) -> None:
    """Refuse default task fields that would make every later command of a stream invalid."""
    if listing.is_open:
        terms = listing.form.terms([""] * len(listing.form.columns))
        checker(listing.what, budgets, config, listing.form)(terms, None)


def _new_store(settings: Settings, shell: ShellContext) -> SqliteRunStore:
    store = SqliteRunStore.create(places(settings), counter(places(settings)), RUN_CODE)
    store.programs, store.num = shell.programs, settings.num
    store.shells = SubmittedShells(store.places.shells, shell.shell.environ, on_nodes=bool(settings.on))
    store.earlier.others = ParentRuns(settings, store.places.number)
    return store


def _set_up(pool: RunDevices, options: RunOptions, settings: Settings, *, mps: bool, wanted: bool) -> None:
    """Change the GPUs as the options say, once every row has been checked."""
    from scheduler.devices.pool import DevicePool

    if wanted and isinstance(pool, DevicePool):
        cap_power(pool, options, settings)
    if wanted and mps:
        use_mps(pool, options, settings)


def _apply(brain: Brain, events: Iterable[Event]) -> None:
    now = clock.now()
    for event in events:
        brain.apply(event, now)


def screen_for(
    store: SqliteRunStore, what: str, door: str, pool: RunDevices, budgets: Sequence[DeviceBudget], directory: str
) -> Screen:
    """Return the check that a run's rows pass before they are accepted. On nodes it also compares what the rows need
    with what the nodes have.

    Calls of an executor need only their directory and their interpreter, which this function checks itself.
    """
    from scheduler.devices.pool import DevicePool

    screen = launcher_screen(what, pool.usual, budgets)
    if isinstance(pool, DevicePool):
        return screen
    from scheduler.app.cluster.content import compared, need_for_calls

    if door == CALLS:
        need_for_calls(pool.nodes, directory, sys.executable)
        return screen
    return compared(pool.nodes, store, directory, screen)


def _node_facts(pool: RunDevices) -> dict[str, str]:
    """Return the devices of the nodes, if the run is on nodes, so that `resume` works while a node cannot be
    reached.
    """
    from scheduler.devices.pool import DevicePool

    return {} if isinstance(pool, DevicePool) else {"nodes": pool.to_json()}


def _could_use_mps(pool: RunDevices, options: RunOptions, settings: Settings) -> bool:
    """Tell whether the tasks will share GPUs under MPS; start no daemon, but end unused daemons.

    Outside of MPS, limit the memory of the tasks as requested.
    """
    from scheduler.app.run.mps_setup import clean_left, could_share
    from scheduler.devices.pool import DevicePool

    if not isinstance(pool, DevicePool):
        return False

    limit_memory(pool, options)
    clean_left(settings, pool)
    cap_power(pool, options, settings, check_only=True)
    return could_share(pool, options, settings)


def use_mps(pool: RunDevices, options: RunOptions, settings: Settings) -> None:
    """Make the tasks share GPUs under MPS if the options say so."""
    from scheduler.app.run.mps_setup import share
    from scheduler.devices.pool import DevicePool

    if isinstance(pool, DevicePool):
        share(pool, options, settings)


def make_brain(
    store: SqliteRunStore, options: RunOptions, settings: Settings, shell: ShellContext, pool: RunDevices
) -> Brain:
    """Return a Brain that knows the profiles of earlier runs; new observations go to the store."""
    store.kinds = class_finder(places(settings), store.programs, shell.directory, pool, BoundedCalls())
    profiles = profile_index(store.kinds.profiles.known(), settings)
    brain = Brain(rules(options, settings, mps=pool.mps is not None), store.terms, profiles)
    store.earlier.others.follow(brain.dependencies)
    return brain


def class_finder(
    home: StatePaths, programs: Programs, directory: str, pool: RunDevices, calls: BoundedCalls | None = None
) -> TaskClassFinder:
    """Return the finder of task classes for a run, with the store of their profiles.

    `calls` limits how long the finder waits for the files of scripts.
    """
    return TaskClassFinder(ProfileStore(home.profiles), programs, directory, _hardware(pool), calls)


def _hardware(pool: RunDevices) -> Hardware:
    """Return the hardware that a task's memory depends on: the host, or the number, model and driver of its GPUs."""
    return Hardware(pool.discover, lambda: pool.drivers, lambda: pool.usual)


def profile_index(known: Mapping[str, Profile], settings: Settings) -> ProfileIndex:
    """Return the profiles, with the arguments that the user marked as relevant or irrelevant."""
    return ProfileIndex(known, ignore=_names(settings.ignore_args), only=_names(settings.memory_args))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def counter(home: StatePaths) -> Counter:
    """Return the counter of task ids; it starts above the counter of the older batch-by-batch tool, if that tool's file
    exists.
    """
    try:
        first = int(CLASSIC_COUNTER.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        first = 0
    return Counter(home.counter, first)


def _device_facts(budgets: Sequence[DeviceBudget], settings: Settings) -> dict[str, str]:
    """Return the devices as the journal keeps them; `capacity` is the memory of the GPUs; without GPUs, that of the
    host.
    """
    main = [b for b in budgets if b.device.is_gpu] or [b for b in budgets if not b.device.is_slot]
    return {
        "capacity": str(sum(largest(b.device, b.cap) - settings.buffer for b in main)),
        "totals": json.dumps({b.device.key: largest(b.device, b.cap) for b in budgets if b.device.total}),
        "labels": json.dumps({b.device.key: b.device.label for b in budgets}),
    }


def _facts(listing: TaskList, options: RunOptions, settings: Settings, run: RunPaths) -> dict[str, str]:
    kept = {name: getattr(settings, name) for name in READERS if name not in UNWRITTEN}
    return {
        "file": listing.what,
        "door": listing.door,
        "defaults": json.dumps(listing.form.defaults),
        "accepted": str(clock.now()),
        "name": options.name,
        "num": str(settings.num),
        "choices": json.dumps(options.to_dict()),
        "settings": json.dumps(kept),
        "directory": os.getcwd(),
        "token": f"{run.number}-{os.urandom(4).hex()}",
        **machine_facts(),
    }


def machine_facts() -> dict[str, str]:
    """Return the facts that identify this machine: host name, boot id and machine id."""
    return {"host": hostname(), "boot": boot_id(), "machine": machine_id()}
