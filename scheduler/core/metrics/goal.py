"""The direction in which a metric is better, and the order in which metrics are worth showing, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

_LOW = frozenset({
    "loss", "ppl", "perplexity", "err", "error", "errors", "mse", "rmse", "mae", "mape", "wer", "cer", "ter", "fid",
    "nll", "bpb", "bpc", "bpd", "kl", "rmsle", "logloss", "regret", "distance", "cost", "time", "seconds", "latency",
    "chamfer", "epe", "lpips", "kid", "ece", "brier",
})  # fmt: skip
"""Words in the names of metrics for which a low value is better."""
_CHECKED = frozenset({"val", "valid", "validation", "test", "eval", "dev"})
_INPUTS = frozenset({
    "lr", "rate", "epoch", "epochs", "step", "steps", "iter", "iteration", "iterations", "norm", "time", "seconds",
    "momentum", "decay", "batch", "size", "id",
})  # fmt: skip
"""Words in the names of numbers that are set or counted, and not a result of training."""
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


class Goal(StrEnum):
    """The direction in which a metric is better."""

    MIN = "min"
    MAX = "max"


def goal_of(name: str) -> Goal:
    """Return the direction in which a metric with this name is usually better."""
    return Goal.MIN if words_of(name) & _LOW else Goal.MAX


def is_reached(name: str) -> bool:
    """Tell whether a metric is a result of training, rather than set or counted as the learning rate and epochs are."""
    return not words_of(name) & _INPUTS


def words_of(name: str) -> frozenset[str]:
    """Return the words of a name, in lower case: they are equal for `val_loss`, `val/loss` and `valLoss`."""
    return frozenset(part.lower() for part in _PARTS.findall(name))


def loose(name: str) -> str:
    """Return the form of a name that is equal for all its spellings."""
    return re.sub(r"[\W_]+", "_", name).strip("_").lower()


def ranked(names: Iterable[str], first: Sequence[str] = ()) -> list[str]:
    """Return the names of metrics, the most important ones first.

    The order is: those that the user named (`first`), metrics of validation, metrics of training, and numbers that are
    only set or counted, such as the learning rate.
    """
    wanted = {loose(name): place for place, name in enumerate(first)}

    def rank(name: str) -> tuple[int, bool, bool]:
        words = words_of(name)
        return wanted.get(loose(name), len(wanted)), bool(words & _INPUTS), not words & _CHECKED

    return sorted(names, key=rank)
