"""The check that nodes have what a list needs: its directories, and each script with the content that it has here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from scheduler.cluster.head import Nodes
from scheduler.core.profiling.task_class import files_of, script_of
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import UsageError
from scheduler.runtime.python_envs import Programs
from scheduler.store.run.launch_command import located
from scheduler.units import count

Screen = Callable[[RowForm, Iterable[Sequence[InputRow]]], Iterable[Sequence[InputRow]]]
MOST = 2000
"""The number of different directories and scripts of a list that are compared."""
LARGEST = 16 << 20
"""Bytes of the largest script whose content is compared."""
_DIGEST_BYTES = 10


class ListContent:
    """The directories and scripts of a list, noted as its rows are read."""

    def __init__(self, nodes: Nodes, programs: Programs, directory: str) -> None:
        """Note what rows name, relative to a directory."""
        self._nodes, self._programs, self._directory = nodes, programs, directory
        self._directories: dict[str, None] = {}
        self._scripts: dict[str, str] = {}
        self._programs_used: list[str] = []

    def need_for_calls(self, python: str) -> None:
        """Ask the nodes for the interpreter and the directory of Python calls. Raise UsageError."""
        self._directories[self._directory] = None
        self._programs_used = [python]
        self._compare()

    def screen(self, inner: Screen) -> Screen:
        """Return a screen that also asks the nodes, once all rows were read. It raises UsageError."""

        def screened(form: RowForm, batches: Iterable[Sequence[InputRow]]) -> Iterator[Sequence[InputRow]]:
            for batch in inner(form, batches):
                for row, cells, _, _ in batch:
                    if len(self._directories) + len(self._scripts) < MOST:
                        self._note(form, cells, row)
                yield batch
            self._compare()

        return screened

    def _note(self, form: RowForm, cells: list[str], row: int) -> None:
        try:
            spec = located(form.spec(cells, row), self._programs)
        except LookupError:  # a placeholder that only the result of a parent fills
            return
        directory = os.path.normpath(os.path.join(self._directory, spec.directory))
        self._directories[directory] = None
        for file in filter(None, files_of(spec, script_of(spec))):
            path = os.path.normpath(os.path.join(directory, file))
            if path not in self._scripts and (text := digest(path)):
                self._scripts[path] = text

    def _compare(self) -> None:
        said = {"directories": [*self._directories], "scripts": self._scripts, "programs": self._programs_used}
        for name, found in self._nodes.compare(said).items():
            if found:
                more = f" (and {count(len(found) - 1, 'other path')})" if len(found) > 1 else ""
                raise UsageError(
                    f"{name}: {found[0]}{more}: bring it to what it is here, for example with rsync, or leave {name} "
                    "out of --on"
                )


def differences(said: Mapping[str, Any]) -> list[str]:
    """Return sentences about what a node lacks of this; for the agent."""
    found = [f"there is no directory {path}" for path in said["directories"] if not os.path.isdir(path)]
    found += [f"there is no interpreter {path}" for path in said["programs"] if not os.access(path, os.X_OK)]
    for path, wanted in said["scripts"].items():
        here = digest(path)
        if here != wanted:
            found.append(f"{path} has other content there" if here else f"there is no file {path}")
    return found


def digest(path: str) -> str:
    """Return the digest of a script; empty if it is no readable file, or too large."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
            return ""
        with open(path, "rb") as file:
            return blake2b(file.read(), digest_size=_DIGEST_BYTES).hexdigest()
    except OSError:
        return ""
