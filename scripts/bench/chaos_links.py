"""The columns Name and After of the lists of chaos.py: the order and the ends that follow from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENDED = "ended:"
UNFINISHED = frozenset({"waiting", "blocked", "held", "probing", "running", "interrupted"})


@dataclass(frozen=True, slots=True)
class Links:
    """The name of a task, and the names of those that it waits for."""

    name: str
    after: tuple[str, ...] = ()
    """Names whose tasks must all succeed."""
    ended: tuple[str, ...] = ()
    """Names whose tasks must all end."""

    @property
    def cell(self) -> str:
        return ",".join([*self.after, *(f"{ENDED}{name}" for name in self.ended)])


def make_links(dice: random.Random, rows: int) -> list[Links]:
    """Make chains, fans out and fans in of some rows; a fan out may share one name, and rows may name later ones."""
    made: list[Links] = []
    for number in range(rows):
        names = sorted({one.name for one in made})
        shape = dice.choice(("alone", "alone", "chain", "chain", "chain", "twin", "twin", "fan in", "fan in"))
        if not made or shape == "alone":
            made.append(Links(f"n{number}"))
        elif shape == "twin":
            made.append(made[-1])
        else:
            parents = [made[-1].name] if shape == "chain" else dice.sample(names, min(len(names), dice.randrange(2, 5)))
            lenient = {name for name in parents if dice.random() < 0.4}
            after = tuple(name for name in parents if name not in lenient)
            made.append(Links(f"n{number}", after, tuple(sorted(lenient))))
    return made


@dataclass(frozen=True, slots=True)
class Ordered:
    """The tasks of a round with their links, their final states, and the lines that they wrote, in order."""

    tasks: Mapping[int, Links]
    states: Mapping[int, str]
    lines: Sequence[tuple[int, str]]
    """The task and the word of each line."""

    def _named(self, names: Sequence[str]) -> list[int]:
        return [task for task, links in self.tasks.items() if links.name in names]

    def is_skipped(self, task: int) -> bool:
        """Tell whether a task has to be skipped: one of those that must succeed did not."""
        return any(self.states[parent] != "succeeded" for parent in self._named(self.tasks[task].after))

    def faults(self) -> Iterator[tuple[str, str]]:
        """Find tasks that were skipped without a cause, or not although there was one, and early starts."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, (task, word) in enumerate(self.lines):
            last[task] = place
            if word == "begin":
                first.setdefault(task, place)
        for task, links in self.tasks.items():
            skipped, wanted = self.states[task] == "skipped", self.is_skipped(task)
            if skipped != wanted:
                yield "lost", f"task {task} ({links}) is {self.states[task]}, {'' if wanted else 'not '}to be skipped"
            if wanted and task in first:
                yield "duplicated", f"task {task} ({links}) began though a parent of it did not succeed"
            for parent in self._named([*links.after, *links.ended]):
                if task in first and (parent not in last and self.states[parent] == "succeeded"):
                    yield "disagreements", f"task {task} ({links}) began, and parent {parent} wrote nothing"
                if task in first and last.get(parent, -1) > first[task]:
                    yield "disagreements", f"task {task} ({links}) began before its parent {parent} had ended"


def states_of(tasks: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    return {task["id"]: task["state"] for task in tasks}
