"""The NVIDIA GPUs of this machine as a device port: capacity, free memory, and the use of each attempt."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.core.leases import NO_UNNAMED, Trees, UnnamedShim
from scheduler.core.model import HOST, Device, DeviceBudget, Placement, UnmanagedUse
from scheduler.core.ports import Key, Sample, Watched
from scheduler.devices.gpu.allocation import divided, whole
from scheduler.devices.gpu.attribution import (
    DeviceAccount,
    DeviceLook,
    UnmanagedProcess,
    name_of,
    ownerless,
    with_owners,
)
from scheduler.devices.gpu.child_faults import SamplerLimits
from scheduler.devices.gpu.discovery import find_node
from scheduler.devices.gpu.inventory import (
    EXCLUSIVE_PROCESS,
    UNREAD,
    GpuInventory,
    InstalledGpu,
    find_pynvml,
    unread,
)
from scheduler.devices.gpu.process_owner import ProcessOwners, roots
from scheduler.devices.gpu.sampler_group import SamplerGroup
from scheduler.devices.gpu.unattributed import GROWTH
from scheduler.devices.sampler_child import GPUS, SamplerChild
from scheduler.errors import DeviceError
from scheduler.runtime.paths import PACKAGE
from scheduler.runtime.users import user_name_soon
from scheduler.units import size
from scheduler.values import dataclass, field, replace

RECENT = 2.0
"""Seconds for which the lowest free memory of a GPU is remembered."""
REPEAT = 0.5
"""Seconds before an unchanged sample is reported again."""
CLOCKS = 0.1
"""The most seconds by which the start of a process may seem earlier than it was: the kernel counts it in ticks."""
LINGERS = 5.0
"""Seconds after which memory that ended attempts have not freed is reported."""

_SAMPLER = Path("scheduler/devices/gpu/nvml_sampler.py")
"""The sampler among a run's copies; a run that began before the machine had GPUs has no copy of the sampler."""


@dataclass(slots=True)
class GpuState:
    """The state of one GPU."""

    device: Device
    account: DeviceAccount
    look: DeviceLook | None = None
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    unreclaimed_since: float | None = None

    def take(self, look: DeviceLook, attempts: Mapping[Key, Watched]) -> None:
        """Add a sample of the GPU."""
        self.look = look
        self.account.see(look, attempts)
        self.recent.append((look.at, look.free))
        while self.recent[0][0] < look.at - RECENT:
            self.recent.popleft()


class NvmlDevices:
    """The Devices and Watcher ports of the GPUs; only `node` and `discover` wait for the NVIDIA library.

    `code` is the directory with the run's copy of the sampler, `env` the environment of the sampler's process, and
    `dev` is /dev.
    """

    def __init__(
        self,
        code: Path | None = None,
        limits: SamplerLimits | None = None,
        env: Mapping[str, str] | None = None,
        dev: Path = Path("/dev"),
    ) -> None:
        self._code = code if code and (code / _SAMPLER).is_file() else PACKAGE.parent
        self._limits = limits or SamplerLimits()
        self._env = env
        self._dev = dev
        self._module = Path()
        self._node: GpuInventory | None = None
        self._finder: SamplerChild | None = None
        self._samplers: SamplerGroup | None = None
        self._chosen: Collection[str] | None = None
        self._caps: dict[str, int] = {}
        self._divisible: dict[str, int | None] = {}
        self._expects = False
        self._seen: dict[str, GpuState] = {}
        self._attempts: dict[Key, Watched] = {}
        self._others: Trees = {}
        self._unnamed: frozenset[UnnamedShim] = frozenset()
        self._owners = ProcessOwners()
        """The owners of processes according to the newest leases, which the samplers receive only before their next
        round.
        """
        self._told: dict[Key, tuple[float, Sample]] = {}
        self._news: list[str] = []
        self._said: set[tuple[str, str]] = set()

    def node(self) -> GpuInventory:
        """Return the inventory of this node, before GPUs are chosen. The first call makes it, which may take
        seconds.
        """
        if self._node is None:
            module = find_pynvml()
            if module.path is None:
                there = (self._dev / "nvidiactl").exists()
                self._node = GpuInventory(why=module.hint, broken=there, hint=module.hint)
            else:
                self._module = module.path
                self._node, self._finder = find_node(self._begin, self._limits, self._dev, module.hint)
                self._samplers = SamplerGroup(self._begin, self._limits)
            self._news += [module.hint] if module.hint and self._node.gpus else []
            self._news += [sentence for _, sentence in self._node.errors]
            self._news += [gpu.unreadable for gpu in self._node.gpus if gpu.failure]
        return self._node

    def _begin(self, said: Mapping[str, Any]) -> SamplerChild:
        return SamplerChild(GPUS, self._code, [str(self._module), json.dumps(said)], self._env)

    def move(self, code: Path) -> None:
        """Start samplers from a run's copies from now on; NVIDIA's module is copied too, so that an upgrade cannot
        change it during the run.
        """
        if not (code / _SAMPLER).is_file():
            return
        self._code = code
        with contextlib.suppress(OSError):
            shutil.copyfile(self._module, code / "pynvml.py")
            self._module = code / "pynvml.py"

    def use(
        self,
        uuids: Collection[str],
        caps: Mapping[str, int] | None = None,
        divisible: Mapping[str, int | None] | None = None,
    ) -> None:
        """Choose only these GPUs, within these budgets. Call it before `discover`.

        `divisible` has the GPUs that were chosen as a whole, each with its budget (None: without one). If such a GPU is
        later divided into other MIG instances, these instances join, each with the budget of the GPU.
        """
        self._chosen = tuple(uuids)
        self._caps = dict(caps or {})
        self._divisible = dict(divisible or {})

    def expect_unread(self) -> None:
        """Include the GPUs that cannot be read: they are closed to tasks until they answer. Call this before
        `discover`.
        """
        self._expects = True

    def discover(self) -> tuple[Device, ...]:
        """Return the chosen GPUs that can be used, after one sample of each. Raise DeviceError if there is none."""
        if not self._seen:
            self._start()
        return tuple(seen.device for seen in self._seen.values())

    def _start(self) -> None:
        node = self.node()
        gpus = [gpu for gpu in node.gpus if self._chosen is None or gpu.uuid in self._chosen]
        usable = [gpu for gpu in gpus if not gpu.unusable]
        if not usable:
            sentences = [gpu.unusable for gpu in gpus] + [sentence for _, sentence in node.errors]
            raise DeviceError("; ".join([node.why] if node.why else sentences) or "none of the chosen GPUs exists here")
        self._enter(usable)
        assert self._finder is not None
        assert self._samplers is not None
        samplers = self._samplers
        samplers.adopt(self._finder, usable)
        samplers.compare(self._divisions())
        self._expect(usable)
        self._wait(self._limits.call * (len(usable) + 1), lambda uuid, seen: seen.look or samplers.why_away(uuid))

    def _expect(self, usable: Sequence[InstalledGpu]) -> None:
        """Register the GPUs that cannot be read yet as expected ones; each is assumed to be like the largest readable
        GPU.
        """
        like = max(whole(usable), key=lambda gpu: gpu.total, default=None)
        if not self._expects or like is None:
            return
        gpus = [unread(index, like) for index, _ in self.node().errors]
        self._enter(gpus)
        assert self._samplers is not None
        reasons = [sentence.removeprefix(f"GPU {index} ") for index, sentence in self.node().errors]
        expected = {gpu.uuid: gpu for gpu in gpus}
        self._samplers.expect(expected, dict(zip(expected, reasons, strict=True)))

    def _enter(self, gpus: Sequence[InstalledGpu]) -> None:
        """Create an account for each of these GPUs."""
        node = self.node()
        for gpu in gpus:
            if gpu.sharers > 1:
                self._caps[gpu.uuid] = min(self._caps.get(gpu.uuid, gpu.total), gpu.total // gpu.sharers)
            account = DeviceAccount(gpu.uuid, first_namespace=node.first_namespace, reads=node.reads, uid=os.getuid())
            account.watch(self._attempts)
            self._seen[gpu.uuid] = GpuState(_device(gpu), account)

    def _divisions(self) -> list[tuple[int, list[str]]]:
        """Return the known division of each divisible GPU: its index, and the UUIDs of its parts."""
        gpus = self.node().gpus
        cards = [gpu for gpu in gpus if gpu.uuid in self._divisible]
        return [(card.index, [part.uuid for part in divided([card], gpus)]) for card in cards]

    def _divide(self, facts: Sequence[Mapping[str, Any]]) -> None:
        """Replace the parts of a GPU by its new MIG instances, after an administrator has divided the GPU in another
        way.
        """
        assert self._samplers is not None
        node, found = self.node(), [InstalledGpu(**one) for one in facts]
        card = found[0]
        others = [gpu for gpu in node.gpus if card.uuid not in (gpu.uuid, gpu.parent)]
        gpus = sorted([*others, *found], key=lambda gpu: (gpu.index, gpu.part))
        self._node = replace(node, gpus=tuple(gpus))
        new = [gpu for gpu in divided([card], found) if gpu.uuid not in self._seen and not gpu.unusable]
        if self._seen.pop(f"{UNREAD}{card.index}", None):
            self._divisible[card.uuid] = None
        cap = self._divisible.get(card.uuid)
        self._caps.update({gpu.uuid: cap for gpu in new if cap is not None})
        self._enter(new)
        self._samplers.join(new)
        self._samplers.compare(self._divisions())
        self._news += [f"{gpu.label} has joined: {gpu.model}, {size(gpu.total)}" for gpu in new]

    def _wait(self, seconds: float, done: Callable[[str, GpuState], object]) -> None:
        """Collect samples until `done` is true for all GPUs, or `seconds` have passed."""
        end = time.monotonic() + seconds
        while self._samplers and time.monotonic() < end:
            select.select([self._samplers], [], [], 0.05)
            self.collect()
            if all(done(uuid, seen) for uuid, seen in self._seen.items()):
                return

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return the state of the GPUs after the last call of `collect`; this state and the samples of that call are of
        the same round.
        """
        now = time.monotonic()
        return tuple(self._budget(uuid, seen, now) for uuid, seen in self._seen.items())

    def _budget(self, uuid: str, seen: GpuState, now: float) -> DeviceBudget:
        look, cap, closed = seen.look, self._caps.get(uuid), self._why_closed(uuid, seen, now)
        if look is None:
            return DeviceBudget(seen.device, 0, cap, closed=closed)
        unmanaged = [
            _unmanaged(pid, one, now)
            for pid, one in seen.account.unmanaged.items()
            if one.bytes and not self._may_have_a_lease(uuid, one, now)
        ]
        unreclaimed = sum(seen.account.unreclaimed.values())
        least = min(free for _, free in seen.recent)
        age = now - look.at
        return DeviceBudget(
            seen.device, look.free, cap, tuple(unmanaged), unreclaimed, closed, least, look.busy, age, look.celsius,
            look.watts, tuple((int(name.partition(".")[0]), held) for name, held in seen.account.astray.items()),
        )  # fmt: skip

    def _may_have_a_lease(self, uuid: str, one: UnmanagedProcess, now: float) -> bool:
        """Tell whether a process without a known owner may belong to a lease that does not name its shim; that lease
        already accounts for the memory of such a process.
        """
        came = time.time() - (now - one.came)
        return any(
            uuid in unnamed.devices and unnamed.uid == one.uid and came >= unnamed.since - CLOCKS
            for unnamed in self._unnamed
        )

    def _why_closed(self, uuid: str, seen: GpuState, now: float) -> str:
        away = self._samplers.why_away(uuid) if self._samplers else ""
        if away:
            return away
        age = now - seen.look.at if seen.look else now
        if age <= self._limits.fresh:
            return ""
        return f"has not been seen for {age:.0f} s" if seen.look else "has not been seen yet"

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return the environment variables that name the task's GPUs unambiguously."""
        uuids = [key for key in placement.reservation if key != HOST]
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return the positions of the task's GPUs in CUDA_VISIBLE_DEVICES."""
        return range(len(placement.sees))

    def fileno(self) -> int:
        """Return the descriptor that is readable when samples have arrived; -1 before GPUs were found."""
        return self._samplers.fileno() if self._samplers else -1

    def watch(
        self, attempts: Mapping[Key, Watched], others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        """Sample these attempts from now on; attempts without a reserved GPU are included, because they may use one
        anyway. Processes that are known to be in these attempts' or the other leases' trees are attributed to them at
        once.
        """
        self._attempts = dict(attempts)
        self._others, self._unnamed = dict(others), unnamed
        self._told = {key: told for key, told in self._told.items() if key in self._attempts}
        for seen in self._seen.values():
            seen.account.watch(self._attempts)
        self._hand_over()
        if self._samplers:
            orders = {
                name_of(key): [
                    watched.shim,
                    [uuid for uuid in watched.reservation if uuid in self._seen],
                    watched.settled,
                    watched.guest,
                ]
                for key, watched in self._attempts.items()
            }
            self._samplers.tell(orders, others)

    def _hand_over(self) -> None:
        """Attribute processes to their leases if the processes were sampled before the leases were known."""
        own = {name_of(key): (watched.shim, watched.guest) for key, watched in self._attempts.items()}
        self._owners.order(roots(own, self._others.items()))
        accounts = [seen.account for seen in self._seen.values()]
        owners = self._owners.owned({pid for account in accounts for pid in account.unmanaged if pid})
        for account in accounts if owners else ():
            account.hand_over(owners)

    def look_again(self, others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED) -> None:
        """Wait for one round of the samplers that includes these trees, but no longer than one call to the library may
        take.
        """
        asked = time.monotonic()
        self.watch({}, others, unnamed)
        if self._samplers:
            self._samplers.look_now()
        self._wait(self._limits.call, lambda uuid, seen: seen.look and seen.look.at > asked)

    def used_by(self, shim: int, _whose: str = "") -> Mapping[str, int]:
        """Return the last measured use of the process tree of another scheduler's shim, in bytes by GPU; empty if
        memory is only readable per device.
        """
        held = {uuid: seen.account.other_use.get(shim, 0) for uuid, seen in self._seen.items()}
        return {uuid: bytes_ for uuid, bytes_ in held.items() if bytes_}

    def used_by_shims(self) -> Mapping[int, Mapping[str, int]]:
        """Return the last measured use of every known process tree, including the trees of this run, in bytes by shim
        and GPU.

        The key 0 has the use of attempts of this run that have ended since the measurement.
        """
        found: dict[int, dict[str, int]] = {}
        for uuid, seen in self._seen.items():
            own: Counter[int] = Counter()
            for key, held in seen.account.used.items():
                own[self._attempts[key].shim if key in self._attempts else 0] += held
            for shim, bytes_ in {**seen.account.other_use, **own}.items():
                if bytes_:
                    found.setdefault(shim, {})[uuid] = bytes_
        return found

    def held_by(self, key: Key, uuid: str) -> int:
        """Return an attempt's last measured use of a GPU, in bytes."""
        seen = self._seen.get(uuid)
        return seen.account.used.get(key, 0) if seen is not None else 0

    def reads(self, uuid: str) -> str:
        """Return how this GPU's memory is read: per `process`, or only per `device`."""
        return self._seen[uuid].account.reads

    def is_sure(self) -> bool:
        """Tell whether the last sample of every GPU agrees with the current value of `reads`; only several
        contradicting samples in a row change that value.
        """
        return not any(seen.account.doubtful for seen in self._seen.values())

    def collect(self) -> list[Sample]:
        """Return the attempts' samples from the newest round; call this once a second even if nothing is readable."""
        looks = self._samplers.gather() if self._samplers else {}
        for facts in self._samplers.changes() if self._samplers else ():
            self._divide(facts)
        unknown = ownerless(looks.values())
        owners = self._owners.owned(unknown) if unknown else {}
        for uuid, look in looks.items():
            if uuid in self._seen:
                self._seen[uuid].take(with_owners(look, owners), self._attempts)
        now = time.monotonic()
        strayed = self._strayed()
        samples = [
            self._sample(key, strayed.get(name_of(key), {}) if strayed else {})
            for key, watched in self._attempts.items()
            if not looks.keys().isdisjoint(watched.reservation) or name_of(key) in strayed
        ]
        fresh = [sample for sample in samples if self._is_news(sample, now)]
        self._told.update({(sample.task, sample.attempt): (now, sample) for sample in fresh})
        return fresh

    def _strayed(self) -> dict[str, dict[str, int]]:
        """Return the bytes that attempts use on GPUs that they were not given, by attempt and GPU."""
        found: dict[str, dict[str, int]] = {}
        for uuid, seen in self._seen.items():
            for name, held in seen.account.astray.items():
                found.setdefault(name, {})[uuid] = held
        return found

    def _sample(self, key: Key, strayed: Mapping[str, int]) -> Sample:
        accounts = {uuid: self._seen[uuid].account for uuid in self._attempts[key].reservation if uuid in self._seen}
        used = {uuid: account.used.get(key, 0) for uuid, account in accounts.items()}
        peak = {uuid: account.peak[key] for uuid, account in accounts.items() if key in account.peak}
        busy = {uuid: account.busy[key] for uuid, account in accounts.items() if key in account.busy}
        looks = {uuid: self._seen[uuid].look for uuid in busy}
        whole = {uuid: look.busy for uuid, look in looks.items() if look is not None and look.busy is not None}
        absent = tuple(uuid for uuid, account in accounts.items() if key in account.absent)
        return Sample(*key, used, peak, None, busy, whole, absent=absent, strayed=strayed)

    def _is_news(self, sample: Sample, now: float) -> bool:
        at, told = self._told.get((sample.task, sample.attempt), (0.0, None))
        return sample != told or now - at >= REPEAT

    def troubles(self) -> list[str]:
        """Return sentences for the user about GPUs, each of them once."""
        news, self._news = self._news, []
        news += self._samplers.news() if self._samplers else []
        now = time.monotonic()
        for seen in self._seen.values():
            news += [*self._unreclaimed(seen, now), *self._astray(seen)]
        return news

    def note(self, sentence: str) -> None:
        """Return a sentence together with the next `troubles`."""
        self._news.append(sentence)

    def _unreclaimed(self, seen: GpuState, now: float) -> list[str]:
        held = sum(seen.account.unreclaimed.values())
        if held < GROWTH:
            seen.unreclaimed_since = None
            return []
        seen.unreclaimed_since = seen.unreclaimed_since or now
        if now - seen.unreclaimed_since < LINGERS:
            return []
        seen.unreclaimed_since = now + 1e9  # it was reported
        return [_still_held(seen.device.label, held, list(seen.account.unreclaimed))]

    def _astray(self, seen: GpuState) -> list[str]:
        new = {name: held for name, held in seen.account.astray.items() if (name, seen.device.key) not in self._said}
        self._said.update((name, seen.device.key) for name in new)
        return [_not_given(seen.device.label, held, name) for name, held in new.items()]

    def close(self) -> None:
        """End the sampler children."""
        if self._samplers is not None:
            if self._finder is not None and not self._seen:
                self._samplers.adopt(self._finder, ())
            self._samplers.close()
            self._samplers = None


def _device(gpu: InstalledGpu) -> Device:
    single = gpu.compute_mode == EXCLUSIVE_PROCESS
    return Device(gpu.uuid, gpu.label, gpu.total, 1.0, gpu.index, gpu.model, single, part=gpu.part)


def _still_held(label: str, held: int, names: list[str]) -> str:
    tasks = ", ".join(f"task {name.partition('.')[0]}" for name in names if name) or "a task"
    how = "perhaps its container runs on, or one of its processes cannot be killed"
    return f"{label} still holds {size(held)} of {tasks}, which has ended ({how}): new tasks get it once it is free"


def _not_given(label: str, held: int, name: str) -> str:
    task = f"task {name.partition('.')[0]}"
    return (
        f"{task} holds {size(held)} on {label}, a GPU that it was not given: does it set CUDA_VISIBLE_DEVICES itself?"
    )


def _unmanaged(pid: int, one: UnmanagedProcess, now: float) -> UnmanagedUse:
    return UnmanagedUse(one.bytes, user_name_soon(one.uid) if one.uid >= 0 else "", pid, max(0.0, now - one.since))
