"""Profiles as people and programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from scheduler.core.knowledge import Profile
from scheduler.units import duration, size
from scheduler.view.words import moment, short, table


class Kept(Protocol):
    """One profile as it is kept."""

    @property
    def key(self) -> str:
        """What it is kept under."""

    @property
    def what(self) -> str:
        """Script and arguments."""

    @property
    def device(self) -> str:
        """Where it holds."""

    @property
    def updated(self) -> float:
        """When it was last added to."""

    @property
    def profile(self) -> Profile:
        """What is known."""


def facts(kept: Kept) -> dict[str, Any]:
    """Everything, for programs."""
    profile = kept.profile
    return {
        "key": kept.key,
        "what": kept.what,
        "device": kept.device,
        "updated": moment(kept.updated),
        "peak_bytes": profile.peak,
        "runs": len(profile.peaks),
        "peaks_bytes": profile.peaks,
        "lower_bound_bytes": profile.lower,
        "epoch_seconds": profile.epoch_seconds,
        "cores": profile.cores,
    }


def table_lines(kept: Sequence[Kept]) -> list[str]:
    """One line each."""
    if not kept:
        return ["nothing is known yet: every run teaches, and scheduler profiles learn FILE does nothing else"]
    rows = [
        [
            one.key[:10],
            short(one.what, 50),
            size(one.profile.peak),
            str(len(one.profile.peaks)),
            f"{one.profile.cores:.1f}" if one.profile.cores else "",
            duration(one.profile.epoch_seconds) if one.profile.epoch_seconds else "",
            one.device,
            moment(one.updated),
        ]
        for one in kept
    ]
    return table(["key", "what", "peak", "runs", "cores", "epoch", "device", "updated"], rows, frozenset({2, 3, 4, 5}))


def full_lines(kept: Kept) -> list[str]:
    """Everything about one."""
    profile = kept.profile
    peaks = ", ".join(size(peak) for peak in profile.peaks) or "none yet"
    return [
        f"{kept.key}  {short(kept.what, 100)}",
        f"  device   {kept.device}",
        f"  peak     {size(profile.peak)}",
        f"  runs     {peaks}",
        f"  seen     {size(profile.lower)} outside full runs (probes, failed or living ones)",
        f"  epoch    {profile.epoch_seconds:.3f}s",
        f"  cores    {profile.cores:.2f}",
        f"  updated  {moment(kept.updated)}",
    ]
