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
"""Words in the names of metrics of which the lowest value is the best."""
_CHECKED = frozenset({"val", "valid", "validation", "test", "eval", "dev"})
_INPUTS = frozenset({
    "lr", "rate", "epoch", "epochs", "step", "steps", "iter", "iteration", "iterations", "norm", "time", "seconds",
    "momentum", "decay", "batch", "size", "id",
})  # fmt: skip
"""Words in the names of numbers that are set or counted rather than reached."""
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


class Goal(StrEnum):
    """The direction in which a metric is better."""

    MIN = "min"
    MAX = "max"


def goal_of(name: str) -> Goal:
    """Return the direction in which a metric with this name is usually better."""
    return Goal.MIN if words_of(name) & _LOW else Goal.MAX


def is_reached(name: str) -> bool:
    """Tell whether a metric is reached by training, rather than set or counted as the learning rate and epochs are."""
    return not words_of(name) & _INPUTS


def words_of(name: str) -> frozenset[str]:
    """Return the words of a name, in lower case: `val_loss`, `val/loss` and `valLoss` have the same ones."""
    return frozenset(part.lower() for part in _PARTS.findall(name))


def loose(name: str) -> str:
    """Return a name in a form in which all its spellings are equal."""
    return re.sub(r"[\W_]+", "_", name).strip("_").lower()


def ranked(names: Iterable[str], first: Sequence[str] = ()) -> list[str]:
    """Return the names of metrics, the most important ones first.

    `first` are those that the user named. Then come metrics of validation, then those of training, and at the end
    numbers that are only set or counted, such as the learning rate.
    """
    wanted = {loose(name): place for place, name in enumerate(first)}

    def rank(name: str) -> tuple[int, bool, bool]:
        words = words_of(name)
        return wanted.get(loose(name), len(wanted)), bool(words & _INPUTS), not words & _CHECKED

    return sorted(names, key=rank)
