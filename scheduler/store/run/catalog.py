"""The catalog of stored runs, for readers: found by number or name, with or without a living scheduler."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping

from scheduler.errors import NoSuchRun, StateError, UsageError
from scheduler.runtime.paths import RunPaths, StatePaths, open_plain, replace_file
from scheduler.runtime.shim import is_here
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run import schema
from scheduler.store.run.journal_reader import JournalReader, last_status
from scheduler.store.run.removal import never_began
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, from its directory and the facts in its journal."""

    number: int
    places: RunPaths
    meta: Mapping[str, str]
    alive: bool
    lost: str = ""
    """A sentence about how much of the end of the run's journal was lost; empty if nothing was lost."""
    kept: bool = False
    """True if the facts were saved by the run's scheduler when it ended; then the recorded status is up to date."""

    @property
    def what(self) -> str:
        """The file or the command that the run was started with."""
        return self.meta.get("file", "")

    @property
    def elsewhere(self) -> str:
        """The name of the machine to which the run belongs, if that is another one: the run's lock and pids have no
        meaning on this machine. Empty for a run of this machine.
        """
        host = self.meta.get("host", "")
        return "" if is_here(self.meta.get("boot", ""), self.meta.get("machine", ""), host) else host


FACTS_VERSION = 1
"""The version of the format in which the facts of a run are saved."""
MOST_FACTS = 1 << 20
"""The most bytes of saved facts that are read."""


def final_facts(journal: JournalReader) -> Mapping[str, str]:
    """Return the facts in a journal; none if the journal has lost its end, or if events were written after its recorded
    status.
    """
    meta = journal.meta()
    return {} if journal.lost or last_status(meta).get("up_to") != journal.reach() else meta


def keep_facts(places: RunPaths, meta: Mapping[str, str]) -> None:
    """Save the facts of a run next to its journal, which is closed, so that readers need not open the journal.

    The saved facts are valid for this state of the journal only. A failure is ignored, because readers then open the
    journal.
    """
    with contextlib.suppress(OSError):
        kept = {"version": FACTS_VERSION, "journal": _stamp(places), "meta": meta}
        replace_file(places.facts, json.dumps(kept).encode(), durable=False)


def _read_facts(places: RunPaths) -> dict[str, str] | None:
    """Return the facts that a run's scheduler saved; None if there are none, or if the run's journal has
    changed since.
    """
    try:
        with open_plain(places.facts) as file:
            kept = json.loads(file.read(MOST_FACTS))
        if kept["version"] == FACTS_VERSION and kept["journal"] == _stamp(places):
            meta = {str(name): str(text) for name, text in kept["meta"].items()}
            return meta if meta["format"] == str(schema.VERSION) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _stamp(places: RunPaths) -> list[int]:
    """Return values that change whenever the file of a journal is written; raise FileExistsError if its write-ahead log
    still contains changes.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.stat(f"{places.journal}-wal").st_size:
            raise FileExistsError
    found = os.stat(places.journal)
    return [found.st_ino, found.st_size, found.st_mtime_ns]


MOST_NAMED = 4
"""The most runs with an ambiguous name that an error names."""
LAST = "last"
"""The word that means the latest run, or its last task."""
DIGITS = 18
"""The most digits in the number of a run or a task."""


def run_word(word: str | None) -> str | None:
    """Return the value of a flag that accepts only runs, in the form that `RunCatalog.find` reads: `3` becomes `r3`."""
    return f"r{word}" if word is not None and word.isascii() and word.isdecimal() else word


class RunCatalog:
    """All runs of one user on this machine."""

    def __init__(self, places: StatePaths) -> None:
        self.places = places

    def numbers(self) -> list[int]:
        """Return the numbers of all runs, oldest first."""
        try:
            names = os.listdir(self.places.runs)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise StateError(
                f"{self.places.runs} cannot be read: {exc.strerror}; use another state directory with --state DIR"
            ) from exc
        return sorted(int(name) for name in names if name.isdecimal())

    def info(self, number: int) -> RunInfo:
        """Return one run. Raise NoSuchRun if it does not exist, or if its list was never accepted."""
        info, journal = self.look(number)
        if journal is not None:
            journal.close()
        return info

    def look(self, number: int) -> tuple[RunInfo, JournalReader | None]:
        """Return one run, with its open journal unless its scheduler saved the facts. Raise the errors that `info`
        raises.
        """
        places = self.places.run(number)
        meta = _read_facts(places)
        if meta is not None and not is_locked(places.root):
            return RunInfo(number, places, meta, alive=False, kept=True), None
        return self.open(number)

    def open(self, number: int) -> tuple[RunInfo, JournalReader]:
        """Return one run with its journal, which the caller must close. Raise the errors that `info` raises."""
        places = self.places.run(number)
        if not places.root.exists():
            raise NoSuchRun(f"there is no run {number} in {self.places.runs}: scheduler runs shows what there is")
        if never_began(places):
            raise NoSuchRun(f"run {number} was never accepted: it ended while its list was read")
        if not places.journal.exists():
            raise StateError(
                f"run {number} has no journal any more ({places.journal} was removed): the logs of its tasks are in "
                f"{places.tasks}, scheduler runs rm r{number} removes it"
            )
        journal = JournalReader.read(places.journal)
        try:
            meta = journal.meta()
            return RunInfo(number, places, meta, is_locked(places.root), journal.lost), journal
        except BaseException:
            journal.close()
            raise

    def all(self) -> Iterator[RunInfo]:
        """Yield every accepted run that can be read, newest first."""
        for number in reversed(self.numbers()):
            with contextlib.suppress(StateError):
                yield self.info(number)

    def find(self, word: str | None) -> RunInfo:
        """Return a run by its number (r3) or name; for `last` or without a word, the latest living run, or the latest
        run if none lives.

        Raise UsageError for a number without r, which means a task, and for a name that several runs have.
        """
        if word is None:
            return self._latest()
        number = word.removeprefix("r")
        if number.isascii() and number.isdecimal() and len(number) <= DIGITS:
            if number == word:
                raise UsageError(self._no_run(int(word)))
            return self.info(int(number))
        named = [info for info in self.all() if info.meta.get("name") == word]
        if not named and word == LAST:
            return self._latest()
        if not named:
            self._raise_unreadable_queue(word)
            run, dot, row = word.partition(".")
            if dot and row.isdecimal() and run[:1] == "r" and run[1:].isdecimal():
                raise UsageError(f"{word} is a task; its run is written {run}")
            raise NoSuchRun(f"no run here is called {word!r}: scheduler runs shows what there is")
        if len(named) > 1 and named[0].meta.get("door") != "queue":
            numbers = ", ".join(f"r{info.number}" for info in named[:MOST_NAMED])
            raise UsageError(f"{len(named)} runs are called {word!r}: name one by its number: {numbers}")
        return named[0]

    def _no_run(self, number: int) -> str:
        """Return a sentence that says that a number is a task and not a run."""
        for info in self.all():
            with (
                contextlib.suppress(StateError),
                contextlib.closing(JournalReader.read(info.places.journal)) as journal,
            ):
                if journal.within(number, number):
                    return f"{number} is a task (of run r{info.number}); run {number} is written r{number}"
        return f"a number is a task; run {number} is written r{number}"

    def _latest(self) -> RunInfo:
        """Return the latest living run that is not a standing queue, else the latest run of this machine, else the
        latest run of all.

        A standing queue lives on for a while without tasks, so being alive gives it no precedence.
        """
        for number in filter(lambda one: is_locked(self.places.run(one).root), reversed(self.numbers())):
            with contextlib.suppress(StateError):
                info = self.info(number)
                if info.meta.get("door") != "queue":
                    return info
        first = None
        for info in self.all():
            if not info.elsewhere:
                return info
            first = first or info
        if first is None:
            self._raise_unreadable()
            raise NoSuchRun(f"there is no run yet in {self.places.runs}: scheduler run FILE starts one")
        return first

    def _raise_unreadable_queue(self, name: str) -> None:
        """Raise the error for a queue whose run cannot be read, for example because another version wrote it."""
        with contextlib.suppress(OSError, ValueError, NoSuchRun):
            self.info(int(os.readlink(self.places.queues / name)))

    def _raise_unreadable(self) -> None:
        """Raise the error of the newest run that cannot be read; do nothing if all can be read."""
        for number in reversed(self.numbers()):
            with contextlib.suppress(NoSuchRun):
                self.info(number)
