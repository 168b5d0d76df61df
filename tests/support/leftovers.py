"""Processes, control groups and temporary files that a test has left behind on the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from scheduler.runtime import shim

GROUP_ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
"""Folders below which an engine makes its control groups, in a container and on a machine."""
GROUPS = shim.group_name("")
"""The beginning of the name of every control group of an engine."""
JOURNAL_HEAD = 1 << 16
"""The bytes of a file in which the prefix of a run's control groups is looked for."""


def processes_in(folder: Path) -> Iterator[str]:
    """Yield the processes that live in a folder: their directory or a variable of theirs is in it."""
    mine = {str(os.getpid()), str(os.getppid())}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name in mine:
            continue
        with suppress(OSError):
            inside = os.readlink(entry / "cwd").startswith(str(folder))
            if inside or os.fsencode(folder) in (entry / "environ").read_bytes():
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if shim.start_time(int(entry.name)):
                    yield f"process {entry.name}: {words}"


def groups_of(folder: Path) -> Iterator[str]:
    """Yield the paths of the control groups that runs in a folder have made."""
    found = [group for root in GROUP_ROOTS if root.is_dir() for group in root.glob(f"{GROUPS}*")]
    if found:
        heads = list(_heads(folder))
        for group in found:
            prefix = group.name.removeprefix(GROUPS).split(".")[0].encode()
            if any(prefix in head for head in heads):
                yield str(group)


def remove_groups(folder: Path) -> None:
    """Remove the control groups of killed shims of runs in a folder, as the next fork server would."""
    for group in groups_of(folder):
        shim.remove_group(group)


def _heads(folder: Path) -> Iterator[bytes]:
    """Yield the beginning of each journal below a folder."""
    for path in folder.rglob("journal*"):
        with suppress(OSError), path.open("rb") as file:
            yield file.read(JOURNAL_HEAD)


def entries_of(folder: Path, known: Iterable[str]) -> Iterator[str]:
    """Yield the entries of a temporary folder that are not known from before; pytest keeps its own."""
    new = sorted(set(os.listdir(folder)) - set(known))
    yield from (f"temporary {folder / name}" for name in new if not name.startswith("pytest-of-"))
