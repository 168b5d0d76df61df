"""Profiles as people and programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.core.confidential import without_secrets
from scheduler.core.knowledge import Profile, family_of
from scheduler.core.model import HOST
from scheduler.units import duration, size
from scheduler.view.words import moment, short, table

if TYPE_CHECKING:
    from scheduler.core.factors import Factor


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
        "what": without_secrets(kept.what),
        "device": kept.device,
        "updated": moment(kept.updated),
        "peak_bytes": max(profile.peaks.values(), default=0),
        "runs": _runs(profile),
        "parts": {
            name: {"peak_bytes": part.peak, "peaks_bytes": part.full, "lower_bound_bytes": part.lower}
            for name, part in profile.parts.items()
        },
        "epoch_seconds": profile.epoch_seconds,
        "whole_seconds": profile.whole_seconds,
        "cores": profile.cores,
        "busy": profile.busy,
    }


def family_lines(kept: Sequence[Kept]) -> list[str]:
    """What is known of each script's arguments, for scripts of which there are several profiles."""
    said: list[str] = []
    for members in _families(kept):
        factors = family_of(one.profile for one in members).factors()
        script = members[0].what.split(" ", 1)[0]
        said += [f"arguments of {script}, from {len(members)} profiles"] if factors else []
        said += [f"  {', '.join(one.slots):<40} {_verdict(one)}" for one in factors]
    return said


def family_facts(kept: Sequence[Kept]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "script": members[0].what.split(" ", 1)[0],
            "keys": [one.key for one in members],
            "arguments": [
                {"slots": list(one.slots), "values": one.values, "neutral": one.neutral, "left_out": one.left_out}
                for one in family_of(one.profile for one in members).factors()
            ],
        }
        for members in _families(kept)
    ]


def _families(kept: Sequence[Kept]) -> list[list[Kept]]:
    families: dict[str, list[Kept]] = {}
    for one in kept:
        if one.profile.family and one.profile.peaks:
            families.setdefault(one.profile.family, []).append(one)
    return [members for members in families.values() if len(members) > 1]


def _verdict(factor: Factor) -> str:
    if factor.left_out:
        return "left out: another value in every row"
    if factor.neutral:
        return f"does not change its memory ({factor.values} values)"
    return f"may change its memory ({factor.values} values)"


def _runs(profile: Profile) -> int:
    return max((len(part.full) for part in profile.parts.values()), default=0)


def _where(part: str) -> str:
    return "host RAM" if part == HOST else f"its GPU {part}"


def table_lines(kept: Sequence[Kept]) -> list[str]:
    """One line each."""
    if not kept:
        return ["nothing is known yet: every run teaches, and scheduler profiles learn FILE does nothing else"]
    rows = [
        [
            one.key[:10],
            short(without_secrets(one.what), 50),
            " ".join(size(part.peak) for name, part in sorted(one.profile.parts.items()) if name != HOST),
            size(one.profile.part(HOST).peak),
            str(_runs(one.profile)),
            f"{one.profile.cores:.1f}" if one.profile.cores else "",
            duration(one.profile.epoch_seconds) if one.profile.epoch_seconds else "",
            one.device,
            moment(one.updated),
        ]
        for one in kept
    ]
    header = ["key", "what", "GPU", "host", "runs", "cores", "epoch", "device", "updated"]
    return table(header, rows, frozenset({2, 3, 4, 5, 6}))


def full_lines(kept: Kept) -> list[str]:
    """Everything about one."""
    profile = kept.profile
    said = [f"{kept.key}  {short(without_secrets(kept.what), 100)}", f"  device   {kept.device}"]
    for name, part in sorted(profile.parts.items()):
        peaks = ", ".join(size(peak) for peak in part.full) or "none yet"
        said += [
            f"  peak     {size(part.peak)} on {_where(name)}",
            f"  runs     {peaks}",
            f"  seen     {size(part.lower)} outside full runs (probes, failed or living ones)",
        ]
    busy = f", keeps a GPU {profile.busy:.0%} busy" if profile.busy else ""
    return [
        *said,
        *([f"  epoch    {profile.epoch_seconds:.3f}s"] if profile.epoch_seconds else []),
        f"  whole    {duration(profile.whole_seconds) if profile.whole_seconds else 'no full run yet'}",
        f"  cores    {profile.cores:.2f}{busy}",
        f"  updated  {moment(kept.updated)}",
    ]
