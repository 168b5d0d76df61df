"""The folder of an experiment: `results.json`, and the files for readers that are generated from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.errors import StateError, UsageError
from scheduler.experiment.arms import Arm
from scheduler.experiment.readings import Reading
from scheduler.runtime.paths import ExperimentPaths, replace_file, tilde
from scheduler.store.machine.locked_files import open_directory, take_lock

VERSION = 1
"""The format version of results.json."""


class ExperimentFolder:
    """The folder of one experiment; it is locked while it is open, so that only one process at a time measures
    in it.
    """

    def __init__(self, places: ExperimentPaths, terms: Mapping[str, Any]) -> None:
        """Create or open the folder of an experiment with these terms.

        Raise UsageError if the folder has another experiment, StateError if the folder is in use.
        """
        self.places = places
        self.terms = dict(terms)
        self.readings: list[Reading] = []
        self.unfinished: int | None = None
        """The number of the run that is being measured, or that was being measured when the experiment was killed; None
        if there is none.
        """
        self._is_new = not places.root.exists()
        where = tilde(places.root)
        try:
            places.root.mkdir(parents=True, exist_ok=True)
            self._fd = open_directory(places.root)
        except OSError as exc:
            why = (exc.strerror or str(exc)).lower()
            raise UsageError(f"-o {where}: the directory cannot be created: {why}") from exc
        try:
            take_lock(self._fd)
            if places.results.exists():
                self._read(where)
        except BaseException as exc:
            os.close(self._fd)
            if isinstance(exc, BlockingIOError):
                raise StateError(f"another experiment is measuring in {where}: name another directory with -o") from exc
            raise

    def _read(self, where: str) -> None:
        try:
            data = json.loads(self.places.results.read_text(encoding="utf-8"))
            known = data["terms"] if data["format"] == VERSION else {}
            self.readings = [Reading.from_dict(reading) for reading in data["readings"]] if known else []
            self.unfinished = data["unfinished_run"] if known else None
        except (ValueError, KeyError, TypeError) as exc:
            path = tilde(self.places.results)
            raise StateError(f"{path} holds no results of an experiment: name another directory with -o") from exc
        for name, value in self.terms.items():
            if known.get(name) != value:
                raise UsageError(
                    f"{where} holds an experiment with other terms ({name} was {known.get(name)}, is {value} now): "
                    "name another directory with -o, or remove that one"
                )

    def has(self, arm: Arm, repeat: int) -> bool:
        """Tell whether a repeat of an arm has been measured."""
        return any((reading.arm, reading.repeat) == (arm.name, repeat) for reading in self.readings)

    def to_dict(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results as JSON values; `found` has values that were derived from the readings, and facts about
        the machine.
        """
        return {
            "format": VERSION,
            "folder": str(self.places.root),
            "terms": self.terms,
            **found,
            "unfinished_run": self.unfinished,
            "readings": [reading.to_dict() for reading in self.readings],
        }

    def write(self, path: Path, text: str) -> None:
        """Replace a file of the folder atomically; raise StateError if that fails."""
        try:
            replace_file(path, text.encode("utf-8"))
        except OSError as exc:
            why = (exc.strerror or str(exc)).lower()
            raise StateError(f"{tilde(path)} cannot be written: {why}") from exc

    def close(self) -> None:
        """Unlock the folder; remove it if nothing was written to it."""
        if self._is_new and not (self.readings or self.unfinished):
            for path in (self.places.copies, self.places.results):
                path.unlink(missing_ok=True)
            if not any(self.places.root.iterdir()):
                self.places.root.rmdir()
        os.close(self._fd)
