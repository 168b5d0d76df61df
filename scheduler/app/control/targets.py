"""The targets of a verb: runs by number or name, and tasks by id, from any run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from scheduler.app.observe.run_facts import find_run, places
from scheduler.errors import NoSuchRun, StateError, UsageError
from scheduler.patterns import lazy_pattern
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import DIGITS, LAST, RunCatalog, RunInfo, run_word
from scheduler.store.run.counter import Counter
from scheduler.store.run.journal_reader import JournalReader
from scheduler.units import count, ranges
from scheduler.values import dataclass

LARGEST = 10**12
MOST_GAPS = 3
"""The most gaps in a range of ids that a hint names."""
_IDS = lazy_pattern(r"(r\d+\.)?\d+(-\d+)?(,(r\d+\.)?\d+(-\d+)?)*,?\Z", re.ASCII)
_RUN = lazy_pattern(r"r\d+\Z", re.ASCII)
_OF_RUN = lazy_pattern(r"r(\d+)\.(.+)\Z", re.ASCII)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """A run and some of its tasks; without tasks, the run itself."""

    info: RunInfo
    tasks: tuple[int, ...] = ()


def tasks(settings: Settings, words: Sequence[str]) -> list[Target]:
    """Return the tasks that words such as `17`, `17-40,52` and `last` name, by run, the oldest run first.

    Ids of a range that do not exist are left out, and a hint says which. Raise UsageError, or NoSuchRun for an id that
    does not exist.
    """
    found = RunCatalog(places(settings))
    spans = [span for word in words for span in ([_last(found)] if word == LAST else _spans(found, word))]
    targets, left = [], list(spans)
    for info in found.all():
        here = _within(info, left)
        if here:
            targets.append(Target(info, tuple(sorted(here))))
            left = [span for span in left if not (span[0] == span[1] and span[0] in here)]
        if not left:
            break
    known = {task for target in targets for task in target.tasks}
    missing = [span for span in spans if span[0] not in known and not any(span[0] <= task <= span[1] for task in known)]
    if missing:
        raise NoSuchRun(_unknown_ids(settings, missing))
    for first, last in spans:
        if first < last:
            _hint_at_gaps(found, first, last, sorted(task for task in known if first <= task <= last))
    return targets[::-1]


def _hint_at_gaps(found: RunCatalog, first: int, last: int, known: Sequence[int]) -> None:
    """Print on standard error which ids of a range are not tasks; the verb continues with the other ids."""
    if len(known) > last - first:
        return
    ends = [first - 1, *known, last + 1]
    gaps = [(a + 1, b - 1) for a, b in pairwise(ends) if b - a > 1]
    named = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in gaps[:MOST_GAPS])
    more = f" and {count(len(gaps) - MOST_GAPS, 'more gap')}" if len(gaps) > MOST_GAPS else ""
    none = "is no task" if last - first == len(known) else "are no tasks"
    _hint(f"{first}-{last} has {count(len(known), 'task')}: there {none} {named}{more} in {found.places.runs}")


def _hint(sentence: str) -> None:
    from scheduler.ui.terminal.sink import hint  # rarely needed

    hint(sentence)


def runs_or_tasks(settings: Settings, words: Sequence[str], run: str | None, task: str | None) -> list[Target]:
    """Return the targets of words that may be tasks or runs; without words, the latest run.

    A number is a task. A name is that of a run, or else that of a task. `run` and `task` are the values of the flags.
    """
    if run is not None or task is not None:
        if words or (run is not None and task is not None):
            raise UsageError("give either a run (--run), or tasks (--task), or one of them without a flag")
        return tasks(settings, [task]) if task is not None else [Target(find_run(settings, run_word(run)))]
    if not words:
        return [Target(find_run(settings, None))]
    runs, ids = [], []
    for word in words:
        info = None if word == LAST or _IDS.match(word) else _run_of(settings, word)
        if info is not None:
            runs.append(Target(info))
        else:
            ids.append(word)
    return [*runs, *(tasks(settings, ids) if ids else ())]


def _run_of(settings: Settings, word: str) -> RunInfo | None:
    """Return the run that `word`, which is not an id, names; None if only tasks have that name. Raise NoSuchRun if
    neither a run nor a task has it.
    """
    try:
        return find_run(settings, word)
    except NoSuchRun:
        if _RUN.match(word):
            raise
        if not _named(RunCatalog(places(settings)), word):
            raise NoSuchRun(
                f"no run and no task here is called {word!r}: scheduler list shows your tasks, scheduler runs your runs"
            ) from None
        return None


def _run_instead(found: RunCatalog, word: str) -> str:
    """Return the end of a message: the run that a word names, and the command that stops it. Empty if there is no such
    run.
    """
    try:
        run = found.find(word).number
    except (NoSuchRun, StateError, UsageError):
        return ""
    return f"; it is run {run}, and scheduler stop r{run} stops all of it"


def _spans(found: RunCatalog, word: str) -> list[Span]:
    if not _IDS.match(word):
        named = [] if _RUN.match(word) else _named(found, word)
        if not named:
            raise UsageError(
                f"{word!r} is not a task: write an id like 17, several like 17-40,52, the twelfth task of run 3 "
                f"as r3.12, the name of one task, or last{_run_instead(found, word)}"
            )
        if len(named) > 1:
            raise UsageError(f"{count(len(named), 'task')} are called {word!r}: write the id: {ranges(named)}")
        return [(named[0], named[0])]
    spans = []
    for part in word.strip(",").split(","):
        if of_run := _OF_RUN.match(part):
            spans += _rows(found, part, of_run[1], of_run[2])
            continue
        first, _, last = part.partition("-")
        if max(len(first), len(last)) > DIGITS:
            raise UsageError(f"{part[:DIGITS]}...: no task has so high an id")
        spans.append((int(first), int(last or first)))
        if spans[-1][0] > spans[-1][1]:
            raise UsageError(f"{part} ends before it begins: write {last}-{first}")
        if spans[-1][1] > LARGEST:
            raise UsageError(f"{part}: no task has so high an id")
    return spans


def _rows(found: RunCatalog, part: str, run: str, rows: str) -> list[Span]:
    """Return the tasks of a run by their positions, from 1, in the order of its list or of its submissions."""
    if len(run) > DIGITS or len(rows) > 2 * DIGITS:
        raise UsageError(f"{part[:DIGITS]}...: no run has so many tasks")
    first, _, last = rows.partition("-")
    info = found.info(int(run))
    with _journal(info) as journal:
        order = [task for _, _, task in sorted((batch, row.row, task) for task, batch, row in journal.rows())]
    low, high = int(first), int(last or first)
    if not 1 <= low <= high or low > len(order):
        raise NoSuchRun(f"{part}: run {info.number} has {count(len(order), 'task')}, r{info.number}.1 is the first")
    if high > len(order):
        has = count(len(order), "task")
        _hint(f"{part}: run {info.number} has {has}, the last of them is r{info.number}.{len(order)}")
    return [(task, task) for task in order[low - 1 : high]]


def _named(found: RunCatalog, name: str) -> list[int]:
    """Return the tasks of all runs that have a name."""
    from scheduler.store.task_texts import TaskTexts

    tasks: list[int] = []
    for info in found.all():
        with contextlib.suppress(StateError), _journal(info) as journal:
            texts = TaskTexts(journal)
            tasks += [task for task, _, row in journal.rows() if texts.name(row) == name]
    return sorted(tasks)


def _last(found: RunCatalog) -> Span:
    """Return the id of the task that was accepted last, which may be a task of a queue that is older than the last
    run.
    """
    newest, highest = Counter(found.places.counter).next_task() - 1, -1
    for info in found.all():
        try:
            with _journal(info) as journal:
                task = journal.last()
        except StateError:
            if highest < 0:
                raise
            continue  # an older run cannot hide a task that was found
        highest = max(highest, -1 if task is None else task)
        if highest >= newest:
            break
    if highest >= 0:
        return highest, highest
    raise NoSuchRun(f"there is no task yet in {found.places.runs}: scheduler run FILE starts some")


def _within(info: RunInfo, spans: Iterable[Span]) -> set[int]:
    try:
        with _journal(info) as journal:
            return {task for first, last in spans for task in journal.within(first, last)}
    except StateError:
        return set()  # a run that cannot be read must not hide the others


@contextlib.contextmanager
def _journal(info: RunInfo) -> Iterator[JournalReader]:
    journal = JournalReader.read(info.places.journal)
    try:
        yield journal
    finally:
        journal.close()


def _unknown_ids(settings: Settings, missing: Sequence[Span]) -> str:
    """Return why these ids are not those of tasks of this user; an id of another user's task is reported as such."""
    first, last = missing[0]
    named = str(first) if first == last else f"{first}-{last}"
    none = "is no task" if first == last else "are no tasks"
    owner = _owner(settings, first) if first == last else ""
    if owner:
        return f"task {first} belongs to {owner}: only {owner} or root can read or change it"
    runs = places(settings).runs
    numbers = RunCatalog(places(settings)).numbers()
    if not numbers:
        return f"there {none} {named}, and no run yet in {runs}: scheduler run FILE starts one"
    if first == last and first in numbers:
        return f"there is no task {first} in {runs}; run {first} is written r{first}"
    return f"there {none} {named} in {runs}: scheduler list shows unfinished and recently ended tasks"


def _owner(settings: Settings, task: int) -> str:
    """Return the name of the other user whose task with that id runs on this machine now; empty if there is none."""
    from os import getuid

    from scheduler.errors import LeaseError
    from scheduler.runtime.users import user_name
    from scheduler.store.machine.lease_directory import find_directory
    from scheduler.store.machine.lease_records import living

    with contextlib.suppress(LeaseError):
        for lease in living(find_directory(settings.leases or None)):
            if lease.task == task and lease.uid != getuid():
                return user_name(lease.uid)
    return ""
