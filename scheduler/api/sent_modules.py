"""The program's own modules, as an archive for machines that do not have its files."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scheduler.patterns import lazy_pattern
from scheduler.runtime.paths import PACKAGE, replace_file
from scheduler.runtime.task_launcher import MANIFEST, digest

MOST_FILES, MOST_BYTES = 2000, 32 << 20
"""The most files and bytes of an archive; modules beyond these limits must already exist on the other machines."""
_ENVIRONMENT = lazy_pattern(r"/(?:site|dist)-packages(?:/|$)")
OUR_NAMES = "gpu_batch_scheduler"
"""The prefix of the names of this project's own modules. They are not sent, although in a checkout of the source they
look like modules of the program.
"""


class SentModules:
    """The archives of one program, in the directory of its run; new or edited modules lead to another archive."""

    def __init__(self) -> None:
        self._known: list[tuple[str, str, int, int]] = []
        """The files of the latest archive: name, path, modification time and size of each."""
        self._number = 0

    def archive(self, folder: Path) -> str:
        """Return the name of the current archive, which is created if needed; empty if the program has no modules of
        its own.
        """
        found = sorted({*_files()})
        if found != self._known:
            self._known = found
            self._number += 1
            if found:
                replace_file(folder / self._name, _packed(found), durable=False)
        return self._name if found else ""

    @property
    def _name(self) -> str:
        return f"modules-{self._number}.zip"


def _packed(files: list[tuple[str, str, int, int]]) -> bytes:
    import io
    import zipfile  # only calls on other machines pay for it

    packed, manifest = io.BytesIO(), {}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path, _, _ in files:
            try:
                content = Path(path).read_bytes()
            except OSError:
                continue  # it was removed; the next call leaves it out
            manifest[path] = digest(content)
            archive.writestr(name, content)
        archive.writestr(MANIFEST, json.dumps(manifest))
    return packed.getvalue()


def _files() -> Iterator[tuple[str, str, int, int]]:
    """Yield the files of the loaded modules that are not installed, and of the other modules in their packages."""
    left = MOST_FILES, MOST_BYTES
    for name, path in _named():
        try:
            status = os.stat(path)
        except OSError:
            continue
        left = left[0] - 1, left[1] - status.st_size
        if min(left) < 0:
            return
        yield name, path, status.st_mtime_ns, status.st_size


def _named() -> Iterator[tuple[str, str]]:
    """Yield the name in the archive and the path of each file."""
    packages: set[str] = set()
    installed = _installed()
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or "." in name or name.startswith("__"):
            continue
        path = os.path.abspath(file)
        folder = os.path.dirname(path)
        if f"{folder}/".startswith(installed) or name.startswith(OUR_NAMES) or _ENVIRONMENT.search(folder):
            continue
        if os.path.basename(path) == "__init__.py":
            packages.add(folder)
        else:
            yield os.path.basename(path), path
    for package in packages:
        for path in _modules_in(package):
            yield os.path.relpath(path, os.path.dirname(package)), path


def _modules_in(package: str) -> Iterator[str]:
    for folder, folders, files in os.walk(package):
        folders[:] = [each for each in folders if not each.startswith((".", "__"))]
        yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))


@cache
def _installed() -> tuple[str, ...]:
    """Return the prefixes of the paths of Python, of its environment and of this package, which every machine has."""
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(f"{place}/" for place in {*places, *map(os.path.realpath, places), str(PACKAGE)})
