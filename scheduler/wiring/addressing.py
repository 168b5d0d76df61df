"""Finds what people mean: runs by number or name, tasks by id, whatever run they belong to."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence

from scheduler.errors import NoSuchRun, StateError, UsageError
from scheduler.settings import Settings
from scheduler.store.journal import Journal
from scheduler.store.runs import RunInfo, Runs
from scheduler.units import ranges
from scheduler.values import dataclass
from scheduler.wiring.reading import find_run, places

LAST = "last"
LARGEST = 10**12
_IDS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*,?\Z", re.ASCII)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """A run, and those of its tasks that are meant; none: the run itself."""

    info: RunInfo
    tasks: tuple[int, ...] = ()


def tasks(settings: Settings, words: Sequence[str]) -> list[Target]:
    """The tasks that words like `17`, `17-40,52` and `last` mean, by run, the oldest run first.

    A range means those of its tasks that there are. Raises UsageError, and NoSuchRun for an id that nobody has.
    """
    found = Runs(places(settings))
    spans = [span for word in words for span in ([_last(found)] if word == LAST else _spans(word))]
    targets, left = [], list(spans)
    for info in found.all():
        here = _within(info, left)
        if here:
            targets.append(Target(info, tuple(sorted(here))))
            left = [span for span in left if not (span[0] == span[1] and span[0] in here)]
        if not left:
            break
    known = {task for target in targets for task in target.tasks}
    missing = [span for span in spans if not any(span[0] <= task <= span[1] for task in known)]
    if missing:
        raise NoSuchRun(_nobody(settings, missing))
    return targets[::-1]


def runs_or_tasks(settings: Settings, words: Sequence[str], run: str | None, task: str | None) -> list[Target]:
    """What words mean that may be either: tasks by id, a run by name or number, nothing for the latest run.

    Raises UsageError for a number that is both.
    """
    if run is not None or task is not None:
        if words or (run is not None and task is not None):
            raise UsageError("say either a run (--run), or tasks (--task), or one of them without a flag")
        return tasks(settings, [task]) if task is not None else [Target(find_run(settings, run))]
    if not words:
        return [Target(find_run(settings, None))]
    if len(words) > 1 or words[0] == LAST or not words[0].isdecimal():
        named = len(words) == 1 and words[0] != LAST and not _IDS.match(words[0])
        return [Target(find_run(settings, words[0]))] if named else tasks(settings, words)
    return _either(settings, words[0])


def _either(settings: Settings, word: str) -> list[Target]:
    """A number alone."""
    found, found_run, found_tasks = Runs(places(settings)), None, None
    with contextlib.suppress(NoSuchRun):
        found_run = found.info(int(word)) if int(word) in found.numbers() else None
    if found_run is None:
        return tasks(settings, [word])
    with contextlib.suppress(NoSuchRun):
        found_tasks = tasks(settings, [word])
    if found_tasks is None:
        return [Target(found_run)]
    raise UsageError(
        f"{word} is a task (of run {found_tasks[0].info.number}) and a run: write --task {word} or --run {word}"
    )


def _spans(word: str) -> list[Span]:
    if not _IDS.match(word):
        raise UsageError(f"{word!r} is no task: write an id like 17, several like 17-40,52, or last")
    spans = []
    for part in word.strip(",").split(","):
        first, _, last = part.partition("-")
        spans.append((int(first), int(last or first)))
        if spans[-1][0] > spans[-1][1]:
            raise UsageError(f"{part} ends before it begins: write {last}-{first}")
        if spans[-1][1] > LARGEST:
            raise UsageError(f"{part}: no task has so high an id")
    return spans


def _last(found: Runs) -> Span:
    """The task that was accepted last."""
    for info in found.all():
        with _journal(info) as journal:
            task = journal.last()
        if task is not None:
            return task, task
    raise NoSuchRun(f"there is no task yet in {found.places.runs}: scheduler run FILE starts some")


def _within(info: RunInfo, spans: Iterable[Span]) -> set[int]:
    try:
        with _journal(info) as journal:
            return {task for first, last in spans for task in journal.within(first, last)}
    except StateError:
        return set()  # one that cannot be read hides no other


@contextlib.contextmanager
def _journal(info: RunInfo) -> Iterator[Journal]:
    journal = Journal.read(info.places.journal)
    try:
        yield journal
    finally:
        journal.close()


def _nobody(settings: Settings, missing: Sequence[Span]) -> str:
    """Why ids mean nobody; somebody else's is said to be theirs."""
    first, last = missing[0]
    named = ranges(range(first, last + 1)) if last - first < LARGEST else str(first)
    word = "task" if first == last else "tasks"
    owner = _owner(settings, first) if first == last else ""
    if owner:
        return f"task {first} is none of yours but {owner}'s: only {owner} or root can change or read it"
    return f"there is no {word} {named} in {places(settings).runs}: scheduler list shows the latest run's"


def _owner(settings: Settings, task: int) -> str:
    """Whose task has that id and runs on this machine now, where that is somebody else."""
    from os import getuid

    from scheduler.errors import LeaseError
    from scheduler.people import user_name
    from scheduler.store.leases import find_directory, living

    with contextlib.suppress(LeaseError):
        for lease in living(find_directory(settings.leases or None)):
            if lease.task == task and lease.uid != getuid():
                return user_name(lease.uid)
    return ""
