"""Joins what makes a run begin: a new one, a planned one, one that is taken over."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from scheduler import clocks, native
from scheduler.core import command, packing
from scheduler.core.brain import Brain
from scheduler.core.events import Asked, Event, Exited, Submitted
from scheduler.core.kinds import Kind
from scheduler.core.model import Budget, Job, Machine, Outcome, Terms
from scheduler.core.ports import Key
from scheduler.core.rules import Rules
from scheduler.errors import Elsewhere, SameList
from scheduler.paths import NATIVE_CODE, RUN_CODE, Places, RunPlaces
from scheduler.settings import Settings
from scheduler.shim import boot_id, hostname, machine_id
from scheduler.store.counter import Counter
from scheduler.store.rundir import Book
from scheduler.store.runs import RunInfo
from scheduler.wiring.again import Again, Wish
from scheduler.wiring.checking import checker
from scheduler.wiring.choices import Choices, Resuming, rules
from scheduler.wiring.finding import check_slots, find_devices
from scheduler.wiring.learning import kinds_if_any, knowledge, knowledge_for
from scheduler.wiring.listing import Following, Listing, Source, batches, resumed
from scheduler.wiring.reading import places
from scheduler.wiring.running import Session, open_ledger
from scheduler.wiring.shells import Origin, keep_shell, of_new, of_resumed

if TYPE_CHECKING:
    from scheduler.devices.pool import Pool

MOST_PLANNED = 1000
"""A plan looks at the needs of so many tasks."""
UNWRITTEN = ("source", "ignored", "state", "leases", "notify")
"""Settings that a run does not keep: places, and what may be a secret."""
JUST_ENDED = 500
"""So many that ended last may have left their files: a scheduler removes them after what it starts in their place."""
CLASSIC_COUNTER = Path("scheduler_files/counter.txt")


def begin(
    listing: Listing, choices: Choices, settings: Settings, python: str, wish: Wish | None = None
) -> Session | None:
    """Accept a list durably and make its run; None where it has no rows. Raises what the door or a device refuses.

    Raises SameList where a run of the same file is not over, unless another one is wished.
    """
    check_slots(choices)
    again = _again(listing, choices, settings, wish or Wish())
    again.refuse()
    pool = find_devices(choices.devices, settings)
    try:
        return _begin(listing, choices, settings, python, pool, again)
    except BaseException:
        pool.close()
        raise


def _again(listing: Listing, choices: Choices, settings: Settings, wish: Wish) -> Again:
    """Earlier runs of the same list; of one that is only learned from there are none, and it is none for others."""
    return Again(places(settings), "" if choices.learn_only else listing.path, wish)


def _begin(
    listing: Listing, choices: Choices, settings: Settings, python: str, pool: Pool, again: Again
) -> Session | None:
    home = places(settings)
    budgets = pool.snapshot()
    _check_lines(listing, budgets, rules(choices, settings))
    open_ledger(settings, "").close()  # better refused now than once the list is accepted
    _share(pool, choices, settings)
    origin = of_new(settings)
    book = Book.create(home, Counter(home.counter, _classic_first()), [*RUN_CODE, *_compiled(home, settings)])
    book.programs = origin.programs
    brain = _brain(book, choices, settings, origin, pool)
    book.num = settings.num
    facts = {
        **_facts(listing, choices, settings, python, book.places),
        **origin.facts,
        **again.facts(),
        "capacity": str(_capacity(budgets, settings)),
        "totals": json.dumps({b.device.key: packing.largest(b.device, b.cap) for b in budgets if b.device.total}),
        "labels": json.dumps({b.device.key: b.device.label for b in budgets}),
    }
    again.look_back()

    def told(tasks: int) -> dict[str, str]:  # the session tells them as the journal does
        facts.update(mark=listing.mark, accepted=str(clocks.now()), tasks=str(tasks))
        return facts

    try:
        keep_shell(book.places, origin)
        listing.prepare(book.places)
        submitted = book.accept(
            listing.form,
            again.noting(batches(listing.rows, settings.num), listing.form),
            checker(listing.what, budgets, brain.rules, listing.form),
            told,
            again,
        )
    except BaseException:
        book.discard()
        raise
    if not submitted and listing.source is None:
        book.discard()
        pool.close()
        return None
    for batch in submitted:
        brain.apply(batch)
    for event in again.events(submitted[0].first) if submitted else ():
        brain.apply(event)
    book.source = _source(listing)
    book.check = checker(listing.what, budgets, brain.rules, listing.form)
    session = Session(book, brain, pool, choices, settings, facts, origin)
    session.earlier.extend(again.words())
    return session


def _compiled(home: Places, settings: Settings) -> list[tuple[Path, str]]:
    """The shim compiled, where that can be had at once."""
    found = native.find(home, settings.shim)
    return [(found, NATIVE_CODE)] if found is not None else []


def _lost_code(info: RunInfo) -> list[tuple[Path, str]]:
    """What the power took, if it was cut: copies are not waited for at the start. Nothing of them runs any more."""
    return [*RUN_CODE] if info.meta.get("boot", boot_id()) != boot_id() else []


def _source(listing: Listing) -> Source | None:
    """What goes on being read."""
    if listing.file is not None:
        return Following(listing.file, listing.file.mark)
    return listing.source


def _check_lines(listing: Listing, budgets: Sequence[Budget], rules_: Rules) -> None:
    """Refuse at once what the commands that are still to come could never have."""
    if listing.source is not None:
        terms = listing.form.terms([""] * len(listing.form.columns))
        checker(listing.what, budgets, rules_, listing.form)(terms, None)


def _share(pool: Pool, choices: Choices, settings: Settings) -> None:
    """Have the tasks share GPUs under MPS where that was asked for."""
    from scheduler.wiring.sharing import share

    share(pool, choices, settings)


def _shared_pool(choices: Choices, settings: Settings, origin: Origin) -> Pool:
    """The devices of a run that is taken over."""
    pool = find_devices(choices.devices, settings, origin.for_devices())
    try:
        _share(pool, choices, settings)
    except BaseException:
        pool.close()
        raise
    return pool


def _brain(book: Book, choices: Choices, settings: Settings, origin: Origin, pool: Pool) -> Brain:
    known = knowledge_for(book, settings, origin.directory, pool)
    return Brain(rules(choices, settings, mps=pool.mps is not None), book.terms, known)


def _pool_of_plan(choices: Choices, settings: Settings) -> tuple[Pool, bool]:
    """The devices, and whether tasks would run under MPS there."""
    from scheduler.wiring.sharing import could_share

    pool = find_devices(choices.devices, settings)
    try:
        return pool, could_share(pool, choices, settings)
    except BaseException:
        pool.close()
        raise


def _capacity(budgets: Sequence[Budget], settings: Settings) -> int:
    """What there is to fill: the GPUs' memory, or the host's where there are none."""
    gpus = [b for b in budgets if b.device.is_gpu] or [b for b in budgets if not b.device.is_slot]
    return sum(packing.largest(b.device, b.cap) - settings.buffer for b in gpus)


def plan(
    listing: Listing, choices: Choices, settings: Settings, python: str, wish: Wish, out: TextIO, *, as_json: bool
) -> int:
    """Check a whole list and show what would start now, and when the rest; nothing is accepted, nothing starts."""
    from scheduler.wiring import planning

    check_slots(choices)
    again = _again(listing, choices, settings, wish)
    again.look_back()
    pool, mps = _pool_of_plan(choices, settings)
    budgets = pool.snapshot()
    pool.close()
    kinds = kinds_if_any(places(settings), of_new(settings).programs, os.getcwd(), pool)
    known = kinds.profiles.known() if kinds is not None else {}
    brain = Brain(rules(choices, settings, mps=mps), knowledge=knowledge(known, settings))
    check, jobs = checker(listing.what, budgets, brain.rules, listing.form), dict[int, Job]()
    first, numbers = 1, dict[Terms, int]()
    for batch, rows_ in enumerate(again.noting(batches(listing.rows, settings.num), listing.form), 1):
        terms = []
        for offset, (row, cells, said, nth) in enumerate(rows_):
            if said not in numbers:
                check(said, row)
                numbers[said] = len(brain.terms)
                brain.terms.append(said)
            terms.append(numbers[said])
            if first + offset <= MOST_PLANNED:
                spec = listing.form.spec(cells, row)
                jobs[first + offset] = Job(spec, command.name(spec), command.key(spec, nth), listing.form.append)
        brain.apply(Submitted(batch, first, terms))
        first += len(terms)
    for event in again.events(1):
        brain.apply(event)
    for task, job in jobs.items():
        brain.assign(task, kinds.of(job) if kinds is not None else Kind(f"row {task}", job.name, probes=False))
    decision = brain.decide(Machine(clocks.now(), budgets))
    made = planning.Plan(listing.what, brain, decision, jobs, budgets)
    hints = [f"hint:   {said}" for said in (*listing.warnings(), *again.words())]
    planning.show(made, [*hints, *_would_refuse(again)], out, as_json=as_json)
    return 0


def _would_refuse(again: Again) -> list[str]:
    """What a plan says where its list could not be started now."""
    try:
        again.refuse()
    except SameList as exc:
        return [f"would be refused: {exc}"]
    return []


def _classic_first() -> int:
    """Ids start above the counter of the batch-by-batch original, where its file is there."""
    try:
        return int(CLASSIC_COUNTER.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return 0


def _facts(listing: Listing, choices: Choices, settings: Settings, python: str, run: RunPlaces) -> dict[str, str]:
    kept = {name: value for name, value in asdict(settings).items() if name not in UNWRITTEN}
    return {
        "file": listing.what,
        "door": listing.door,
        "defaults": json.dumps(listing.form.defaults),
        "accepted": str(clocks.now()),
        "name": choices.name,
        "num": str(settings.num),
        "choices": json.dumps(asdict(choices)),
        "settings": json.dumps(kept),
        "python": python,
        "directory": os.getcwd(),
        "token": f"{run.number}-{os.urandom(4).hex()}",
        **_machine(),
    }


def _machine() -> dict[str, str]:
    """Which machine a run belongs to."""
    return {"host": hostname(), "boot": boot_id(), "machine": machine_id()}


def take_over(info: RunInfo, settings: Settings, how: Resuming) -> Session:
    """Take a run over that no scheduler holds; raises StillRunning where one does, Elsewhere on another machine.

    Its tasks go on with the environment of the shell that it was started from, or of this one.
    """
    if info.elsewhere and not how.gone:
        raise Elsewhere(
            f"run {info.number} belongs to {info.elsewhere}, this is {hostname()}: nothing was started. Resume it on "
            f"{info.elsewhere}; if that machine is gone for good, scheduler resume {info.number} --takeover takes its "
            "running tasks for dead and starts them again here"
        )
    open_ledger(settings, "").close()  # better refused now than once the run is taken over
    home = places(settings)
    book = Book.resume(info, Counter(home.counter, _classic_first()), _lost_code(info))
    choices = Choices(**json.loads(info.meta["choices"]))
    if how.keep_going:
        choices = replace(choices, keep_going=True)
    if how.mps:
        choices = replace(choices, mps=how.mps, mps_exclusive=choices.mps_exclusive and how.mps == "on")
    kept = json.loads(info.meta["settings"])
    kept = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    settings = replace(settings, **kept)
    origin = of_resumed(info.places, info.meta, settings, from_now=how.env_from_now)
    book.programs = origin.programs
    pool = _shared_pool(choices, settings, origin)
    brain = _brain(book, choices, settings, origin, pool)
    session = Session(book, brain, pool, choices, settings, {**info.meta, **_machine(), **origin.facts}, origin)
    try:
        _replay(session)
        if how.env_from_now:
            keep_shell(book.places, origin)
        _claim(session, info.elsewhere)
    except BaseException:
        session.close()
        raise
    book.source = resumed(info, book.journal, book.programs)
    book.check = checker(info.meta["file"], pool.snapshot(), brain.rules)
    return session


def _replay(session: Session) -> None:
    """Whatever the journal tells."""
    book, brain = session.book, session.brain
    for submitted in book.journal.submissions():
        brain.apply(submitted)
    ended: deque[Key] = deque(maxlen=JUST_ENDED)
    for recorded in book.journal.events():
        brain.apply(recorded.event, recorded.at)
        session.fold.take(recorded.event, recorded.at)
        if isinstance(recorded.event, Exited):
            ended.append((recorded.event.task, recorded.event.attempt))
    session.just_ended.extend(ended)
    for key in session.just_ended:
        book.clear(*key)


def _claim(session: Session, elsewhere: str) -> None:
    """From now on the run belongs to this machine; what ran on another one that is gone is lost."""
    why = f"it ran on {elsewhere}, which was given up with --takeover"
    living = session.brain.living() if elsewhere else []
    events: list[Event] = [Asked("resume")]
    events += [Exited(task.id, task.attempts, Outcome.LOST, reason=why) for task in living]
    now = clocks.now()
    session.book.record(events, now)
    for event in events:
        session.brain.apply(event, now)
        session.fold.take(event, now)
    with session.book.journal.transaction():
        session.book.journal.put_meta({**_machine(), **session.origin.facts})
