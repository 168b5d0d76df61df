"""The configuration dictionary of Python tasks: its defaults, its combinations of parameters, and result folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from numbers import Integral
from typing import Any

from scheduler.compat.parameter_values import number_of, read_axes, text_of
from scheduler.errors import ConfigError
from scheduler.values import dataclass

AUTO = "auto"
"""The value that stands for all GPUs, packed by memory, instead of a list of GPUs."""
_DEFAULTS: dict[str, Any] = {
    "force_rerun": False,
    "result_root_folder": "results/",
    "test_config_string_separator": ",",
    "test_config_string_indicator": "-",
    "test_config_string_inst_separator": "+",
    "temp_folder": "temp/",
    "log_file": "worker.log",
    "scheduler_log_file_path": "scheduler.log",
    "config_string_value_maxlen": 30,
    "ignored_keys_for_folder_name": [],
    "ignored_characters_for_folder_name": [" ", "[", "]"],
}
_FOLDERS = ("result_root_folder", "temp_folder")
"""The defaults that become absolute paths; temp_folder is never created, because nothing uses it."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination of the varied parameters, with the strings that are made from it; `folder` is the name of its
    folder.
    """

    test: Mapping[str, Any]
    string: str
    folder: str
    texts: Mapping[str, str]
    """The string of each value, by parameter, in the order of `test`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A value of a parameter, and the parts that it contributes to the strings of a combination."""

    value: Any
    text: str
    cut: str
    in_folder: str
    whole: str


class ConfigManager:
    """A configuration and its combinations of parameters. Missing defaults are added to the dictionary that the caller
    passes.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        if "scheduler_config" not in config:
            raise ConfigError("could not find scheduler_config in config")
        said = config["scheduler_config"]
        said["gpu"] = _gpus(said)
        for name, value in _DEFAULTS.items():
            default = os.path.abspath(value) if name in _FOLDERS else deepcopy(value)
            said.setdefault(name, default)
        self._config = config
        self._axes = read_axes(config)
        self.number = sum(number_of(axes) for axes in self._axes)
        """The number of all combinations."""
        self.parameters = list(dict.fromkeys(name for axes in self._axes for name in axes))
        """The names of the parameters that any dictionary of `test_config` varies."""
        self._tests: list[dict[str, Any]] | None = None
        self._left = self._combinations()
        self._taken = 0

    def get_all_scheduler_config(self) -> dict[str, Any]:
        """Return the scheduler's part of the configuration, with all defaults."""
        said: dict[str, Any] = self._config["scheduler_config"]
        return said

    def get_all_global_config(self) -> dict[str, Any]:
        """Return the parameters that all combinations share."""
        said: dict[str, Any] = self._config.get("global_config", {})
        return said

    def get_all_test_config(self) -> list[dict[str, Any]]:
        """Return the varied parameters of every combination."""
        if self._tests is None:
            self._tests = list(self._products())
        return self._tests

    def get_all_test_config_in_string(self) -> str:
        """Return the varied parameters as they were written, as one string; raise KeyError if there are none.

        Each dictionary gives one part of the string; nothing is cut or left out.
        """
        end = self._said("test_config_string_inst_separator")
        return "".join(self._written(one) + end for one in self._config["test_config"])

    def get_num_left_config(self) -> int:
        """Return how many combinations have not been returned yet."""
        return self.number - self._taken

    def get_num_gpu(self) -> int:
        """Return how many tasks may run at once, one per entry; with `auto` this is not the number of GPUs."""
        return len(self.get_gpu_envs())

    def get_gpu_envs(self) -> list[dict[str, Any]]:
        """Return for each entry of `gpu` a name and the environment variables of its tasks."""
        gpus = self._said("gpu")
        if gpus == AUTO:
            return [{"name": AUTO, "env": {}}]
        return [{"name": f"gpu{gpu}", "env": {"CUDA_VISIBLE_DEVICES": gpu}} for gpu in gpus]

    def get_next_config(self, create_dir: bool = False) -> dict[str, Any]:
        """Return the next combination with its names and its folder; `{"config": None}` after the last one.

        `create_dir` never had an effect, and is accepted for existing calls.
        """
        found = self.next_combination()
        if found is None:
            return {"config": None}
        return {
            "config": {**deepcopy(self.get_all_global_config()), **found.test},
            "test_config_string": found.string,
            "test_config_string_filtered": found.folder,
            "work_dir": self.work_dir(found),
        }

    def next_combination(self) -> Combination | None:
        """Return the next combination; None after the last one."""
        found = next(self._left, None)
        self._taken += found is not None
        return found

    def work_dir(self, combination: Combination) -> str:
        """Return the path of the combination's folder below the result root; raise ConfigError if `..` in a value leads
        out of that root.
        """
        root = self._said("result_root_folder")
        place = os.path.join(root, combination.folder)
        if not combination.folder.startswith("/") and ".." not in combination.folder:
            return place
        if os.path.commonpath([os.path.abspath(place), os.path.abspath(root)]) != os.path.abspath(root):
            raise ConfigError(
                f"the folder {place} lies outside of result_root_folder {root}: no value may lead out of it"
            )
        return place

    def _said(self, name: str) -> Any:
        return self.get_all_scheduler_config()[name]

    def _products(self) -> Iterator[dict[str, Any]]:
        for axes in self._axes:
            for values in product(*axes.values()):
                yield dict(zip(axes, values, strict=True))

    def _combinations(self) -> Iterator[Combination]:
        """Yield every combination with its strings; if the names of two folders become equal by truncation, the later
        one gets a suffix.
        """
        owners: dict[int, int] = {}  # numbers instead of strings: there may be a million of them
        for axes in self._axes:
            pieces = [[self._piece(key, value) for value in values] for key, values in axes.items()]
            names, order = list(axes), sorted(range(len(axes)), key=list(axes).__getitem__)
            for chosen in product(*pieces):
                yield self._combination(names, chosen, [chosen[place] for place in order], owners)

    def _combination(
        self, names: Sequence[str], chosen: Sequence[Piece], ordered: Sequence[Piece], owners: dict[int, int]
    ) -> Combination:
        folder = self._without_ignored("".join([piece.in_folder for piece in ordered]))
        whole = self._without_ignored("".join([piece.whole for piece in ordered]))
        if owners.setdefault(hash(folder), hash(whole)) != hash(whole):
            folder = f"{folder}~{_digest(whole)}"
            owners.setdefault(hash(folder), hash(whole))
        return Combination(
            {name: piece.value for name, piece in zip(names, chosen, strict=True)},
            self._without_ignored("".join([piece.cut for piece in ordered])),
            folder,
            {name: piece.text for name, piece in zip(names, chosen, strict=True)},
        )

    def _piece(self, key: str, value: Any) -> Piece:
        between, end = self._said("test_config_string_indicator"), self._said("test_config_string_separator")
        text = text_of(value, f"test_config: a value of {key!r}")
        cut = f"{key}{between}{text[: self._said('config_string_value_maxlen')]}{end}"
        shown = key not in self._said("ignored_keys_for_folder_name")
        return Piece(value, text, cut, cut if shown else "", f"{key}{between}{text}{end}" if shown else "")

    def _without_ignored(self, text: str) -> str:
        for character in self._said("ignored_characters_for_folder_name"):
            text = text.replace(character, "")
        return text

    def _written(self, one: Mapping[str, Any]) -> str:
        between, end = self._said("test_config_string_indicator"), self._said("test_config_string_separator")
        return "".join(f"{key}{between}{one[key]}{end}" for key in sorted(one))


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()


_NO_GPUS = "gpu can only be a string or a list of strings"


def _gpus(scheduler_config: Mapping[str, Any]) -> Sequence[str]:
    """Return a string for each slot; `auto` and a string of one-digit GPUs stay as they are. Raise ConfigError if `gpu`
    is missing, empty or malformed.
    """
    if "gpu" not in scheduler_config:
        raise ConfigError("could not find gpu in scheduler_config")
    said = scheduler_config["gpu"]
    if isinstance(said, (bytes, Mapping)) or not hasattr(said, "__len__") or not hasattr(said, "__iter__"):
        raise ConfigError(_NO_GPUS)
    if not len(said):
        raise ConfigError("please specify at least one gpu in scheduler_config")
    if isinstance(said, str):
        return said
    slots = [_slot(entry) for entry in said]
    if isinstance(said, list):
        said[:] = slots
        return said
    return slots


def _slot(entry: Any) -> str:
    entries = entry if isinstance(entry, (list, tuple)) else [entry]
    if not all(isinstance(one, (str, Integral)) and not isinstance(one, bool) for one in entries):
        raise ConfigError(_NO_GPUS)
    return ",".join(str(one) for one in entries)
