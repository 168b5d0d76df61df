"""The shells from which tasks were submitted to a queue: one file for all submissions from equal shells."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from scheduler.core.model import TaskShell
from scheduler.errors import StateError
from scheduler.runtime.paths import make_private
from scheduler.runtime.python_envs import Programs, Python
from scheduler.store.run.shell_state import ShellState, is_of_one_machine, keep, this_shell, with_secrets
from scheduler.values import dataclass

MOST_KEPT = 256
"""The number of shells that are kept in memory."""


@dataclass(frozen=True, slots=True)
class SubmittedShell:
    """The shell from which tasks were submitted, and the finder of the programs on its PATH."""

    task_shell: TaskShell
    programs: Programs


def digest_of(shell: ShellState, python: Python) -> str:
    """Return the name of a shell's file, a digest of its state: equal shells share one file."""
    from hashlib import blake2b

    said = [sorted(shell.environ.items()), shell.umask, sorted(shell.limits.items()), python.path, python.prefix]
    return blake2b(json.dumps(said).encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()


def keep_shell(folder: Path, shell: ShellState, python: Python) -> str:
    """Write a shell durably without its secrets, unless its file exists, and return its digest. Raise StateError if it
    cannot be written.
    """
    digest = digest_of(shell, python)
    path = folder / digest
    if path.exists():
        return digest
    make_private(folder)
    try:
        keep(path, shell, python=[python.path, python.why, python.prefix])
    except OSError as exc:
        raise StateError(f"the environment of the task cannot be written to {path}: {exc.strerror}") from exc
    return digest


class SubmittedShells:
    """The shells of one queue; the file of a shell is read when a task first needs it."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *, on_nodes: bool = False) -> None:
        """Prepare to read shells from a folder; `environ` is the run's own environment.

        With `on_nodes`, variables that have a meaning on one machine only are left out.
        """
        self._on_nodes = on_nodes
        self._folder = folder
        self._environ = environ
        self._known: dict[str, SubmittedShell] = {}
        self._secrets: dict[str, Mapping[str, str]] = {}
        """For each shell, the variables that its file leaves out."""

    def learn_secrets(self, digest: str, secrets: Mapping[str, str]) -> None:
        """Keep in memory those variables of a shell that its file leaves out because they look like secrets."""
        if secrets:
            self._secrets[digest] = secrets
            self._known.pop(digest, None)

    def of(self, digest: str) -> SubmittedShell:
        """Return the shell with this digest. Raise StateError if its file cannot be read."""
        if digest not in self._known:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[digest] = self._read(digest)
        return self._known[digest]

    def _read(self, digest: str) -> SubmittedShell:
        path = self._folder / digest
        try:
            data = json.loads(path.read_text(encoding="ascii"))
            first, python = ShellState.from_dict(data), Python(*data["python"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise StateError(f"{path}, the environment that tasks were submitted with, cannot be read ({exc})") from exc
        shell = with_secrets(first, {**os.environ, **self._secrets.get(digest, {})})
        changes = _changes(self._environ, shell.environ)
        if self._on_nodes:
            changes = {name: text for name, text in changes.items() if not is_of_one_machine(name)}
        return SubmittedShell(
            TaskShell(changes, python.path, shell.beyond(this_shell())),
            Programs(shell.environ, "/", python),
        )


def _changes(base: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that turn one environment into another; None removes a variable."""
    changed: dict[str, str | None] = {name: text for name, text in environ.items() if base.get(name) != text}
    return {**dict.fromkeys(name for name in base if name not in environ), **changed}
