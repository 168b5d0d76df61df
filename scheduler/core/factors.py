"""Which arguments of a script determine its memory: learned from the peaks of its kinds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field

from scheduler.core import scattered
from scheduler.core.arguments import Slots
from scheduler.core.between import Point, between
from scheduler.core.model import KnownBy
from scheduler.core.neutral import ENOUGH, Key, Verdict, judge, take
from scheduler.core.questions import Questions
from scheduler.core.scatter import STEADY, differ, middle, scatter
from scheduler.core.varying import LEFT_OUT, Bundle, Columns, Role
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Guess:
    """What a kind will need, from the peaks of others."""

    peaks: dict[str, int]
    """By part, without any margin."""
    by: KnownBy
    """FAMILY: of kinds that are alike; INTERPOLATED: of two with a number below and above its own."""
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """Arguments that always change together, and whether they matter."""

    name: str
    """The first of its slots."""
    slots: tuple[str, ...]
    values: int
    neutral: bool
    """Found, presumed or said to change no peak."""
    left_out: bool
    """It only labels rows, and is presumed neutral until a peak contradicts."""
    said: bool
    """The user's word, which no peak changes."""


@dataclass(slots=True)
class _Cell:
    """Observed kinds that are alike."""

    kinds: list[int] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)

    def take(self, kind: int, peaks: Mapping[str, int]) -> None:
        """One more kind."""
        self.kinds.append(kind)
        for part, peak in peaks.items():
            self.highest[part] = max(self.highest.get(part, 0), peak)


class Family:
    """All kinds of one script, however their arguments differ.

    What it says follows from the kinds and peaks it was given, not from when it was asked. It is worked out when it
    is asked for; an answer costs little unless a factor began or ceased to matter since the last one.
    """

    def __init__(self, ignore: Iterable[str] = (), only: Iterable[str] = ()) -> None:
        """`ignore` names slots that don't matter, `only` those that do: with or without dashes, `-` and `_` alike."""
        self._columns = Columns(ignore, only)
        self._numbers: dict[int, int] = {}
        """Kinds by their row in the table of columns."""
        self._rows: dict[int, int] = {}
        self._parts: tuple[str, ...] = ()
        self._peaks: dict[int, dict[str, int]] = {}
        self._runs: dict[int, list[Sequence[int]]] = {}
        """Of kinds that ran more than once, the peaks of all their runs on each part."""
        self._scatter = STEADY
        self._bundles: tuple[Bundle, ...] = ()
        self._values: tuple[int, ...] = ()
        """How many values each bundle has, as far as it matters to a proof."""
        self._verdict = Verdict()
        self._vectors: list[Key] = []
        """For each row of the table its values by bundle."""
        self._keys: list[Key] = []
        """Of these, what splits: kinds with the same key are alike."""
        self._cells: dict[Key, _Cell] = {}
        self._listed: list[int] = []
        """Rows of the table whose kinds are in the list, in its order."""
        self._grown = False
        self._unjudged = False
        self._repeated = False
        self._questions: Questions | None = None
        self._asked = 0
        """So many of the listed are known to the questions."""
        self._guesses: dict[Key, Guess | None] = {}
        self._lines: dict[tuple[int, Key], list[Point]] | None = None

    def add(self, kind: int, slots: Slots, rows: int = 1) -> None:
        """A kind with so many more rows in the list; none where it is only remembered from earlier runs."""
        before = self._rows.get(kind)
        if before is None:
            self._numbers[kind] = len(self._columns.table)
            self._columns.add(slots)
        self._rows[kind] = (before or 0) + rows
        self._columns.rows += max(1, self._rows[kind]) - (0 if before is None else max(1, before))
        if rows and not before:
            self._listed.append(self._numbers[kind])
        self._grown = True

    def observe(self, kind: int, peaks: Mapping[str, int], runs: Sequence[Sequence[int]] = ()) -> None:
        """The peaks of a kind as they are known now, by part; of a part that isn't named it needs nothing.

        `runs` are the peaks of its full runs one by one, of each part of which there were several.
        """
        if runs:
            self._runs[kind] = list(runs)
            self._repeated = True
        before, now = self._peaks.get(kind), dict(peaks)
        if not now or now == before:
            return
        if not self._unjudged:
            self._refresh()
            self._unjudged = before is not None or not self._expected(kind, now)
        self._peaks[kind] = now

    def like(self, kind: int) -> Guess | None:
        """What a kind without peaks will need: as much as its like, or as its neighbours; None where nobody knows."""
        self._refresh()
        key = self._key(kind)
        if key not in self._guesses:
            self._guesses[key] = self._guess(key)
        return self._guesses[key]

    def group(self, kind: int) -> Hashable:
        """Equal for kinds of which one should run before the next is started unknown; changes with what is known.

        Kinds that are alike are in one group. So are those that ask the same question (another value of a factor
        that may be neutral), and those that can wait until such a question is answered.
        """
        self._refresh()
        questions = self._questions = self._questions or self._ask()
        for order in range(self._asked, len(self._listed)):
            questions.take(self._keys[self._listed[order]], order)
        self._asked = len(self._listed)
        return questions.group(self._key(kind))

    def factors(self) -> list[Factor]:
        """Everything that varies, for people to read."""
        self._refresh()
        return [self._factor(place, bundle) for place, bundle in enumerate(self._bundles)]

    def claims(self) -> frozenset[str]:
        """The names of the factors that were found neutral, and that nothing contradicts."""
        return frozenset(one.name for one in self.factors() if one.neutral and not one.said and not one.left_out)

    # ---- working it out ----

    def _refresh(self) -> None:
        """Bring everything up to what was given; only what changed is worked out again."""
        if self._grown:
            self._lay_out()
        if self._repeated:
            self._pool()
        if self._unjudged:
            self._judge()
        if len(self._keys) < len(self._vectors):
            self._make_keys()
        self._grown = self._unjudged = self._repeated = False

    def _pool(self) -> None:
        """How runs of one kind scatter, as far as is known now."""
        now = scatter(peaks for runs in self._runs.values() for peaks in runs)
        self._unjudged = self._unjudged or now != self._scatter
        self._scatter = now

    def _lay_out(self) -> None:
        """What varies now, and every kind's values of it."""
        bundles = self._columns.bundles()
        values = tuple(min(ENOUGH, self._columns.values(bundle.slots[0])) for bundle in bundles)
        if bundles != self._bundles:
            self._vectors.clear()
            self._keys.clear()
        if bundles != self._bundles or values != self._values:
            self._bundles, self._values = bundles, values
            self._unjudged = True
        pick = take([bundle.slots[0] for bundle in bundles])
        self._vectors += map(pick, self._columns.table[len(self._vectors) :])

    def _judge(self) -> None:
        """What all peaks together say."""
        self._parts = tuple(sorted({part for peaks in self._peaks.values() for part in peaks}))
        seen = [(self._vectors[self._numbers[kind]], self._row(peaks)) for kind, peaks in self._peaks.items()]
        roles = [bundle.role for bundle in self._bundles]
        steady = not self._scatter.share
        verdict = (
            judge(seen, roles, self._values) if steady else scattered.judge(seen, roles, self._values, self._scatter)
        )
        if verdict.splits != self._verdict.splits:
            self._keys.clear()
        self._verdict = verdict
        self._make_keys()
        self._cells.clear()
        for kind, peaks in self._peaks.items():
            self._cells.setdefault(self._key(kind), _Cell()).take(kind, peaks)
        self._guesses.clear()
        self._lines = self._questions = None

    def _row(self, peaks: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([peaks.get(part, 0) for part in self._parts])

    def _key(self, kind: int) -> Key:
        return self._keys[self._numbers[kind]]

    def _make_keys(self) -> None:
        """The keys of all kinds that have none."""
        pick = take(self._verdict.splits)
        self._keys += map(pick, self._vectors[len(self._keys) :])

    def _expected(self, kind: int, peaks: Mapping[str, int]) -> bool:
        """Whether the first peaks of a kind lie among those of its like; then it joins them and that is all."""
        if self._verdict.contradicted or not peaks.keys() <= set(self._parts):
            return False
        key = self._key(kind)
        cell = self._verdict.cells.get(key)
        if cell is None or not all(map(self._is_usual, zip(*cell, strict=True), self._row(peaks))):
            return False
        self._cells[key].take(kind, peaks)
        self._guesses.pop(key, None)
        return True

    def _is_usual(self, seen: Sequence[int], peak: int) -> bool:
        """Whether a peak lies among others, and not apart from most of them."""
        low, usual, high = min(seen), middle(seen), max(seen)
        return low <= peak <= high and not (self._scatter.share and differ(min(peak, usual), max(peak, usual)))

    # ---- answers ----

    def _guess(self, key: Key) -> Guess | None:
        cell = self._cells.get(key)
        if cell is not None:
            return Guess(dict(cell.highest), KnownBy.FAMILY, tuple(cell.kinds))
        if self._lines is None:
            self._lines = self._draw()
        found = []
        for at, bundle in self._numeric():
            points = self._lines.get((at, key[:at] + key[at + 1 :]), ())
            if guessed := between(points, self._number(bundle, key[at]), self._scatter.reach):
                found.append(guessed)
        if not found:
            return None
        peaks, of = max(found, key=lambda guessed: sum(guessed[0].values()))
        return Guess(peaks, KnownBy.INTERPOLATED, of)

    def _draw(self) -> dict[tuple[int, Key], list[Point]]:
        """The observed points of every line: cells that differ in one number only."""
        lines: dict[tuple[int, Key], list[Point]] = {}
        for at, bundle in self._numeric():
            for key, cell in self._cells.items():
                point = Point(self._number(bundle, key[at]), cell.highest, tuple(cell.kinds))
                lines.setdefault((at, key[:at] + key[at + 1 :]), []).append(point)
        return lines

    def _numeric(self) -> list[tuple[int, Bundle]]:
        """The bundles of numbers that split, with their place in a key."""
        splits = [self._bundles[place] for place in self._verdict.splits]
        return [(at, bundle) for at, bundle in enumerate(splits) if bundle.numbers]

    def _number(self, bundle: Bundle, code: int) -> tuple[float, ...]:
        """The numbers of a bundle's value, which has one code in all its slots."""
        return tuple(float(self._columns.columns[slot].texts[code] or 0) for slot in bundle.slots)

    def _ask(self) -> Questions:
        """What isn't known yet; where nothing is, the first of the list is taken as if it were."""
        self._asked = 0
        first = self._keys[self._listed[0] if self._listed else 0]
        undecided = [at for at, place in enumerate(self._verdict.splits) if place in self._verdict.undecided]
        return Questions(undecided, list(self._cells) or [first])

    def _factor(self, place: int, bundle: Bundle) -> Factor:
        names = tuple(self._columns.columns[slot].name for slot in bundle.slots)
        left_out = bundle.role in LEFT_OUT and place not in self._verdict.withdrawn
        said = bundle.role in {Role.IGNORED, Role.NEEDED}
        neutral = place not in self._verdict.splits
        return Factor(names[0], names, self._columns.values(bundle.slots[0]), neutral, left_out, said)
