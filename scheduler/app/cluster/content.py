"""The check that nodes have what tasks need: directories, interpreters, and scripts equal to those at the head."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

from scheduler.cluster.head import Nodes
from scheduler.core.brain import Brain
from scheduler.core.model import Spec, State
from scheduler.core.profiling.task_class import files_of, script_of
from scheduler.core.tasks.fields import THIS_PYTHON, RowForm
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import StateError, UsageError
from scheduler.runtime.python_envs import Programs
from scheduler.store.run.launch_command import launched, located
from scheduler.store.run.run_store import SqliteRunStore
from scheduler.units import count

Screen = Callable[[RowForm, Iterable[Sequence[InputRow]]], Iterable[Sequence[InputRow]]]
MOST = 2000
"""The most needed paths that are compared."""
LARGEST = 16 << 20
"""The size in bytes of the largest script whose content is compared."""
_DIGEST_BYTES = 10


class TaskNeeds:
    """The directories, interpreters and scripts that some tasks need, relative to a directory."""

    def __init__(self, directory: str, carried: str = "") -> None:
        """Begin without needs. Scripts in the directory `carried` are left out, because nodes receive them in another
        way.
        """
        self._directory, self._carried = directory, carried
        self._directories: dict[str, None] = {}
        self._programs: dict[str, None] = {}
        self._scripts: dict[str, str] = {}

    def note(self, said: Spec, programs: Programs) -> None:
        """Note what one task needs, unless MOST paths are noted already."""
        if len(self._directories) + len(self._programs) + len(self._scripts) >= MOST:
            return
        spec = located(said, programs)
        directory = os.path.normpath(os.path.join(self._directory, spec.directory))
        self._directories[directory] = None
        program = _program(launched(said, programs)[0], programs)
        if os.path.isabs(program) and program not in self._programs and os.access(program, os.X_OK):
            self._programs[program] = None
        for file in filter(None, files_of(spec, script_of(spec))):
            path = os.path.normpath(os.path.join(directory, file))
            if path not in self._scripts and not self._is_carried(path) and (text := digest(path)):
                self._scripts[path] = text

    def _is_carried(self, path: str) -> bool:
        return bool(self._carried) and path.startswith(f"{self._carried}/")

    def to_dict(self) -> dict[str, Any]:
        """Return the needs as a message."""
        return {"directories": [*self._directories], "programs": [*self._programs], "scripts": self._scripts}


def _program(spec: Spec, programs: Programs) -> str:
    """Return the program that a row names; nodes, too, look up a name without a path on the run's PATH."""
    if spec.is_whole:
        return spec.command.partition(" ")[0]
    return programs.python.path if spec.executable in THIS_PYTHON else spec.executable


def need_for_calls(nodes: Nodes, directory: str, python: str) -> None:
    """Check that the nodes have the interpreter and the directory of Python calls. Raise UsageError if a node lacks one
    of them.
    """
    _refuse(nodes.compare({"directories": [directory], "programs": [python], "scripts": {}}))


def compared(nodes: Nodes, store: SqliteRunStore, directory: str, inner: Screen) -> Screen:
    """Return a check that does what the check `inner` of rows does and, once all rows are read, compares what the rows
    need with what the nodes have.

    The new check raises UsageError if a node lacks something.
    """

    def screened(form: RowForm, batches: Iterable[Sequence[InputRow]]) -> Iterator[Sequence[InputRow]]:
        needs, programs = TaskNeeds(directory, str(store.places.root)), store.programs_of(form)
        for batch in inner(form, batches):
            for row, cells, _, _ in batch:
                with contextlib.suppress(LookupError):  # a placeholder that only the result of a parent fills
                    needs.note(form.spec(cells, row), programs)
            yield batch
        _refuse(nodes.compare(needs.to_dict()))

    return screened


def _refuse(lacks: Mapping[str, Sequence[str]]) -> None:
    for name, found in lacks.items():
        if found:
            more = f" (and {count(len(found) - 1, 'other path')})" if len(found) > 1 else ""
            raise UsageError(
                f"{name}: {found[0]}{more}: make it the same as here, for example with rsync, or leave {name} "
                "out of --on"
            )


def needs_of_waiting(store: SqliteRunStore, brain: Brain, directory: str) -> dict[str, Any]:
    """Return what the waiting tasks of a run need, for a node that joins it."""
    needs = TaskNeeds(directory, str(store.places.root))
    for task in islice(brain.task_table.in_state(State.WAITING), MOST):
        with contextlib.suppress(LookupError, StateError):
            needs.note(*store.said(task))
    return needs.to_dict()


def differences(said: Mapping[str, Any]) -> list[str]:
    """Return sentences about the needs that this node does not meet; the agent calls this."""
    found = [f"there is no directory {path}" for path in said["directories"] if not os.path.isdir(path)]
    found += [f"there is no program {path}" for path in said["programs"] if not os.access(path, os.X_OK)]
    for path, wanted in said["scripts"].items():
        here = digest(path)
        if here != wanted:
            found.append(f"{path} has other content there" if here else f"there is no file {path}")
    return found


def digest(path: str) -> str:
    """Return the digest of a script; empty if it is not a readable file, or is too large."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
            return ""
        with open(path, "rb") as file:
            return blake2b(file.read(), digest_size=_DIGEST_BYTES).hexdigest()
    except OSError:
        return ""
