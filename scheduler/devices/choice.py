"""What `--devices` means: the GPUs of a run, and budgets on them and on the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from scheduler.core.model import HOST
from scheduler.devices.allocation import Allowed, Seen, labels, starting_with
from scheduler.errors import UsageError
from scheduler.units import parse_size
from scheduler.values import dataclass

ALL, AUTO = "all", "auto"
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Share:
    """A GPU of a run; `cap` is the budget of all leases on it, None: all it has."""

    gpu: Seen
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The devices of a run."""

    shares: tuple[Share, ...] = ()
    host_cap: int | None = None

    @property
    def host_only(self) -> bool:
        """Whether every task runs on the host alone."""
        return not self.shares


def choose(said: str, allowed: Allowed, node: Sequence[Seen]) -> Chosen:
    """Read `--devices`: items `all`, `auto`, `host`, numbers as nvidia-smi counts, ranges, UUIDs or their beginning.

    Each may have a budget (`0:10GiB`); of two for the same device the later counts. `auto`, the default, is whatever
    is allowed, be that nothing. Whether a budget leaves anything beside the buffer is for the caller to say.
    Raises UsageError.
    """
    caps: dict[str, int | None] = {}
    beyond: dict[int, Seen] = {}
    for item in (said.strip() or AUTO).split(","):
        which, cap = _budget(said, item.strip())
        for key, gpu in _meant(said, which, allowed, node):
            caps[key] = caps.get(key) if cap is None else cap
            if gpu is not None and gpu not in allowed.gpus:
                beyond[gpu.index] = gpu
    if beyond:
        raise UsageError(_too_much(said, allowed, [beyond[index] for index in sorted(beyond)]))
    shares = tuple(Share(gpu, caps[gpu.uuid]) for gpu in allowed.gpus if gpu.uuid in caps)
    return Chosen(shares, caps.get(HOST))


def _budget(said: str, item: str) -> tuple[str, int | None]:
    which, colon, size = item.partition(":")
    if not colon:
        return which, None
    try:
        return which, parse_size(size)
    except ValueError as exc:
        raise UsageError(f"--devices {said}: {exc}") from exc


def _meant(said: str, which: str, allowed: Allowed, node: Sequence[Seen]) -> Iterator[tuple[str, Seen | None]]:
    """Key and GPU of each device that one item names."""
    if which == HOST:
        yield HOST, None
        return
    if which in (ALL, AUTO):
        found: Sequence[Seen] = allowed.gpus
        if not found and which == ALL:
            raise UsageError(f"--devices {said}: {_may_use(allowed) if node else 'there is no GPU here'}")
    else:
        found = _by_number(said, which, node) if which[:1].isdecimal() else [_by_uuid(said, which, node)]
    yield from ((gpu.uuid, gpu) for gpu in found)


def _by_number(said: str, which: str, node: Sequence[Seen]) -> list[Seen]:
    match = _NUMBERS.fullmatch(which)
    numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    by_index = {gpu.index: gpu for gpu in node}
    if not numbers or not by_index.keys() >= {numbers[0], numbers[-1]}:
        raise UsageError(_unknown(said, which, node))
    return [by_index[number] for number in numbers if number in by_index]


def _by_uuid(said: str, which: str, node: Sequence[Seen]) -> Seen:
    found = starting_with(which, node) if which.startswith("GPU-") else []
    if not found:
        raise UsageError(_unknown(said, which, node))
    if len(found) > 1:
        raise UsageError(
            f"--devices {said}: {which} could be any of {', '.join(gpu.uuid for gpu in found)}: write more of it"
        )
    return found[0]


def _unknown(said: str, which: str, node: Sequence[Seen]) -> str:
    return f"--devices {said}: there is no device {which!r} here; this machine has: {_what_there_is(node)}"


def _what_there_is(node: Sequence[Seen]) -> str:
    listed = [f"{gpu.index} ({gpu.model}, {gpu.uuid})" for gpu in node]
    return ", ".join([*listed, HOST])


def _may_use(allowed: Allowed) -> str:
    which = labels(allowed.gpus) if allowed.gpus else "no GPU"
    return f"this shell may use {which}" + (f" ({allowed.source})" if allowed.source else "")


def _too_much(said: str, allowed: Allowed, beyond: Sequence[Seen]) -> str:
    return (
        f"--devices {said}: {_may_use(allowed)}; asked for {labels(beyond)} besides: "
        "leave that out, or start where it is allowed" + "".join(f" ({note})" for note in allowed.notes)
    )
