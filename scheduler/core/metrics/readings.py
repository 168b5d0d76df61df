"""Metrics in the output of a task, and in the JSON objects that it reports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from scheduler.core.metrics.goal import loose, words_of

Reading = tuple[str, float, float | None]
"""The name of a metric, a value, and its step if one is known."""
LONGEST_NAME = 64
LONGEST_LINE = 2000
"""The number of characters of a line that are searched."""
OFF = "off"
"""The word that turns the search of output off."""
_WORDS = frozenset({
    "loss", "acc", "accuracy", "f1", "ppl", "perplexity", "lr", "bleu", "sacrebleu", "auc", "auroc", "auprc", "mse",
    "rmse", "mae", "mape", "iou", "miou", "dice", "psnr", "ssim", "lpips", "wer", "cer", "fid", "reward", "rouge",
    "recall", "precision", "bpb", "bpc", "bpd", "nll", "elbo", "mcc", "top1", "top5", "map", "ndcg", "mrr", "ece",
})  # fmt: skip
_WITH_OTHERS = frozenset({"err", "error", "score", "return", "rate"})
"""Words that mean a metric only in a longer name, as in `val_error` and `learning_rate`."""
_USUAL = tuple(sorted({*_WORDS, *_WITH_OTHERS} - {"accuracy", "sacrebleu", "miou", "rmse", "mape"}))
"""The shortest words in the two sets above. A name with any word of the sets contains one of the shortest words."""
_PLAIN = frozenset({"map", "precision", "recall", "dice", "reward"})
"""Words that also occur in prose: if only a blank is between such a word and a number, the word does not name a
metric."""
_SETS = r"train(?:ing)?|val(?:id|idation)?|test(?:ing)?|eval(?:uation)?|dev"
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|inf(?:inity)?)\b)"
# Patterns are compiled when they are first used: views of tasks whose output was read need none of them.
_PAIR = (
    rf"(?i)(?<![\w./@-])(?P<name>(?:(?:{_SETS})\s)?[a-z][\w./@+-]{{0,63}})[\"']?(?:\s*(?P<sign>[=:])\s*|\s+)"
    rf"(?P<value>{_NUMBER})(?![\w/:]|\.\d)"
)
_EPOCH = r"(?i)epochs?[\s:#\[=('\"]*(\d+(?:\.\d+)?)(?:\s*(?:/|of)\s*(\d+(?:\.\d+)?))?"
_STEP = r"(?i)(?<![a-z])(?:global_?step|steps?|iter(?:ation)?s?|it)[\s:#\[=('\"]*(\d+(?:\.\d+)?)"
_COUNT = r"(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)"
_RAISED = rf"(?:\w+\.)*(?!(?i:{_SETS})Error$)[A-Z]\w*(?:Error|Exception|Warning)"
"""The name of a Python exception, which a number may follow: `RuntimeError: 1 device wanted`."""
_COLOURS = r"\x1b\[[0-9;?]*[A-Za-z]"
_STEPS = ("step", "_step", "global_step", "iteration", "epoch")
"""The names under which a reported object may give its step; the first one in this order counts."""

Progress = tuple[float, float | None]
"""The number of completed epochs, and the number of all epochs if that is known."""


class LineReader:
    """A search for epochs and metrics in the lines of an output."""

    def __init__(self, names: str = "", more: str = "") -> None:
        """Search for the usual names, or only for `names`, which are separated by commas; `off` finds none.

        `more` are names that are always found.
        """
        self._names, self._more = _spelled(names), _spelled(more)
        self._hints = () if names.strip().lower() == OFF else _hints(names)
        if self._more:
            self._hints += _hints(more)

    def lines(self, text: str) -> Iterator[tuple[Progress | None, list[Reading]]]:
        """Yield the epochs and the metrics of each line that has some."""
        plain = text.lower()
        hints = [word for word in self._hints if word in plain]  # most output has none; matching a pattern takes longer
        if not hints and "epoch" not in plain:
            return
        for line in re.split(r"[\r\n]+", text):
            small = line.lower()
            progress = epochs(line) if "epoch" in small else None
            there = any(word in small for word in hints)
            found = self._readings(line[:LONGEST_LINE], progress) if there else []
            if progress is not None or found:
                yield progress, found

    def _readings(self, line: str, progress: Progress | None) -> list[Reading]:
        line = re.sub(_COLOURS, "", line)
        steps = re.findall(_STEP, line)
        step = float(steps[-1]) if steps else progress[0] if progress else None
        found = []
        for match in re.finditer(_PAIR, line):
            name = re.sub(r"\s+", "_", match["name"].strip())
            if self._is_metric(name, blank=match["sign"] is None):
                found.append((name[:LONGEST_NAME], float(match["value"]), step))
        return found

    def _is_metric(self, name: str, *, blank: bool) -> bool:
        if self._more and loose(name) in self._more:
            return True
        if self._names:
            return loose(name) in self._names
        if re.fullmatch(_RAISED, name):
            return False
        words = words_of(name) | frozenset(loose(name).split("_"))
        if blank and words <= _PLAIN:
            return False
        return bool(words & _WORDS) or (bool(words & _WITH_OTHERS) and len(words) > 1)


def _spelled(names: str) -> frozenset[str]:
    return frozenset(loose(name) for name in names.split(",") if name.strip()) - {""}


def _hints(names: str) -> tuple[str, ...]:
    """Return words such that every line with a metric contains at least one of them."""
    given = [word.lower() for name in names.split(",") for word in re.split(r"[\W_]+", name) if word]
    return tuple(given or _USUAL)


def epochs(text: str) -> Progress | None:
    """Return the last progress in epochs in a text, such as `epoch 3` or `Epoch [3/10]`; None if there is none."""
    return _last(re.findall(_EPOCH, text))


def count(text: str) -> Progress | None:
    """Return the last progress in a text that is written like `3/10`; None if there is none."""
    return _last(re.findall(_COUNT, text))


def _last(found: Sequence[tuple[str, str]]) -> Progress | None:
    if not found:
        return None
    done, of = found[-1]
    return float(done), float(of) if of else None


def reported(text: str) -> list[Reading] | None:
    """Return the numbers of a JSON object by name; None if the text is not one object."""
    try:
        data = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return None
    return _flat(data) if isinstance(data, dict) else None


def left(result: Mapping[str, object]) -> list[Reading]:
    """Return the numbers in the JSON object that a task wrote as its result."""
    numbers = {
        name: float(value)
        for name, value in result.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return _flat(numbers)


def _flat(data: Mapping[str, object]) -> list[Reading]:
    step_name = next((name for name in _STEPS if isinstance(data.get(name), float)), None)
    step = data[step_name] if step_name is not None else None
    assert step is None or isinstance(step, float)
    return [
        (clean_name(name), value, step if step is None or math.isfinite(step) else None)
        for name, value in data.items()
        if isinstance(value, float) and name != step_name and clean_name(name)
    ]


def clean_name(name: str) -> str:
    """Return a reported name as one line of printable characters, at most LONGEST_NAME."""
    return "".join(letter if letter.isprintable() else "?" for letter in name).strip()[:LONGEST_NAME]
