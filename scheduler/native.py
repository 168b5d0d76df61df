"""The shim compiled: where it lies, whether it may be used, and how it comes to be."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from subprocess import TimeoutExpired

from scheduler import processes
from scheduler.paths import NATIVE_SOURCE, Places

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-std=gnu11", "-D_GNU_SOURCE", "-s")
WHOLE = ("-static", *FLAGS)
"""With all that it needs in itself a fork of it costs 0.15 ms less; not every system has the libraries for that."""
PATIENCE = 120.0
"""Seconds that the compiler may take; it takes one where it need not make way."""
USAGE = 2
"""What it ends with when it is told nothing: so it can be started here."""
PYTHON, COMPILED = "python", "c"
"""What `shim` is set to where it is not to be chosen: never the compiled one, or it before anything starts."""


def find(places: Places, wanted: str = "auto") -> Path | None:
    """The compiled shim, where it is there and means the same as ours; with `c` made first if that can be done."""
    target = _target(places, wanted)
    if target is not None and wanted == COMPILED and not target.exists():
        build(target)
    return target if target is not None and target.exists() else None


def begin(places: Places, wanted: str = "auto") -> None:
    """Have it made for later runs, in the background and after everybody else, unless it is there or cannot be."""
    target = _target(places, wanted)
    if target is not None and not target.exists() and not _failed(target).exists():
        with contextlib.suppress(RuntimeError):  # this user may have no more threads now: a later run will do it
            threading.Thread(target=build, args=(target, _behind_everybody()), daemon=True).start()


def build(target: Path, how: Sequence[str] = ()) -> bool:
    """Compile it and try whether it starts; what a compiler that cannot has said is kept, and nothing stops for it.

    `how` are words before the compiler's: where nobody waits for it, it makes way for everybody.
    """
    part = target.with_suffix(f".{os.getpid()}")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for flags in (WHOLE, FLAGS):
            words = [*how, *_compiler(), *flags, "-o", str(part), str(NATIVE_SOURCE), "-lm"]
            code, said = processes.answer(words, patience=PATIENCE)
            if code == 0 and processes.answer([str(part)], patience=PATIENCE)[0] == USAGE:
                _wait_for_disk(part)
                part.rename(target)
                return True
        _failed(target).write_text(f"{' '.join(words)}\n{said}", encoding="utf-8")
    except (OSError, TimeoutExpired):
        pass  # a full disk, or a compiler that hangs: the next run tries again
    with contextlib.suppress(OSError):
        part.unlink()
    return False


def _target(places: Places, wanted: str) -> Path | None:
    """Where it lies, by source, machine and compiler; None where it is not wanted, or would mean something else."""
    compiler = _compiler()
    if wanted == PYTHON or not compiler or sys.getfilesystemencoding() != "utf-8":
        return None  # names of files are bytes in it, which only UTF-8 tells one way
    try:
        source, status = NATIVE_SOURCE.read_bytes(), os.stat(compiler[0])
    except OSError:
        return None
    from hashlib import blake2b  # light verbs load this module too

    what = f"{os.uname().machine} {WHOLE} {compiler} {status.st_size} {status.st_mtime_ns}".encode()
    return places.native(blake2b(source + what, digest_size=8).hexdigest())


def _wait_for_disk(path: Path) -> None:
    """After a power cut it is whole or not there: an empty one would never be made again."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _failed(target: Path) -> Path:
    return target.with_suffix(".failed")


def _compiler() -> list[str]:
    return next(([found] for name in COMPILERS if (found := _on_path(name))), [])


def _behind_everybody() -> list[str]:
    nice = _on_path("nice")
    return [nice, "-n", "19"] if nice else []


def _on_path(name: str) -> str:
    found = (os.path.join(folder, name) for folder in os.get_exec_path() if folder.startswith("/"))
    return next((path for path in found if os.access(path, os.X_OK)), "")
