"""Profiles as text for people and as data for programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.core.model import HOST
from scheduler.core.profiling.class_profile import Profile, StoredProfile, family_of
from scheduler.core.tasks.redaction import without_secrets
from scheduler.ui.text import moment, short, table
from scheduler.units import count, duration, size

if TYPE_CHECKING:
    from scheduler.core.profiling.family.families import ComputedPeak, Factor


def superseded(profiles: Iterable[StoredProfile]) -> frozenset[str]:
    """Return the keys of outdated profiles: a later version of their script has run on their device."""
    newest: dict[tuple[str, str], StoredProfile] = {}
    everything = [one for one in profiles if one.profile.relations]
    for one in everything:
        place = one.profile.relations[0], one.device
        newest[place] = max(newest.get(place, one), one, key=lambda row: row.updated)
    return frozenset(
        one.key
        for one in everything
        if newest[one.profile.relations[0], one.device].profile.family != one.profile.family
    )


def facts(row: StoredProfile, old: Collection[str] = ()) -> dict[str, Any]:
    """Return a profile as data for JSON; `old` has the keys of outdated profiles."""
    profile = row.profile
    return {
        "key": row.key,
        "what": without_secrets(row.what),
        "device": row.device,
        "updated": moment(row.updated),
        "version": "earlier" if row.key in old else "newest",
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


def family_lines(profiles: Sequence[StoredProfile]) -> list[str]:
    """Return lines that say which arguments change the memory, for each script with several profiles."""
    result: list[str] = []
    for members in _families(profiles):
        family = family_of(one.profile for one in members)
        factors = family.factors()
        script = members[0].what.split(" ", 1)[0]
        result += [f"arguments of {script}, from {len(members)} profiles"] if factors else []
        result += [f"  {', '.join(one.slots):<40} {_verdict(one)}" for one in factors]
        result += [line for one in family.computed() for line in _computed(one)]
    return result


def family_facts(profiles: Sequence[StoredProfile]) -> list[dict[str, Any]]:
    """Return the families of profiles as data for JSON."""
    return [
        {
            "script": members[0].what.split(" ", 1)[0],
            "keys": [one.key for one in members],
            "arguments": [
                {"slots": list(one.slots), "values": one.values, "neutral": one.neutral, "left_out": one.left_out}
                for one in family_of(one.profile for one in members).factors()
            ],
        }
        for members in _families(profiles)
    ]


def _computed(one: ComputedPeak) -> list[str]:
    above = (
        f"three in four need at most {one.error:.2f} times as much"
        if one.error >= 1.005
        else "three in four need no more"
    )
    return [
        f"  peak on {_device_name(one.part)} = {one.words}",
        f"    fitted to {count(one.classes, 'profile')}; {above}",
    ]


def _families(profiles: Sequence[StoredProfile]) -> list[list[StoredProfile]]:
    families: dict[str, list[StoredProfile]] = {}
    for one in profiles:
        if one.profile.family and one.profile.peaks:
            families.setdefault(one.profile.family, []).append(one)
    return [members for members in families.values() if len(members) > 1]


def _verdict(factor: Factor) -> str:
    if factor.left_out:
        return "ignored: another value in every row"
    if factor.neutral:
        return f"does not change the memory ({factor.values} values)"
    return f"may change the memory ({factor.values} values)"


def _runs(profile: Profile) -> int:
    return max((len(part.full) for part in profile.parts.values()), default=0)


def _device_name(part: str) -> str:
    return "host RAM" if part == HOST else f"GPU {part} of the task"


def table_lines(profiles: Sequence[StoredProfile], old: Collection[str] = ()) -> list[str]:
    """Return a table with one line for each profile."""
    if not profiles:
        return ["there are no profiles yet: every run records them; scheduler profiles learn FILE only measures"]
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
            moment(one.updated) + (" (earlier version)" if one.key in old else ""),
        ]
        for one in profiles
    ]
    header = ["key", "task class", "GPU", "host", "runs", "cores", "epoch", "device", "updated"]
    return table(header, rows, frozenset({2, 3, 4, 5, 6}))


def full_lines(row: StoredProfile, old: Collection[str] = ()) -> list[str]:
    """Return lines with all values of a profile."""
    profile = row.profile
    result = [f"{row.key}  {short(without_secrets(row.what), 100)}", f"  device   {row.device}"]
    for name, part in sorted(profile.parts.items()):
        peaks = ", ".join(size(peak) for peak in part.full) or "none yet"
        result += [
            f"  peak     {size(part.peak)} on {_device_name(name)}",
            f"  runs     {peaks}",
            f"  at least {size(part.lower)} seen outside of full runs (in probes, failed or running attempts)",
        ]
    busy = f", keeps a GPU {profile.busy:.0%} busy" if profile.busy else ""
    return [
        *result,
        *([f"  epoch    {profile.epoch_seconds:.3f}s"] if profile.epoch_seconds else []),
        f"  whole    {duration(profile.whole_seconds) if profile.whole_seconds else 'no full run yet'}",
        f"  cores    {profile.cores:.2f}{busy}",
        f"  updated  {moment(row.updated)}",
        *(["  version  an earlier one: the script was edited since"] if row.key in old else []),
    ]
