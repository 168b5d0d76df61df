"""Joins looks at this machine from outside of any scheduler, one after another: devices, leases, trees of processes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.core.forecast import Forecast
from scheduler.core.model import Budget, Hold
from scheduler.core.picture import Painter, Picture, Seen
from scheduler.core.ports import Key
from scheduler.devices.sampler import Tree
from scheduler.errors import SchedulerError
from scheduler.paths import open_plain
from scheduler.settings import Settings
from scheduler.shim import children_finder
from scheduler.store.locks import is_locked
from scheduler.store.runs import RunInfo
from scheduler.wiring import everybody
from scheduler.wiring.finding import find_devices
from scheduler.wiring.holders import Holder, holders
from scheduler.wiring.reading import Telling, foreseen

TAIL = 4096
"""Bytes of a run's log in which its last lines are looked for."""
REST = 2.0
"""Devices, leases and processes are looked at so often, in seconds; the journal at every picture."""


class Cards:
    """The devices of `--devices`, kept at hand; none where they cannot be looked at."""

    def __init__(self, said: str, settings: Settings) -> None:
        self.pool = None
        self.why = ""
        try:
            self.pool = find_devices(said, settings)
        except SchedulerError as exc:
            self.why = str(exc)

    def look(self, held: Sequence[Holder]) -> tuple[Sequence[Budget], list[Holder]]:
        """What they have now, and everybody's leases with what their trees use of GPUs too."""
        if self.pool is None:
            return (), list(held)
        gpus = self.pool.gpus
        if gpus is None:
            return self.pool.snapshot(), list(held)
        gpus.look_again(frozenset(holder.shim for holder in held if holder.shim))
        return self.pool.snapshot(), [replace(h, used={**h.used, **gpus.used_by(h.shim)}) for h in held]

    def close(self) -> None:
        """Let them go."""
        if self.pool is not None:
            self.pool.close()


class Attached:
    """A run of any terminal, as its journal and the machine tell it."""

    def __init__(self, info: RunInfo, settings: Settings) -> None:
        self.info = info
        self._settings = settings
        self.telling = Telling(info)
        chosen = json.loads(info.meta.get("choices", "{}"))
        self._cards = Cards(chosen.get("devices", "auto"), settings)
        self._painter = Painter(
            info.number,
            info.what,
            self.telling.brain,
            self.telling.fold,
            self.telling.name,
            self.telling.labels,
        )
        self._trees: dict[Key, Tree] = {}
        self._seen = Seen()
        self._next = 0.0

    @property
    def alive(self) -> bool:
        """Whether a scheduler holds it now."""
        return is_locked(self.info.places.lock)

    @property
    def living(self) -> bool:
        """Whether anything of it runs, with a scheduler or without."""
        return self.telling.brain.placements_exist()

    def goes_on(self) -> bool:
        """Whether there is anything to watch: a scheduler, or tasks that outlived theirs."""
        return self.alive or self.living

    @property
    def stands(self) -> str:
        """What became of a run that does not go on."""
        number = self.info.number
        if self.telling.unfinished:
            return f"run {number} is not over and no scheduler holds it: scheduler resume {number}"
        return f"run {number} is over: scheduler results {number}"

    def picture(self) -> Picture:
        """How it stands now."""
        self.telling.catch_up()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REST
            self._look()
        return self._painter.paint(self._seen, time.time())

    def recent(self) -> Sequence[str]:
        """The last lines of its log, with the times of the day."""
        try:
            with open_plain(self.info.places.log) as file:
                file.seek(max(0, file.seek(0, 2) - TAIL))
                lines = file.read(TAIL).decode("utf-8", "replace").splitlines()[1:]
        except OSError:
            return ()
        return [line.partition("T")[2] for line in lines]

    def _look(self) -> None:
        budgets, held = self._cards.look(holders(self._settings, used=True))
        uid = self.info.places.root.stat().st_uid
        mine = {h.task: h for h in held if h.uid == uid and h.run == str(self.info.number)}
        children = children_finder()
        used: dict[Key, Mapping[str, int]] = {}
        epochs: dict[Key, float] = {}
        trees: dict[Key, Tree] = {}
        for task in self.telling.brain.living():
            holder, key = mine.get(task.id), (task.id, task.attempts)
            if holder is None or not holder.shim:
                continue
            tree = trees[key] = self._trees.get(key) or self._tree(key, holder.shim)
            tree.look(children)
            used[key] = {**holder.used, "host": tree.used}
            if tree.epochs is not None:
                epochs[key] = tree.epochs
        self._trees = trees
        others = [Hold(h.promised, h.used, {}) for h in held if h.task not in mine or h is not mine[h.task]]
        expected = {task: holder.expected for task, holder in mine.items()}
        said = foreseen(self.info)
        forecast = Forecast.unpack(said) if said is not None else None
        self._seen = Seen(budgets, used, epochs, others, expected, forecast)

    def _tree(self, key: Key, shim: int) -> Tree:
        places = self.info.places
        return Tree(shim, str(places.task_log(*key)), places.progress(*key))

    def close(self) -> None:
        """Let its journal and the devices go."""
        self.telling.close()
        self._cards.close()


class Everything:
    """The whole machine, as `status` tells it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cards = Cards("auto", settings) if everybody.has_driver() else None
        self._tellings: dict[int, Telling] = {}
        self._facts: dict[str, Any] = {}
        self._next = 0.0

    def facts(self) -> dict[str, Any]:
        """How it stands now, at most two seconds old."""
        from scheduler.wiring.reading import machine_facts

        if time.monotonic() >= self._next:
            self._facts = machine_facts(self._settings, self._look if self._cards else None, self._tellings)
            self._next = time.monotonic() + REST
        return self._facts

    def _look(self, held: Sequence[Holder]) -> everybody.Cards:
        assert self._cards is not None
        budgets, looked = self._cards.look(held)
        return everybody.Cards(budgets, {h.shim: h.used for h in looked if h.shim}, self._cards.why)

    def close(self) -> None:
        """Let the runs and the devices go."""
        for telling in self._tellings.values():
            with contextlib.suppress(SchedulerError):
                telling.close()
        if self._cards is not None:
            self._cards.close()
