"""Profiles as JSON values: as a database stores them, and as a file that transfers them to another machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from scheduler.core.model import HOST, EstimateSource
from scheduler.core.profiling.class_profile import MOST_PEAKS, Peaks, Profile, StoredProfile
from scheduler.core.tasks.redaction import HIDDEN, hides, without_secrets
from scheduler.errors import InputError
from scheduler.store.machine.records import amount, size
from scheduler.store.run.schema import MOST_PROFILES
from scheduler.values import replace

FILE_FORMAT = 1
LARGEST_FILE = 64 * 1024 * 1024
MOST_SLOTS, MOST_PARTS, LONGEST = 1000, 64, 4096


def to_dict(profile: Profile) -> dict[str, Any]:
    """Return a profile as JSON values."""
    return {
        "parts": {
            name: {"full": part.full, "lower": part.lower, "lower_by": part.lower_by, "above": part.above}
            for name, part in profile.parts.items()
        },
        "epoch_seconds": profile.epoch_seconds,
        "whole_seconds": profile.whole_seconds,
        "cores": profile.cores,
        "busy": profile.busy,
        "family": profile.family,
        "slots": profile.slots,
        "relations": profile.relations,
    }


def from_dict(data: dict[str, Any], updated: float = 0.0) -> Profile:
    """Return the profile in JSON values. Raise ValueError, TypeError or KeyError if it is damaged."""
    return Profile(
        parts={name: _part(name, part) for name, part in data["parts"].items()},
        epoch_seconds=amount(data["epoch_seconds"]),
        whole_seconds=amount(data["whole_seconds"]),
        cores=amount(data["cores"]),
        busy=amount(data["busy"]),
        earlier=True,
        family=str(data["family"]),
        slots=tuple((str(name), str(value)) for name, value in data["slots"]),
        relations=tuple(map(str, data.get("relations", ()))),
        updated=updated,
    )


def _part(name: str, data: dict[str, Any]) -> Peaks:
    full = [size(peak) for peak in data["full"]][-MOST_PEAKS:]
    if any(peak < (name == HOST) for peak in data["full"]):  # a task may use none of a GPU, but always some RAM
        raise ValueError("a peak is too low")
    source = EstimateSource.PROBE if data["lower_by"] == EstimateSource.PROBE else EstimateSource.PROFILE
    return Peaks(full=full, lower=size(data["lower"]), lower_by=source, above=size(data["above"]))


def to_file(profiles: Iterable[StoredProfile]) -> dict[str, Any]:
    """Return the content of a file of profiles, without secrets."""
    return {"format": FILE_FORMAT, "profiles": [_row_to_dict(one) for one in profiles]}


def _row_to_dict(row: StoredProfile) -> dict[str, Any]:
    slots = tuple((name, HIDDEN if hides(name) and value else value) for name, value in row.profile.slots)
    data = to_dict(replace(row.profile, slots=slots))
    return {"key": row.key, "what": without_secrets(row.what), "device": row.device, "updated": row.updated, **data}


def from_file(text: str, name: str) -> list[StoredProfile]:
    """Return the profiles in a file. Raise InputError if it is not a file of profiles, or if a profile is damaged."""
    try:
        said = json.loads(text)
        rows = said["profiles"] if said["format"] == FILE_FORMAT else None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(name, "it is no file of profiles: scheduler profiles export -o FILE writes one") from None
    if not isinstance(rows, list):
        raise InputError(name, f"its format is {said['format']!r}; this version reads format {FILE_FORMAT}")
    if len(rows) > MOST_PROFILES:
        raise InputError(name, f"it has {len(rows):,} profiles; {MOST_PROFILES:,} are kept at most")
    return [_row_from_dict(row, number, name) for number, row in enumerate(rows, 1)]


def _row_from_dict(row: Any, number: int, name: str) -> StoredProfile:
    try:
        profile = from_dict(row, amount(row["updated"]))
        texts = [row["key"], row["what"], row["device"], profile.family, *profile.relations]
        short = all(isinstance(text, str) and len(text) <= LONGEST for text in texts) and bool(row["key"])
        few = len(profile.slots) <= MOST_SLOTS and len(profile.parts) <= MOST_PARTS and len(profile.relations) <= 2
        if not (short and few):
            raise ValueError("it is too long")
        return StoredProfile(row["key"], row["what"], row["device"], profile.updated, profile)
    except KeyError as exc:
        raise InputError(name, f"profile {number} is damaged: it has no {exc}") from exc
    except (TypeError, AttributeError) as exc:
        raise InputError(name, f"profile {number} is damaged: a value is of another type") from exc
    except (ValueError, OverflowError) as exc:
        raise InputError(name, f"profile {number} is damaged: {exc}") from exc
