"""Runs on disk, as anybody may look at them: found by number or name, alive or not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from scheduler.errors import NoSuchRun, StateError
from scheduler.paths import Places, RunPlaces
from scheduler.shim import is_here
from scheduler.store.journal import Journal
from scheduler.store.locks import is_locked
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, as its directory and the facts in its journal say."""

    number: int
    places: RunPlaces
    meta: Mapping[str, str]
    alive: bool

    @property
    def what(self) -> str:
        """What was given to run."""
        return self.meta.get("file", "")

    @property
    def elsewhere(self) -> str:
        """The machine it belongs to, where that is not this one; its lock, pids and boot say nothing here then."""
        host = self.meta.get("host", "")
        return "" if is_here(self.meta.get("boot", ""), self.meta.get("machine", ""), host) else host


class Runs:
    """All runs of one user on this machine."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def numbers(self) -> list[int]:
        """Every accepted run, oldest first."""
        try:
            names = os.listdir(self.places.runs)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise StateError(
                f"{self.places.runs} cannot be read: {exc.strerror}; give another with --state DIR"
            ) from exc
        return sorted(int(name) for name in names if name.isdigit())

    def info(self, number: int) -> RunInfo:
        """One run; raises NoSuchRun for what is not there or was never accepted."""
        info, journal = self.open(number)
        journal.close()
        return info

    def open(self, number: int) -> tuple[RunInfo, Journal]:
        """The same with its journal, which the caller closes."""
        places = self.places.run(number)
        if not places.journal.exists():
            raise NoSuchRun(f"there is no run {number} in {self.places.runs}: scheduler runs shows what there is")
        journal = Journal.read(places.journal)
        try:
            meta = journal.meta()
            if "accepted" not in meta:
                raise NoSuchRun(f"run {number} was never accepted: it ended while its list was read")
            return RunInfo(number, places, meta, is_locked(places.lock)), journal
        except BaseException:
            journal.close()
            raise

    def all(self) -> Iterator[RunInfo]:
        """Every accepted run, newest first."""
        for number in reversed(self.numbers()):
            with contextlib.suppress(StateError):
                yield self.info(number)

    def find(self, word: str | None) -> RunInfo:
        """A run by number or name, or this machine's latest, a living one first."""
        if word is None:
            return self._latest()
        if word.isdigit():
            return self.info(int(word))
        for info in self.all():
            if info.meta.get("name") == word:
                return info
        raise NoSuchRun(f"no run here is called {word!r}: scheduler runs shows what there is")

    def _latest(self) -> RunInfo:
        """A living one, else one of this machine, else any; of many only the locks are looked at."""
        for number in reversed(self.numbers()):
            if is_locked(self.places.run(number).lock):
                with contextlib.suppress(StateError):
                    return self.info(number)
        first = None
        for info in self.all():
            if not info.elsewhere:
                return info
            first = first or info
        if first is None:
            raise NoSuchRun(f"there is no run yet in {self.places.runs}: scheduler run FILE starts one")
        return first
