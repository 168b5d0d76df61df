"""The field After: the tasks that a row names as its parents, and the dependencies of a list that follow from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from scheduler.core.tasks.placeholders import split_result
from scheduler.errors import NoSuchRun, UsageError
from scheduler.values import dataclass

ANY_END = "ended:"
"""The prefix of a parent that only has to end, with or without success."""
MOST_NAMED = 8
"""The most rows of a cycle that an error message names."""
_FIRST_RUN = -2
"""The number that stands for run 0 as a parent. The number for run 1 is one less, and so on."""


def whole_run(run: int) -> int:
    """Return the number that stands for a whole run as a parent."""
    return _FIRST_RUN - run


def run_of(parent: int) -> int | None:
    """Return the run for which the number of a parent stands; None if the number is that of a task."""
    return _FIRST_RUN - parent if parent <= _FIRST_RUN else None


def parent_word(parent: int) -> str:
    """Return a parent as users write it: `17`, `r3`."""
    run = run_of(parent)
    return str(parent) if run is None else f"r{run}"


def parent_name(parent: int) -> str:
    """Return a parent as sentences name it: `task 17`, `run r3`."""
    return f"{'task' if run_of(parent) is None else 'run'} {parent_word(parent)}"


@dataclass(frozen=True, slots=True)
class AfterRow:
    """One row of a list, with only the cells that determine its dependencies."""

    row: int
    """The number of the row in its source."""
    name: str
    after: str
    """The text of the field After; empty: none."""
    results: Sequence[str] = ()
    """The placeholders in the command that are filled from results of parents."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """Some rows with their parents. Rows of the list are named by their places, from 0; parents outside of the list by
    their ids.
    """

    places: tuple[int, ...]
    after: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    after_known: tuple[int, ...] = ()
    ended_known: tuple[int, ...] = ()


class Earlier:
    """The tasks and runs outside of a list that its rows can name as parents; this base class has none."""

    def find(self, word: str) -> Sequence[int]:
        """Return the parents for which an id, a run or a name stands; empty if there are no such parents."""
        return ()

    def spoilt(self, parent: int) -> str:
        """Return why a parent can never succeed in its present state, and what the user can do; empty if it may
        succeed.
        """
        return ""


class BadAfter(ValueError):
    """The error of a row whose After names no possible parent, or whose parents wait for the row; `row` is its
    number.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def parsed(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parents that a text names, each with True if the parent only has to end; raise ValueError if a name is
    missing.
    """
    for part in text.split(","):
        word = part.strip()
        any_end = word.lower().startswith(ANY_END)
        name = word[len(ANY_END) :].strip() if any_end else word
        if not name:
            raise ValueError(f"{text!r} has an empty place: write it like prep,17 or ended:prep")
        yield name, any_end


def resolved(rows: Sequence[AfterRow], known: Earlier) -> list[Dependency]:
    """Return the dependencies of a list; rows with equal texts share one.

    A name stands for all rows of the list that have it; if there are no such rows, it stands for the parents that
    `known` finds. Raise BadAfter for a parent that does not exist or can never succeed, and for rows that wait for one
    another.
    """
    by_name, by_text = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for place, row in enumerate(rows):
        by_name[row.name].append(place)
        if row.after:
            by_text[row.after].append(place)
    found = [_dependency(text, places, rows, by_name, known) for text, places in by_text.items()]
    _refuse_cycles(rows, found)
    for row in rows:
        for placeholder in row.results:
            _check_result(row, placeholder, lambda name: by_name.get(name) or known.find(name))
    return found


def _check_result(row: AfterRow, placeholder: str, find: Callable[[str], Sequence[int]]) -> None:
    """Raise BadAfter unless the result of exactly one parent can fill a placeholder of the row."""
    said, _ = split_result(placeholder)
    named = [name for name, _ in _named(row.after, row.row)] if row.after else []
    if not named or (said and said not in named):
        what = f"names {said}, which is not in After" if said else "takes a value of a parent, and After is empty"
        raise BadAfter(row.row, f"{{{placeholder}}} {what}; for a literal brace write it twice")
    parents = {parent for name in ([said] if said else named) for parent in find(name)}
    if len(parents) > 1:
        several = f"any of {len(parents)} tasks{f' with the name {said}' if said else ''}"
        raise BadAfter(
            row.row, f"{{{placeholder}}} could mean the result of {several}: name one of them by its id or Name"
        )
    if any(run_of(parent) is not None for parent in parents):
        raise BadAfter(row.row, f"{{{placeholder}}}: a whole run has no result, name one of its tasks")


def _dependency(
    text: str, places: Sequence[int], rows: Sequence[AfterRow], by_name: dict[str, list[int]], known: Earlier
) -> Dependency:
    here: dict[bool, dict[int, None]] = {False: {}, True: {}}
    earlier: dict[bool, dict[int, None]] = {False: {}, True: {}}
    row = rows[places[0]].row
    for name, any_end in _named(text, row):
        if not name.isdecimal() and name in by_name:
            here[any_end].update(dict.fromkeys(by_name[name]))
        else:
            earlier[any_end].update(dict.fromkeys(_earlier(name, row, known, any_end=any_end)))
    return Dependency(tuple(places), tuple(here[False]), tuple(here[True]), tuple(earlier[False]), tuple(earlier[True]))


def _earlier(name: str, row: int, known: Earlier, *, any_end: bool) -> Sequence[int]:
    """Return the parents outside of the list for which a word stands; raise BadAfter if there are none, or none can
    succeed.
    """
    try:
        found = known.find(name)
    except (UsageError, NoSuchRun) as exc:
        raise BadAfter(row, str(exc)) from exc
    if not found:
        what = f"there is no task {name}" if name.isdecimal() else f"no task has the name {name!r}"
        raise BadAfter(row, f"{what}: name a row of this list, or a task that was accepted before")
    spoilt = "" if any_end else next(filter(None, map(known.spoilt, found)), "")
    if spoilt:
        raise BadAfter(row, f"{spoilt}, or write ended:{name} to wait for its end with or without success")
    return found


def _named(text: str, row: int) -> list[tuple[str, bool]]:
    try:
        return list(parsed(text))
    except ValueError as exc:
        raise BadAfter(row, str(exc)) from exc


def _refuse_cycles(rows: Sequence[AfterRow], dependencies: Sequence[Dependency]) -> None:
    """Raise BadAfter if some rows wait for one another.

    Rows without parents in the list are removed, then rows whose parents were all removed. If any rows remain, they
    form a cycle.
    """
    by_place = {place: dependency for dependency in dependencies for place in dependency.places}
    waits = {id(d): len({*d.after, *d.ended}) for d in dependencies}
    below = defaultdict[int, list[Dependency]](list)
    for dependency in dependencies:
        for parent in {*dependency.after, *dependency.ended}:
            below[parent].append(dependency)
    left = set(by_place)
    free = [p for p in range(len(rows)) if p not in by_place or not waits[id(by_place[p])]]
    while free:
        place = free.pop()
        left.discard(place)
        for dependency in below[place]:
            waits[id(dependency)] -= 1
            if not waits[id(dependency)]:
                free += dependency.places
    if left:
        cycle = _cycle(left, by_place)
        shown = " after ".join(f"row {rows[place].row}" for place in cycle[:MOST_NAMED])
        raise BadAfter(rows[cycle[0]].row, f"these rows depend on one another, so none can start: {shown}")


def _cycle(left: set[int], by_place: dict[int, Dependency]) -> list[int]:
    """Return the places of the rows of one cycle; its first place is repeated at the end."""
    place, seen = min(left), dict[int, int]()
    path: list[int] = []
    while place not in seen:
        seen[place] = len(path)
        path.append(place)
        dependency = by_place[place]
        place = min(parent for parent in (*dependency.after, *dependency.ended) if parent in left)
    return [*path[seen[place] :], place]
