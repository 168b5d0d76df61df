"""The limit that the kernel sets on the GPU memory of a control group, by the controller `dmem` (since Linux 6.14).

Each GPU is a region in the `dmem.capacity` of the root group, named by its PCI address (`drm/0000:03:00.0/vram0`). The
shim writes the limits into `dmem.max` of the attempt's group. Only a driver that registers its memory with the kernel
can be limited.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.core.model import Placement
from scheduler.core.ports import FenceLaunch
from scheduler.runtime.shim import own_group
from scheduler.values import dataclass

CONTROLLER = "dmem"
MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_KERNEL = "dmem needs Linux 6.14 or newer with CONFIG_CGROUP_DMEM"


@dataclass(frozen=True, slots=True)
class DmemFence:
    """The MemoryFence of a run with `--fence dmem`; `regions` maps the key of each GPU to its region."""

    regions: Mapping[str, str]

    def limit(self, placement: Placement, argv: Sequence[str], environ: Mapping[str, str | None]) -> FenceLaunch:
        """Return the lines for the `dmem.max` of the attempt's group; GPUs that the task was not given get the
        limit 0.
        """
        if not placement.sees:
            return FenceLaunch()
        given = {key: placement.reservation.get(key, 0) if key in placement.sees else 0 for key in self.regions}
        return FenceLaunch(limits=tuple(f"{self.regions[key]} {given[key]}" for key in self.regions))


def regions(buses: Mapping[str, str], mounts: Sequence[Path] = MOUNTS) -> dict[str, str]:
    """Return the region of each GPU by its key; `buses` has the PCI address of each GPU by the same key."""
    lines = [
        line.split()[0] for mount in mounts for line in _text(mount / "dmem.capacity").splitlines() if line.split()
    ]
    found = {}
    for key, bus in buses.items():
        mine = [line for line in lines if _place(bus) and _place(bus) in map(_place, line.split("/"))]
        if mine:
            found[key] = next((line for line in mine if line.split("/")[-1].startswith("vram")), mine[0])
    return found


def why_not(
    buses: Mapping[str, str], mounts: Sequence[Path] = MOUNTS, folder: str | None = None, *, change: bool = True
) -> str:
    """Return why the kernel cannot limit these GPUs for tasks of this process; an empty string if it can.

    With `change`, enable the controller for the groups below this process's own group, unless it is already enabled.
    Without `change`, the string may be empty although enabling the controller would fail.
    """
    if not any(CONTROLLER in _text(mount / "cgroup.controllers").split() for mount in mounts):
        return f"this kernel ({os.uname().release}) has no such controller: {_KERNEL}"
    missing = [key for key in buses if key not in regions(buses, mounts)]
    if missing:
        which = ", ".join(dict.fromkeys(missing))
        return f"the driver has not registered the memory of {which} with the kernel (dmem.capacity)"
    own = own_group() if folder is None else folder
    if not own:
        return "this process may not create control groups: start it in a control group that is delegated to you"
    if CONTROLLER not in _text(Path(own, "cgroup.controllers")).split():
        return f"the controller is not delegated to {own}: root writes +dmem to cgroup.subtree_control above it"
    return _switched_on(Path(own, "cgroup.subtree_control")) if change else ""


def _switched_on(control: Path) -> str:
    if CONTROLLER in _text(control).split():
        return ""
    try:
        with open(control, "w", encoding="ascii") as file:
            file.write(f"+{CONTROLLER}")
    except OSError as exc:
        inside = " (processes are in the group itself: a scope with a group below it is needed)"
        return f"{control} cannot be written: {exc.strerror}{inside if exc.errno == errno.EBUSY else ''}"
    return ""


def _place(bus: str) -> tuple[int, ...]:
    """Return a PCI address as numbers, because the width of its parts varies: `00000000:03:00.0`, `0000:03:00.0`."""
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.([0-9a-fA-F]+)", bus)
    return tuple(int(part, 16) for part in match.groups()) if match else ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
