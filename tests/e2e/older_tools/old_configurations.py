"""Configurations of Python tasks as users write them, drawn at random, and what the older tool made of each.

The model below is written from the contract (S4-01 to S4-11) and shares no code with the product.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from random import Random
from typing import Any

KEYS = ("method", "num_packing", "lr", "batch size", "layers", "z", "Ünit", "seed", "path", "opt")
TEXTS = ("GAN", "a b", "[x]", "data/train", "x" * 29, "x" * 30, "y" * 31, "ü", "", "1,2", "a-b", "new\nline")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "force_rerun": (True, False),
    "result_root_folder": ("out", "../results", "/tmp/results/"),
    "test_config_string_separator": (";", ", ", "_"),
    "test_config_string_indicator": ("=", ": "),
    "test_config_string_inst_separator": ("|", ""),
    "log_file": ("log.txt", None),
    "scheduler_log_file_path": (None, "s.log"),
    "config_string_value_maxlen": (0, 1, 6, 100, None),
    "ignored_keys_for_folder_name": (["lr"], ["lr", "seed"], ["nothing"]),
    "ignored_characters_for_folder_name": ([], ["a"], [" ", ","], "[]"),
}
GPUS = (["0"], ["0", "1"], ["0", "0"], [["0", "1"], "2"], "01", ["GPU-1a"], [["0"], ["1"]])


def drawn(random: Random) -> str:
    """Return the expression of a configuration."""
    scheduler = {"gpu": random.choice(GPUS)}
    scheduler |= {name: random.choice(OPTIONS[name]) for name in random.sample(sorted(OPTIONS), random.randrange(4))}
    parts = [f"'scheduler_config': {scheduler!r}"]
    if random.random() < 0.7:
        parts.append(f"'global_config': {{{', '.join(f'{key!r}: {value(random)}' for key in _keys(random, 4))}}}")
    if random.random() < 0.9:
        parts.append(f"'test_config': [{', '.join(_dictionary(random) for _ in range(random.randrange(4)))}]")
    return f"{{{', '.join(parts)}}}"


def _keys(random: Random, most: int) -> list[str]:
    return random.sample(KEYS, random.randrange(most))


def _dictionary(random: Random) -> str:
    return f"{{{', '.join(f'{key!r}: {_axis(random)}' for key in _keys(random, 4))}}}"


def _axis(random: Random) -> str:
    """Return the expression of the values of one parameter; iterators give their values once."""
    values = ", ".join(value(random) for _ in range(random.choice((0, 1, 1, 2, 3))))
    return random.choice((f"[{values}]", f"[{values}]", f"({values},)" if values else "()", "range(3)", "'ab'"))


def value(random: Random) -> str:
    """Return the expression of one value."""
    kind = random.randrange(8)
    if kind == 0:
        return repr(random.choice(TEXTS))
    if kind == 1:
        return repr([random.randrange(100) for _ in range(random.randrange(15))])
    if kind == 2:
        return repr({"width": random.randrange(1000), "act": random.choice(TEXTS)})
    plain = (1, 0, -3, True, False, None, 0.001, 1e-08, 1e22, (1, 2), float("inf"), 3 + 1j)
    return repr(random.choice(plain)).replace("inf", "float('inf')")


def observed(make: Callable[[dict[str, Any]], Any], expression: str) -> dict[str, Any]:
    """Return all that a reader of a configuration says of it, in the order of the calls."""
    config = eval(expression)  # written above
    of = make(config)
    said: dict[str, Any] = {
        "scheduler_config": of.get_all_scheduler_config(),
        "global_config": of.get_all_global_config(),
        "test_config": of.get_all_test_config(),
        "envs": of.get_gpu_envs(),
        "gpus": of.get_num_gpu(),
        "left": of.get_num_left_config(),
        "filled in place": config["scheduler_config"],
    }
    try:
        said["all in one"] = of.get_all_test_config_in_string()
    except KeyError:
        said["all in one"] = "KeyError"
    said["next"] = [of.get_next_config() for _ in range(said["left"] + 2)]
    said["left at the end"] = of.get_num_left_config()
    return said


class OldConfigManager:
    """The configuration as the older tool read it, by its contract."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.own, self.given = config, config["scheduler_config"], 0
        if not isinstance(self.own["gpu"], str):
            self.own["gpu"] = [entry if isinstance(entry, str) else ",".join(entry) for entry in self.own["gpu"]]
        self.own |= {name: value for name, value in defaults().items() if name not in self.own}
        self.tests = [
            dict(zip(one, row, strict=True))
            for one in config.get("test_config", [{}])
            for row in itertools.product(*one.values())
        ]

    def get_all_scheduler_config(self) -> Any:
        return self.own

    def get_all_global_config(self) -> Any:
        return self.config.get("global_config", {})

    def get_all_test_config(self) -> Any:
        return self.tests

    def get_gpu_envs(self) -> Any:
        return [{"name": f"gpu{gpu}", "env": {"CUDA_VISIBLE_DEVICES": gpu}} for gpu in self.own["gpu"]]

    def get_num_gpu(self) -> int:
        return len(self.own["gpu"])

    def get_num_left_config(self) -> int:
        return len(self.tests) - self.given

    def get_all_test_config_in_string(self) -> str:
        pieces = (self.text({key: str(one[key]) for key in one}) for one in self.config["test_config"])
        return "".join(piece + self.own["test_config_string_inst_separator"] for piece in pieces)

    def get_next_config(self) -> dict[str, Any]:
        if not self.get_num_left_config():
            return {"config": None}
        test = self.tests[self.given]
        self.given += 1
        cut = {key: str(test[key])[: self.own["config_string_value_maxlen"]] for key in test}
        kept = {key: cut[key] for key in cut if key not in self.own["ignored_keys_for_folder_name"]}
        return {
            "config": copy.deepcopy(self.get_all_global_config()) | test,
            "test_config_string": self.bare(self.text(cut)),
            "test_config_string_filtered": self.bare(self.text(kept)),
            "work_dir": os.path.join(self.own["result_root_folder"], self.bare(self.text(kept))),
        }

    def text(self, texts: dict[str, str]) -> str:
        middle, end = self.own["test_config_string_indicator"], self.own["test_config_string_separator"]
        return "".join(key + middle + texts[key] + end for key in sorted(texts))

    def bare(self, text: str) -> str:
        for character in self.own["ignored_characters_for_folder_name"]:
            text = text.replace(character, "")
        return text


def defaults() -> dict[str, Any]:
    return {
        "force_rerun": False, "result_root_folder": os.path.abspath("results/"),
        "test_config_string_separator": ",", "test_config_string_indicator": "-",
        "test_config_string_inst_separator": "+", "temp_folder": os.path.abspath("temp/"),
        "log_file": "worker.log", "scheduler_log_file_path": "scheduler.log", "config_string_value_maxlen": 30,
        "ignored_keys_for_folder_name": [], "ignored_characters_for_folder_name": [" ", "[", "]"],
    }  # fmt: skip
