"""The configuration dictionary of Python tasks: its defaults, its combinations of parameters, its result folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import product
from typing import Any

from scheduler.errors import ConfigError

AUTO = "auto"
"""The value that stands for all GPUs, packed by memory, instead of a list."""
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
"""Defaults that are made absolute paths; temp_folder is never created, since nothing needs it."""


class ConfigManager:
    """A configuration and its combinations of parameters; missing defaults are added to the dictionary it is given."""

    def __init__(self, config: dict[str, Any]) -> None:
        if "scheduler_config" not in config:
            raise ConfigError("could not find scheduler_config in config")
        said = config["scheduler_config"]
        said["gpu"] = _gpus(said.get("gpu"))
        for name, value in _DEFAULTS.items():
            default = os.path.abspath(value) if name in _FOLDERS else deepcopy(value)
            said.setdefault(name, default)
        self._config = config
        self._instances: list[tuple[dict[str, Any], str, str]] | None = None
        self._next = 0
        self._number = sum(_size(axes) for axes in self._axes())

    def get_all_scheduler_config(self) -> dict[str, Any]:
        """Return the scheduler's part, with all defaults."""
        said: dict[str, Any] = self._config["scheduler_config"]
        return said

    def get_all_global_config(self) -> dict[str, Any]:
        """Return the parameters that all combinations share."""
        said: dict[str, Any] = self._config.get("global_config", {})
        return said

    def get_all_test_config(self) -> list[dict[str, Any]]:
        """Return the varied parameters as they were written."""
        said: list[dict[str, Any]] = self._config.get("test_config", [{}])
        return said

    def get_all_test_config_in_string(self) -> str:
        """Return the varied parameters as one text, a piece for each dictionary; raise KeyError if there are none."""
        end = self._said("test_config_string_inst_separator")
        return "".join(self._string(one) + end for one in self._config["test_config"])

    def get_num_left_config(self) -> int:
        """Return how many combinations were not returned yet."""
        return self._number - self._next

    def get_num_gpu(self) -> int:
        """Return how many tasks may run at once, one per entry; with `auto` that is not a number of GPUs."""
        return len(self.get_gpu_envs())

    def get_gpu_envs(self) -> list[dict[str, Any]]:
        """Return a name for each entry, and the environment variables of its tasks."""
        gpus = self._said("gpu")
        if gpus == AUTO:
            return [{"name": AUTO, "env": {}}]
        return [{"name": f"gpu{gpu}", "env": {"CUDA_VISIBLE_DEVICES": gpu}} for gpu in gpus]

    def get_next_config(self, create_dir: bool = False) -> dict[str, Any]:
        """Return the next combination with its names and its folder; `{"config": None}` after the last one.

        `create_dir` never had an effect, and is accepted for existing calls.
        """
        if self._instances is None:
            self._instances = list(self._named())
        if self._next >= len(self._instances):
            return {"config": None}
        test, string, folder = self._instances[self._next]
        self._next += 1
        return {
            "config": {**deepcopy(self.get_all_global_config()), **deepcopy(test)},
            "test_config_string": string,
            "test_config_string_filtered": folder,
            "work_dir": self._inside(folder),
        }

    def _said(self, name: str) -> Any:
        return self.get_all_scheduler_config()[name]

    def _axes(self) -> Iterator[dict[str, list[Any]]]:
        said: object = self.get_all_test_config()
        if not isinstance(said, (list, tuple)) or not all(isinstance(one, Mapping) for one in said):
            raise ConfigError("test_config is a list of dictionaries, each of names and lists of values")
        for one in said:
            yield {key: _values(key, values) for key, values in one.items()}

    def _named(self) -> Iterator[tuple[dict[str, Any], str, str]]:
        """Yield every combination, its text and its folder's name; names that are equal after cutting get a suffix."""
        owners: dict[str, str] = {}
        for axes in self._axes():
            for values in product(*axes.values()):
                test = dict(zip(axes, values, strict=True))
                folder, whole = self._filtered(test), self._filtered(test, cut=False)
                if owners.setdefault(folder, whole) != whole:
                    folder = f"{folder}~{_digest(whole)}"
                    owners.setdefault(folder, whole)
                yield test, self._string(test), folder

    def _filtered(self, test: Mapping[str, Any], *, cut: bool = True) -> str:
        ignored = self._said("ignored_keys_for_folder_name")
        text = self._string({key: value for key, value in test.items() if key not in ignored}, cut=cut)
        for character in self._said("ignored_characters_for_folder_name"):
            text = text.replace(character, "")
        return text

    def _string(self, test: Mapping[str, Any], *, cut: bool = True) -> str:
        between, end = self._said("test_config_string_indicator"), self._said("test_config_string_separator")
        most = self._said("config_string_value_maxlen") if cut else None
        return "".join(f"{key}{between}{str(test[key])[:most]}{end}" for key in sorted(test))

    def _inside(self, folder: str) -> str:
        """Return the folder under the result root; raise ConfigError if `..` in a value leads out of it."""
        root = self._said("result_root_folder")
        place = os.path.join(root, folder)
        if os.path.commonpath([os.path.abspath(place), os.path.abspath(root)]) != os.path.abspath(root):
            raise ConfigError(
                f"the folder {place} lies outside of result_root_folder {root}: no value may lead out of it"
            )
        return place


def _values(key: str, values: Any) -> list[Any]:
    """Return the values of a parameter; a text counts as its letters, as in the older tool."""
    if not isinstance(values, Iterable):
        raise ConfigError(f"test_config: {key!r} is {values!r:.60}, which is no list of values: write [{values!r:.60}]")
    return list(values)


def _size(axes: Mapping[str, list[Any]]) -> int:
    number = 1
    for values in axes.values():
        number *= len(values)
    return number


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()


def _gpus(said: Any) -> list[str] | str:
    """Return a text for each slot; raise ConfigError, which is a ValueError too."""
    if said == AUTO:
        return AUTO
    if said is None or (isinstance(said, (str, list)) and not said):
        raise ConfigError("please specify at least one gpu in scheduler_config")
    if not isinstance(said, (str, list)):
        raise ConfigError("gpu can only be a string or a list of strings")
    return [_gpu(entry) for entry in said]


def _gpu(entry: Any) -> str:
    entries = entry if isinstance(entry, list) else [entry]
    if not entries or not all(isinstance(one, (str, int)) and not isinstance(one, bool) for one in entries):
        raise ConfigError("gpu can only be a string or a list of strings")
    return ",".join(str(one) for one in entries)
