"""The rules by which a task is stopped early: `val_loss > 2 after 3`, `val_loss is nan`, `1/3 by val_acc at 3,9,27`.

Users write them as text (`--stop-when`, `--keep-best`). Here they are only parsed and compared with single values;
which tasks are stopped is decided in `core/attempts/pruning`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from scheduler.core.metrics.goal import Goal, goal_of, loose
from scheduler.values import dataclass

_NAME = r"[^\W\d][\w./@+-]*"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FORM = "write METRIC > NUMBER, >=, <, <= or METRIC is nan, each with or without: after STEP"
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
IS_NAN = "is nan"
MOST_RULES = 32


@dataclass(frozen=True, slots=True)
class StopRule:
    """A condition on one metric of a task, under which the task is stopped."""

    metric: str
    sign: str
    """The comparison: `>`, `>=`, `<`, `<=`, or `is nan`, which infinite values meet too."""
    bound: float = 0.0
    after: float = 0.0
    """The step from which the rule applies."""

    def is_met(self, value: float, step: float) -> bool:
        """Tell whether a value at a step meets the condition; NaN meets only `is nan`."""
        if step < self.after:
            return False
        if self.sign == IS_NAN:
            return not math.isfinite(value)
        return not math.isnan(value) and _COMPARE[self.sign](value, self.bound)

    def __str__(self) -> str:
        bound = "" if self.sign == IS_NAN else f" {self.bound:g}"
        return f"{self.metric} {self.sign}{bound}" + (f" after {self.after:g}" if self.after else "")


@dataclass(frozen=True, slots=True)
class KeepBest:
    """Successive halving: at each of several steps, only the best share of the tasks by one metric continues."""

    share: float
    metric: str
    goal: Goal
    steps: tuple[float, ...]
    """The steps at which tasks are compared, in ascending order."""

    def is_better(self, value: float, other: float) -> bool:
        """Tell whether one value is better than another one."""
        return value < other if self.goal is Goal.MIN else value > other


def stop_rules(text: str) -> tuple[StopRule, ...]:
    """Return the rules in a text, separated by commas; raise ValueError with the position of a rule that cannot be
    read.
    """
    rules, at = [], 0
    for part in text.split(","):
        if part.strip():
            rules.append(_rule(part, text, at))
        elif text.strip():
            raise ValueError(f"{text!r}: column {at + 1}: a rule is missing: {_FORM}")
        at += len(part) + 1
    if len(rules) > MOST_RULES:
        raise ValueError(f"{len(rules)} rules: at most {MOST_RULES} are possible")
    return tuple(rules)


def _rule(part: str, text: str, begin: int) -> StopRule:
    """Return the rule in one part of a text; the part begins at the position `begin` of the text."""
    words = _Words(part, text, begin)
    metric = words.take(_NAME, "the name of a metric")
    sign = words.take(r">=|<=|>|<|is\b", ">, >=, <, <= or is").lower()
    bound = 0.0
    if sign == "is":
        words.take(r"nan\b", "nan")
        sign = IS_NAN
    else:
        bound = float(words.take(_NUMBER, "a number"))
    after = 0.0
    if words.left():
        words.take(r"after\b", "after STEP, or a comma before the next rule")
        after = float(words.take(_NUMBER, "a step, such as 3"))
    if words.left():
        raise words.error("a comma before the next rule")
    return StopRule(metric, sign, bound, after)


class _Words:
    """The words of a rule, which are taken from its text one by one."""

    def __init__(self, part: str, text: str, begin: int) -> None:
        self._part, self._text, self._begin, self._at = part, text, begin, 0

    def left(self) -> str:
        """Skip blanks, and return the part of the rule that has not been taken yet."""
        rest = self._part[self._at :]
        self._at += len(rest) - len(rest.lstrip())
        return self._part[self._at :]

    def take(self, form: str, what: str) -> str:
        """Take the next word, which must match the pattern `form`, and return it; raise ValueError otherwise."""
        found = re.compile(f"(?i:{form})").match(self.left())
        ends = found is not None and (not re.match(r"[\w.]", self.left()[found.end() :]) or found[0] in _COMPARE)
        if found is None or not ends:
            raise self.error(what)
        self._at += found.end()
        return found[0]

    def error(self, what: str) -> ValueError:
        """Return the error which says that `what` is expected at the present position in the rule."""
        rest = self.left().split()
        seen = f"{rest[0][:40]!r} instead of {what}" if rest else f"{what} is missing"
        return ValueError(f"{self._text[:200]!r}: column {self._begin + self._at + 1}: {seen}: {_FORM}")


_KEEP_FORM = "write --keep-best 1/3 --by val_acc --at 3,9,27"


def keep_best(text: str) -> KeepBest | None:
    """Return the rule in a text such as `1/3 by val_acc at 3,9,27`, None for an empty text; raise ValueError otherwise.

    `min:` or `max:` may precede the metric, where its name does not tell which values are better.
    """
    if not text.strip():
        return None
    found = re.fullmatch(r"(?i)\s*(\S+)(?:\s+by\s+(\S+))?(?:\s+at\s+(\S.*?))?\s*", text)
    if found is None:
        raise ValueError(f"{text!r}: {_KEEP_FORM}")
    share, metric, steps = found.groups()
    if metric is None:
        raise ValueError(f"{text!r} does not say by which metric: {_KEEP_FORM}")
    if steps is None:
        raise ValueError(f"{text!r} does not say at which steps tasks are compared: {_KEEP_FORM}")
    goal, colon, name = metric.partition(":")
    if not colon:
        goal, name = goal_of(metric), metric
    if not re.fullmatch(_NAME, name) or goal not in (*Goal,):
        raise ValueError(f"by {metric}: give the name of a metric, with min: or max: before it if needed")
    return KeepBest(_share(share), name, Goal(goal), _steps(steps))


def _share(text: str) -> float:
    """Read `1/3`, `0.33` or `33%`."""
    try:
        above, slash, below = text.partition("/")
        share = float(above) / float(below) if slash else float(text.removesuffix("%")) / (100 if "%" in text else 1)
    except (ValueError, ZeroDivisionError):
        share = math.nan
    if not 0 < share < 1:
        raise ValueError(f"{text!r} is not a share between 0 and 1, such as 1/3")
    return share


def _steps(text: str) -> tuple[float, ...]:
    try:
        steps = [float(step) for step in text.split(",")]
    except ValueError:
        steps = []
    rising = all(one < other for one, other in pairwise(steps))
    if not steps or not rising or steps[0] <= 0 or not math.isfinite(steps[-1]) or len(steps) > MOST_RULES:
        raise ValueError(f"at {text}: give rising steps above 0, such as 3,9,27")
    return tuple(steps)


def wanted(stop_when: str, keep: str) -> str:
    """Return the metrics that these rules compare, separated by commas; empty for rules that cannot be read."""
    try:
        rules, halving = stop_rules(stop_when), keep_best(keep)
    except ValueError:
        return ""
    return ",".join(_distinct([*(rule.metric for rule in rules), *([halving.metric] if halving is not None else [])]))


def _distinct(names: Iterable[str]) -> Iterable[str]:
    return {loose(name): name for name in names}.values()
