"""The digests of scripts and of the modules next to them, which are part of the keys of profiles."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b

from scheduler.patterns import lazy_pattern
from scheduler.runtime.threads import BoundedCalls
from scheduler.values import dataclass

LARGEST_SCRIPT = 16 * 1024 * 1024
LARGEST_MODULE = 1024 * 1024
MOST_MODULES = 200
"""The most modules of a project that count as content of its script."""
LOOK_AGAIN = 1.0
"""Seconds before the modules of a script are checked again; the script itself is checked every time."""

_IMPORT = lazy_pattern(
    rb"^[ \t]*(?:from[ \t]+(?P<package>\.*[\w.]*)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n#;]*)"
    rb"|import[ \t]+(?P<modules>[\w., \t]+))",
    8,  # re.MULTILINE
)
_NAME = lazy_pattern(rb"^[ \t(]*([\w.]+)")


@dataclass(frozen=True, slots=True)
class Source:
    """One version of a Python file or another script."""

    stamp: tuple[int, int]
    digest: str
    imports: tuple[tuple[str, ...], ...] = ()
    """The modules that the file may import, as tuples: the level of the import (0: absolute), then the parts of the
    module's name.
    """


@dataclass(slots=True)
class Scan:
    """The modules next to a script, as they were at one time."""

    at: float
    stamp: tuple[int, int]
    """The version of the script itself, by which a change is noticed."""
    digest: str


class ScriptDigests:
    """The digests of scripts together with the modules of their project; each version of a file is read only once.

    The modules are found by the words `import` and `from` in the text, in the folder of the script and the folders
    below; nothing is executed. The digest of a script without imports from its project is the digest of its text.
    """

    def __init__(self, calls: BoundedCalls | None = None) -> None:
        """Read scripts through `calls`, which limits the time of each read, because a script may be on a network mount
        that does not respond; None: no limit.
        """
        self._calls = calls
        self._sources: dict[str, Source] = {}
        self._scans: dict[tuple[str, str], Scan] = {}

    def digest(self, path: str, root: str = "") -> str:
        """Return the digest of a script; empty if it is not a readable file. Raise TimeoutError if its folder does not
        answer.

        `root` is the folder from which the script imports modules; if empty, the script's own folder.
        """
        read = partial(self._read, path, root or os.path.dirname(path))
        return read() if self._calls is None else self._calls.call(os.path.dirname(path), read)

    def _read(self, path: str, root: str) -> str:
        source = self._source(path, LARGEST_SCRIPT)
        if source is None:
            return ""
        if not source.imports:
            return source.digest
        now, known = time.monotonic(), self._scans.get((path, root))
        if known is None or known.stamp != source.stamp or now - known.at >= LOOK_AGAIN:
            known = self._scans[path, root] = Scan(now, source.stamp, self._with_modules(source, path, root))
        return known.digest

    def _with_modules(self, script: Source, path: str, root: str) -> str:
        """Return the digest of a script together with all modules of its project that it imports, directly or
        indirectly.
        """
        found: dict[str, str] = {}
        waiting = [(script, path)]
        while waiting and len(found) < MOST_MODULES:
            importer, where = waiting.pop()
            for file in _files(importer.imports, os.path.dirname(where), root):
                if file == path or file in found or len(found) >= MOST_MODULES:
                    continue
                module = self._source(file, LARGEST_MODULE)
                if module is not None:
                    found[file] = module.digest
                    waiting.append((module, file))
        if not found:
            return script.digest
        parts = [script.digest, *(f"{os.path.relpath(file, root)}={found[file]}" for file in sorted(found))]
        return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()

    def _source(self, path: str, largest: int) -> Source | None:
        """Return the present version of a file; None if the file cannot be read, is too large, or is not a regular
        file.
        """
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
                return None
            known = self._sources.get(path)
            if known is None or known.stamp != stamp:
                with open(path, "rb") as file:
                    text = file.read(largest + 1)
                imports = tuple(_imports(text)) if path.endswith(".py") else ()
                known = self._sources[path] = Source(stamp, blake2b(text, digest_size=10).hexdigest(), imports)
        except OSError:
            return None
        return known


def _imports(text: bytes) -> Iterator[tuple[str, ...]]:
    """Yield the modules that a Python source may import, each as a tuple: the dots of the level, then the parts of the
    name.
    """
    for match in _IMPORT.finditer(text):
        if (modules := match["modules"]) is not None:
            for one in _names(modules):
                yield ("", *one.split("."))
            continue
        package = match["package"].decode("ascii", "replace")
        name = package.lstrip(".")
        base = ("." * (len(package) - len(name)), *filter(None, name.split(".")))
        yield base
        for one in _names(match["names"]):
            yield (*base, one)


def _names(text: bytes) -> Iterator[str]:
    """Yield the imported names in a comma-separated list, without their `as` parts."""
    for part in text.replace(b"\n", b" ").split(b","):
        if (match := _NAME.match(part)) is not None:
            yield match[1].decode("ascii", "replace")


def _files(imports: tuple[tuple[str, ...], ...], folder: str, root: str) -> Iterator[str]:
    """Yield the paths at which modules of the project would be: of each module, and of the packages around it."""
    for dots, *names in imports:
        base = root if not dots else os.path.normpath(os.path.join(folder, *[".."] * (len(dots) - 1)))
        if dots and os.path.commonpath((base, root)) != os.path.normpath(root):
            continue
        for length in range(1, len(names) + 1):
            place = os.path.join(base, *names[:length])
            yield f"{place}.py"
            yield os.path.join(place, "__init__.py")
        if not names:
            yield os.path.join(base, "__init__.py")
