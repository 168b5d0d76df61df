"""An experiment's folder: what was measured so far, kept line by line so that an interrupted one goes on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TextIO

from scheduler.core.experiments import Arm, Reading, Wait
from scheduler.errors import StateError, UsageError
from scheduler.paths import ExperimentPlaces, tilde
from scheduler.store.locks import take_lock

VERSION = 1


class Readings:
    """What is known of one experiment; nobody else measures in the same folder meanwhile."""

    def __init__(self, places: ExperimentPlaces, terms: Mapping[str, Any]) -> None:
        """`terms` is what it measures; raises UsageError where the folder holds another, StateError if it is in use."""
        self.places = places
        self.readings: list[Reading] = []
        self.around: list[Mapping[str, Any]] = []
        """What the machine was like at each of them."""
        self.begun: dict[tuple[str, int], int] = {}
        """Runs that were begun and not read, by arm and repeat."""
        self.learned = False
        self._mine = False
        try:
            places.root.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(places.kept, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as exc:
            why = (exc.strerror or str(exc)).lower()
            raise UsageError(f"-o {tilde(places.root)}: no folder can be made there: {why}") from exc
        try:
            self._begin(terms)
        except BaseException:
            self.close()
            raise

    def _begin(self, terms: Mapping[str, Any]) -> None:
        try:
            take_lock(self._fd)
        except BlockingIOError as exc:
            where = tilde(self.places.root)
            raise StateError(f"an experiment is being measured in {where} now: name another folder with -o") from exc
        lines = list(self._lines())
        if not lines:
            self._mine = True
            self._append({"format": VERSION, "terms": terms})
            return
        self._check(lines[0], terms)
        self._mine = True
        for line in lines[1:]:
            self._take(line)

    def _lines(self) -> list[dict[str, Any]]:
        """All that were written whole; one that was not is taken away."""
        with open(self.places.kept, "rb") as file:
            said = file.read()
        whole = said[: said.rfind(b"\n") + 1]
        os.ftruncate(self._fd, len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as exc:
            raise StateError(f"{tilde(self.places.kept)} is no list of readings: name another folder with -o") from exc

    def _check(self, first: Mapping[str, Any], terms: Mapping[str, Any]) -> None:
        before = first.get("terms", {}) if first.get("format") == VERSION else {}
        other = [name for name in terms if before.get(name) != terms[name]]
        if other:
            name = other[0]
            raise UsageError(
                f"{tilde(self.places.root)} holds an experiment with other terms ({name} was {before.get(name)}, is "
                f"{terms[name]} now): name another folder with -o, or remove that one"
            )

    def _take(self, line: Mapping[str, Any]) -> None:
        self.learned = self.learned or "learned" in line
        if "begun" in line:
            self.begun[line["arm"], line["repeat"]] = line["begun"]
        if "reading" in line:
            said = line["reading"]
            reading = Reading(**{**said, "waits": tuple(Wait(**wait) for wait in said["waits"])})
            self.readings.append(reading)
            self.around.append(line["around"])
            self.begun.pop((reading.arm, reading.repeat), None)

    def has(self, arm: Arm, repeat: int) -> bool:
        """Whether an arm was measured."""
        return any((one.arm, one.repeat) == (arm.name, repeat) for one in self.readings)

    def note_learned(self) -> None:
        """What the tasks need is known."""
        self.learned = True
        self._append({"learned": True})

    def note_begun(self, arm: Arm, repeat: int, run: int) -> None:
        """A run of an arm was accepted."""
        self.begun[arm.name, repeat] = run
        self._append({"begun": run, "arm": arm.name, "repeat": repeat})

    def note_gone(self, arm: str, repeat: int) -> None:
        """Nothing is left of a run that was begun."""
        self.begun.pop((arm, repeat), None)

    def keep(self, reading: Reading, around: Mapping[str, Any]) -> None:
        """An arm was measured."""
        self._append({"reading": asdict(reading), "around": around})
        self.readings.append(reading)
        self.around.append(around)
        self.begun.pop((reading.arm, reading.repeat), None)

    def _append(self, said: Mapping[str, Any]) -> None:
        try:
            os.write(self._fd, json.dumps(said).encode() + b"\n")
            os.fsync(self._fd)
        except OSError as exc:
            raise StateError(f"{tilde(self.places.kept)} cannot be written: {(exc.strerror or '').lower()}") from exc

    def close(self) -> None:
        """Let others measure here; where nothing was measured, nothing stays."""
        if self._mine and not (self.readings or self.begun or self.learned):
            for path in (self.places.kept, self.places.copies):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.places.root.rmdir()
        os.close(self._fd)


def write_whole(path: os.PathLike[str], write: Callable[[TextIO], None]) -> None:
    """A file of an experiment, replaced as a whole."""
    part = f"{os.fspath(path)}.part"
    with open(part, "w", encoding="utf-8", newline="") as file:
        write(file)
    os.replace(part, path)


def write_bytes(path: os.PathLike[str], said: bytes) -> None:
    """The same for a picture."""
    part = f"{os.fspath(path)}.part"
    with open(part, "wb") as file:
        file.write(said)
    os.replace(part, path)
