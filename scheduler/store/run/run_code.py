"""The copies of the code from which a run starts its processes, and the repair of these copies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from scheduler.errors import StateError
from scheduler.runtime.paths import RUN_CODE, tilde
from scheduler.runtime.threads import start_thread

_DIGEST_BYTES = 16


def copy(folder: Path, code: Sequence[tuple[Path, str]]) -> dict[str, str]:
    """Copy files to a run's folder without waiting for the disk, and return their digests by name."""
    digests = {}
    for source, name in code:
        content, target = source.read_bytes(), folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if os.access(source, os.X_OK):
            target.chmod(0o700)
        digests[name] = digest(content)
    return digests


def digest(content: bytes) -> str:
    """Return the digest of the content of a file."""
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


class RunCode:
    """The code copies of one run: until its end, the run uses the code that was installed when it started."""

    def __init__(
        self, folder: Path, digests: Mapping[str, str], installed: Sequence[tuple[Path, str]] = RUN_CODE
    ) -> None:
        """Take the digests that the run recorded at its start, by name; a copy without a digest is not checked."""
        self._folder = folder
        self._installed = {name: source for source, name in installed}
        self._digests = {name: text for name, text in digests.items() if name in self._installed}

    def mend(self) -> None:
        """Create missing or damaged copies again from the installed code, and wait for the disk.

        Raise StateError if the installed code is not the code with which the run started, and OSError if a copy cannot
        be written.
        """
        damaged = [name for name in self._digests if not self._is_whole(self._folder / name, name)]
        for name in damaged:
            if not self._is_whole(self._installed[name], name):
                raise StateError(
                    f"{tilde(self._folder / name)} is missing or damaged, and the installed scheduler is not the one "
                    "that this run started with and needs: install that version again"
                )
        for name in damaged:
            _write(self._folder / name, self._installed[name].read_bytes())

    def _is_whole(self, path: Path, name: str) -> bool:
        try:
            return digest(path.read_bytes()) == self._digests[name]
        except OSError:
            return False

    def sync_later(self) -> None:
        """Sync the copies to disk in a separate thread. A power failure before that may destroy copies, which `mend`
        creates again.
        """
        start_thread(self._sync)

    def _sync(self) -> None:
        paths = [self._folder / name for name in self._digests]
        for path in [*paths, *{path.parent for path in paths}, self._folder.parent]:
            with contextlib.suppress(OSError):
                _sync(path)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
