"""The parts of a request for a lease that all its forms share: its fields, its devices, and how long it may wait."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf

from scheduler.errors import UsageError
from scheduler.store.queue.visible_devices import VISIBLE, visible_words
from scheduler.units import parse_duration


def lease_fields(given: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the fields of a lease's task: the given ones, and `name` as its Name if they contain none."""
    return {"Name": name, **given}


def given_devices(fields: Mapping[str, str], visible: str | None = None) -> Mapping[str, str]:
    """Return the fields; if none of them names devices, add the devices that CUDA_VISIBLE_DEVICES names."""
    said = os.environ.get(VISIBLE) if visible is None else visible
    if said is None or fields.get("Device") or fields.get("GPUs") == "0":
        return fields
    named = visible_words(said)
    return {**fields, "Device": ",".join(named)} if named else {"GPUs": "0", **fields}


def patience_of(what: str, wait: object) -> float:
    """Return the seconds that a lease may wait: for ever, not at all, a number of seconds or a text such as 10m.

    `what` names the flag or the argument in errors.
    """
    if wait in (True, "yes"):
        return inf
    if wait in (False, "no"):
        return 0.0
    try:
        seconds = float(wait) if isinstance(wait, int | float) else parse_duration(str(wait))
    except ValueError as exc:
        raise UsageError(f"{what}: {exc}; or say yes or no") from exc
    if not seconds > 0:
        raise UsageError(f"{what}: {wait} is not a time above 0: say no for a lease that must not wait")
    return seconds
