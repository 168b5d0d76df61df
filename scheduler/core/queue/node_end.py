"""Nodes whose end is known, such as those of a Slurm allocation: which tasks can still end on these nodes in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from scheduler.core.model import State, Terms
from scheduler.core.placement.device_capacity import is_named
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.run_state import RunState
from scheduler.units import duration
from scheduler.values import replace


def confined(terms: Terms, seconds: float, now: float, nodes: Iterable[str], ends: Mapping[str, float]) -> Terms | None:
    """Return the terms of a task that takes `seconds`, limited to the nodes that do not end before the task; None if
    there are none.

    `ends` contains the times at which `nodes` end, where these are known. A task whose duration is unknown (0) may
    start on any node.
    """
    there = [node for node in nodes if is_named(node, terms)]
    lasting = [node for node in there if now + seconds <= ends.get(node, inf)]
    if not seconds or len(lasting) == len(there):
        return terms
    return replace(terms, node=",".join(lasting)) if lasting else None


def seconds_of(brain: RunState, terms: Terms, kind: int) -> float:
    """Return the expected seconds of a task of this class: the learned duration, but at most the time limit of the
    task. If one of the two is unknown, return the other; 0 if both are.
    """
    learned, limit = brain.profiles.expected(kind, terms.epochs), terms.timeout or 0.0
    return min(learned, limit) if learned and limit else learned or limit


def too_long(brain: RunState, task: int, terms: Terms, kind: int, now: float) -> Refusal:
    """Return the refusal of a task that would end too late on every node on which it may run."""
    nodes, seconds = brain.capacity.nodes, seconds_of(brain, terms, kind)
    left = max((nodes.ends[name] for name in nodes.ends if is_named(name, terms)), default=now) - now
    takes = f"takes about {duration(seconds)}"
    if not brain.profiles.expected(kind, terms.epochs):
        takes = f"may take {duration(seconds)} (Timeout)"
    return Refusal(task, Reason.TOO_LONG, wanted=int(seconds), room=max(0, int(left)), text=takes)


def only_too_long(brain: RunState, now: float) -> Refusal | None:
    """Return the refusal of the waiting task that takes longest if no task runs and every waiting one would end too
    late for its nodes; else None.
    """
    nodes, links = brain.capacity.nodes, brain.dependencies
    if not nodes.ends or brain.placements_exist() or brain.held or not brain.waiting:
        return None
    if any(links.begins(task) > now for task in brain.task_table.in_state(State.BLOCKED)):
        return None
    longest: Refusal | None = None
    for (number, kind, _), group in brain.wait_queue.grouped():
        terms, task = brain.terms[number], group.peek()
        if task is None:
            continue
        if confined(terms, seconds_of(brain, terms, kind), now, nodes.names, nodes.ends) is not None:
            return None
        refusal = too_long(brain, task, terms, kind, now)
        longest = refusal if longest is None or refusal.wanted > longest.wanted else longest
    return longest
