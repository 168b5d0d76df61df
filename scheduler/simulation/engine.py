"""The engine of a simulated machine: it starts attempts that follow their task's behaviour."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.events import Exited, Started
from scheduler.core.model import HOST, Outcome
from scheduler.core.ports import Key, Launch
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.task_behaviour import TaskBehaviour


class SimulatedEngine:
    """An engine that starts attempts on the machine and reports what it started or adopted."""

    def __init__(self, machine: SimulatedMachine, truth: Callable[[Launch], TaskBehaviour]) -> None:
        self._machine = machine
        self._truth = truth
        self._followed: set[Key] = set()
        self._heard = machine.listen()
        self._told: list[Started | Exited] = []

    def launch(self, order: Launch) -> None:
        """Start an attempt; its environment names its GPUs, as for a real one."""
        self._followed.add((order.task, order.attempt))
        gpus = tuple(filter(None, (order.env.get("CUDA_VISIBLE_DEVICES") or "").split(",")))
        self._machine.start(order, self._truth(order), gpus or (HOST,))

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Ask an attempt to end; one that has ended stays as it is."""
        if (task, attempt) in self._followed:
            self._machine.stop((task, attempt), kill=kill)

    def adopt(self, task: int, attempt: int) -> None:
        """Report what the machine knows about an attempt, and follow it from now on."""
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
        """Return what happened since the last call."""
        self._hear()
        told, self._told = self._told, []
        return told

    def has_ended(self, task: int, attempt: int) -> bool:
        """Tell whether the machine no longer runs the attempt."""
        return (task, attempt) not in self._machine.running

    def troubles(self) -> list[str]:
        """Return nothing, because a simulated machine stops no process."""
        return []

    def forget(self, task: int, attempt: int) -> None:
        """Forget an attempt whose end is recorded, so that a later scheduler does not find it."""
        self._hear()
        self._followed.discard((task, attempt))
        self._machine.forget((task, attempt))

    def _hear(self) -> None:
        self._told += [event for event in self._heard if (event.task, event.attempt) in self._followed]
        self._heard.clear()
