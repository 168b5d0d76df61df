"""The engine of a machine that is not there: attempts are truths that come to pass in its time."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.events import Exited, Started
from scheduler.core.model import HOST, Outcome
from scheduler.core.ports import Key, Launch
from scheduler.core.simulation import SimulatedMachine
from scheduler.core.truth import Truth


class SimulatedEngine:
    """Starts attempts on the machine, and tells of those that it started or took over."""

    def __init__(self, machine: SimulatedMachine, truth: Callable[[Launch], Truth]) -> None:
        self._machine = machine
        self._truth = truth
        self._followed: set[Key] = set()
        self._heard = machine.listen()
        self._told: list[Started | Exited] = []

    def launch(self, order: Launch) -> None:
        """Start an attempt; it finds its GPUs where a real one would, in its environment."""
        self._followed.add((order.task, order.attempt))
        gpus = tuple(filter(None, (order.env.get("CUDA_VISIBLE_DEVICES") or "").split(",")))
        self._machine.start(order, self._truth(order), gpus or (HOST,))

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Ask it to end; what is over stays as it is."""
        if (task, attempt) in self._followed:
            self._machine.stop((task, attempt), kill=kill)

    def adopt(self, task: int, attempt: int) -> None:
        """Tell what the machine knows of it, and follow what it does not know yet."""
        key = (task, attempt)
        self._hear()
        past = self._machine.past.get(key, [])
        if not past:
            self._machine.fenced.add(key)
            past = [Exited(task, attempt, Outcome.LOST, reason="it had not started when its scheduler ended")]
        self._told += past
        if key in self._machine.running:
            self._followed.add(key)

    def collect(self) -> list[Started | Exited]:
        """What happened since the last call."""
        self._hear()
        told, self._told = self._told, []
        return told

    def forget(self, task: int, attempt: int) -> None:
        """Its end is known for good: a later scheduler finds nothing of it."""
        self._hear()
        self._followed.discard((task, attempt))
        self._machine.forget((task, attempt))

    def _hear(self) -> None:
        self._told += [event for event in self._heard if (event.task, event.attempt) in self._followed]
        self._heard.clear()
