"""The NVIDIA GPUs of this machine: what they have, what is free, and which attempt holds how much."""

from __future__ import annotations

import contextlib
import select
import shutil
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from scheduler.core.model import HOST, Budget, Device, Foreign, Placement
from scheduler.core.ports import Key, Sample, Watched
from scheduler.devices.attribution import Account, Look, Stranger, name_of
from scheduler.devices.finding import find_node
from scheduler.devices.node import EXCLUSIVE_PROCESS, Gpu, Node, find_pynvml
from scheduler.devices.nvml_child import NvmlChild
from scheduler.devices.rise import GROWTH
from scheduler.devices.samplers import Limits, Samplers
from scheduler.errors import DeviceError
from scheduler.paths import PACKAGE
from scheduler.people import user_name_soon
from scheduler.units import size
from scheduler.values import dataclass

RECENT = 2.0
"""The least that was free is remembered for so long."""
REPEAT = 0.5
"""A sample that says nothing new is told only so often."""
LINGERS = 5.0
"""A ghost that lasts longer is worth a sentence."""

_SAMPLER = Path("scheduler/devices/nvml_sampler.py")
"""Runs that were begun before there were GPUs have no copy of it."""


@dataclass(slots=True)
class Seen:
    """What is known of one GPU."""

    device: Device
    account: Account
    look: Look | None = None
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    ghost_since: float | None = None

    def take(self, look: Look, attempts: Mapping[Key, Watched]) -> None:
        """A new look at it."""
        self.look = look
        self.account.see(look, attempts)
        self.recent.append((look.at, look.free))
        while self.recent[0][0] < look.at - RECENT:
            self.recent.popleft()


class NvmlDevices:
    """Devices and Watcher of the GPUs; nothing waits for the NVIDIA library but `node` and `discover`.

    `code` is where the run's copy of the sampler lies, `env` what its process is started with; `dev` is /dev.
    """

    def __init__(
        self,
        code: Path | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        dev: Path = Path("/dev"),
    ) -> None:
        self._code = code if code and (code / _SAMPLER).is_file() else PACKAGE.parent
        self._limits = limits or Limits()
        self._env = env
        self._dev = dev
        self._module = Path()
        self._node: Node | None = None
        self._finder: NvmlChild | None = None
        self._samplers: Samplers | None = None
        self._chosen: Collection[str] | None = None
        self._caps: Mapping[str, int] = {}
        self._seen: dict[str, Seen] = {}
        self._attempts: dict[Key, Watched] = {}
        self._told: dict[Key, tuple[float, Sample]] = {}
        self._news: list[str] = []
        self._said: set[tuple[str, str]] = set()

    def node(self) -> Node:
        """What the NVIDIA library says of this node, before anything is chosen; looks once, and may take seconds."""
        if self._node is None:
            module = find_pynvml()
            if module.path is None:
                there = (self._dev / "nvidiactl").exists()
                self._node = Node(why=module.hint, broken=there, hint=module.hint)
            else:
                self._module = module.path
                self._node, self._finder = find_node(self._begin, self._limits, self._dev, module.hint)
                self._samplers = Samplers(self._begin, self._limits)
            self._news += [module.hint] if module.hint and self._node.gpus else []
            self._news += [sentence for _, sentence in self._node.errors]
        return self._node

    def _begin(self, said: Mapping[str, Any]) -> NvmlChild:
        return NvmlChild(self._code, self._module, said, env=self._env)

    def move(self, code: Path) -> None:
        """From now on start samplers from a run's copies, NVIDIA's module among them: no upgrade changes them."""
        if not (code / _SAMPLER).is_file():
            return
        self._code = code
        with contextlib.suppress(OSError):
            shutil.copyfile(self._module, code / "pynvml.py")
            self._module = code / "pynvml.py"

    def use(self, uuids: Collection[str], caps: Mapping[str, int] | None = None) -> None:
        """Only these GPUs from now on, within these budgets; to be said before `discover`."""
        self._chosen = tuple(uuids)
        self._caps = dict(caps or {})

    def discover(self) -> tuple[Device, ...]:
        """The chosen GPUs that can be used, each looked at once; raises DeviceError where there is none."""
        if not self._seen:
            self._start()
        return tuple(seen.device for seen in self._seen.values())

    def _start(self) -> None:
        node = self.node()
        gpus = [gpu for gpu in node.gpus if self._chosen is None or gpu.uuid in self._chosen]
        usable = [gpu for gpu in gpus if not gpu.unusable]
        if not usable:
            sentences = [gpu.unusable for gpu in gpus] + [sentence for _, sentence in node.errors]
            raise DeviceError("; ".join([node.why] if node.why else sentences) or "none of the chosen GPUs is here")
        for gpu in usable:
            account = Account(gpu.uuid, first_namespace=node.first_namespace, reads=node.reads)
            self._seen[gpu.uuid] = Seen(_device(gpu), account)
        assert self._finder is not None
        assert self._samplers is not None
        self._samplers.adopt(self._finder, usable)
        self._look_once(self._samplers)

    def _look_once(self, samplers: Samplers) -> None:
        """Wait until each has been seen, or is known to be away."""
        end = time.monotonic() + self._limits.call * (len(self._seen) + 1)
        while time.monotonic() < end:
            select.select([samplers], [], [], 0.05)
            self.collect()
            if all(seen.look or samplers.why_away(uuid) for uuid, seen in self._seen.items()):
                return

    def snapshot(self) -> tuple[Budget, ...]:
        """What the last collected round said, the same that the last samples were made from."""
        now = time.monotonic()
        return tuple(self._budget(uuid, seen, now) for uuid, seen in self._seen.items())

    def _budget(self, uuid: str, seen: Seen, now: float) -> Budget:
        look, cap, closed = seen.look, self._caps.get(uuid), self._why_closed(uuid, seen, now)
        if look is None:
            return Budget(seen.device, 0, cap, closed=closed)
        foreign = [_foreign(pid, one, now) for pid, one in seen.account.foreign.items() if one.bytes]
        ghosts = sum(seen.account.ghosts.values())
        least = min(free for _, free in seen.recent)
        age = now - look.at
        return Budget(seen.device, look.free, cap, tuple(foreign), ghosts, closed, least, look.busy, age, look.celsius)

    def _why_closed(self, uuid: str, seen: Seen, now: float) -> str:
        away = self._samplers.why_away(uuid) if self._samplers else ""
        if away:
            return away
        age = now - seen.look.at if seen.look else now
        if age <= self._limits.fresh:
            return ""
        return f"has not been seen for {age:.0f} s" if seen.look else "has not been seen yet"

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """Its GPUs, by names that mean the same to everybody."""
        uuids = [key for key in placement.promise if key != HOST]
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def fileno(self) -> int:
        """Readable when there are news; -1 before anything was found."""
        return self._samplers.fileno() if self._samplers else -1

    def watch(self, attempts: Mapping[Key, Watched], strangers: frozenset[int]) -> None:
        """Look at them from now on; those without a GPU are known too, should they use one all the same."""
        self._attempts = dict(attempts)
        self._told = {key: told for key, told in self._told.items() if key in self._attempts}
        for seen in self._seen.values():
            seen.account.watch(self._attempts)
        if self._samplers:
            orders = {
                name_of(key): [watched.shim, [uuid for uuid in watched.promise if uuid in self._seen], watched.settled]
                for key, watched in self._attempts.items()
            }
            self._samplers.tell(orders, strangers)

    def look_again(self, strangers: frozenset[int]) -> None:
        """Wait for one round in which the trees of these shims are looked at, but no longer than a call may take."""
        self.watch({}, strangers)
        asked, end = time.monotonic(), time.monotonic() + self._limits.call
        while self._samplers and time.monotonic() < end:
            select.select([self._samplers], [], [], 0.05)
            self.collect()
            if all(seen.look and seen.look.at > asked for seen in self._seen.values()):
                return

    def used_by(self, shim: int, _whose: str = "") -> Mapping[str, int]:
        """What another scheduler's tree was last seen to hold; nothing where only devices can be read."""
        held = {uuid: seen.account.strangers.get(shim, 0) for uuid, seen in self._seen.items()}
        return {uuid: bytes_ for uuid, bytes_ in held.items() if bytes_}

    def held_by(self, key: Key, uuid: str) -> int:
        """What an attempt was last seen to hold of a GPU."""
        seen = self._seen.get(uuid)
        return seen.account.used.get(key, 0) if seen is not None else 0

    def reads(self, uuid: str) -> str:
        """Whether this GPU's memory is seen per `process`, or only per `device`."""
        return self._seen[uuid].account.reads

    def is_sure(self) -> bool:
        """Whether what was last seen of every GPU speaks for how it `reads`; a change takes some looks."""
        return not any(seen.account.doubtful for seen in self._seen.values())

    def collect(self) -> list[Sample]:
        """What the attempts hold by the newest round; to be called once a second even if nothing is readable."""
        looks = self._samplers.gather() if self._samplers else {}
        for uuid, look in looks.items():
            if uuid in self._seen:
                self._seen[uuid].take(look, self._attempts)
        now = time.monotonic()
        here = [key for key, watched in self._attempts.items() if not looks.keys().isdisjoint(watched.promise)]
        samples = [self._sample(key) for key in here]
        fresh = [sample for sample in samples if self._is_news(sample, now)]
        self._told.update({(sample.task, sample.attempt): (now, sample) for sample in fresh})
        return fresh

    def _sample(self, key: Key) -> Sample:
        accounts = {uuid: self._seen[uuid].account for uuid in self._attempts[key].promise if uuid in self._seen}
        used = {uuid: account.used.get(key, 0) for uuid, account in accounts.items()}
        peak = {uuid: account.peak[key] for uuid, account in accounts.items() if key in account.peak}
        busy = {uuid: account.busy[key] for uuid, account in accounts.items() if key in account.busy}
        looks = {uuid: self._seen[uuid].look for uuid in busy}
        whole = {uuid: look.busy for uuid, look in looks.items() if look is not None and look.busy is not None}
        return Sample(*key, used, peak, None, busy, whole)

    def _is_news(self, sample: Sample, now: float) -> bool:
        at, told = self._told.get((sample.task, sample.attempt), (0.0, None))
        return sample != told or now - at >= REPEAT

    def troubles(self) -> list[str]:
        """What the user should hear about GPUs, once."""
        news, self._news = self._news, []
        news += self._samplers.news() if self._samplers else []
        now = time.monotonic()
        for seen in self._seen.values():
            news += [*self._ghosts(seen, now), *self._astray(seen)]
        return news

    def _ghosts(self, seen: Seen, now: float) -> list[str]:
        held = sum(seen.account.ghosts.values())
        if held < GROWTH:
            seen.ghost_since = None
            return []
        seen.ghost_since = seen.ghost_since or now
        if now - seen.ghost_since < LINGERS:
            return []
        seen.ghost_since = now + 1e9  # said
        return [_still_held(seen.device.label, held, list(seen.account.ghosts))]

    def _astray(self, seen: Seen) -> list[str]:
        new = {name: held for name, held in seen.account.astray.items() if (name, seen.device.key) not in self._said}
        self._said.update((name, seen.device.key) for name in new)
        return [_not_given(seen.device.label, held, name) for name, held in new.items()]

    def close(self) -> None:
        """End the samplers."""
        if self._samplers is not None:
            if self._finder is not None and not self._seen:
                self._samplers.adopt(self._finder, ())
            self._samplers.close()
            self._samplers = None


def _device(gpu: Gpu) -> Device:
    single = gpu.compute_mode == EXCLUSIVE_PROCESS
    return Device(gpu.uuid, gpu.label, gpu.total, 1.0, gpu.index, gpu.model, single)


def _still_held(label: str, held: int, names: list[str]) -> str:
    tasks = ", ".join(f"task {name.partition('.')[0]}" for name in names if name) or "a task"
    how = "perhaps its container goes on, or a process of it cannot die"
    return f"{label} still holds {size(held)} of {tasks}, which is over ({how}): it is used again when that is back"


def _not_given(label: str, held: int, name: str) -> str:
    task = f"task {name.partition('.')[0]}"
    return f"{task} holds {size(held)} on {label}, which it was not given: does it set CUDA_VISIBLE_DEVICES itself?"


def _foreign(pid: int, one: Stranger, now: float) -> Foreign:
    return Foreign(one.bytes, user_name_soon(one.uid) if one.uid >= 0 else "", pid, max(0.0, now - one.since))
