"""The classes and the directories of the next waiting tasks, looked up before they are needed."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.brain import Brain
from scheduler.core.model import Profiling
from scheduler.core.profiling.task_class import TaskClass

LOOK_AHEAD = 5000
"""The most waiting tasks whose task class is looked up in advance. More would use much memory for a list of a million
tasks, without any benefit."""
MOST_SILENT = 100
"""The most waiting tasks that one call of `look_ahead` may skip because the file systems of their scripts do not
answer; each takes 0.1 ms."""
LOOK_FOR_DIRECTORIES = 1000
"""The most waiting tasks whose directories are looked up in one pass while some directory cannot be entered; each takes
0.1 ms."""


def look_ahead(brain: Brain, find_class: Callable[[int], TaskClass]) -> None:
    """Look up the task classes of the next waiting tasks; those at the end of a long list can wait.

    A task whose script is on a network mount that does not answer has no class for now.
    """
    if brain.rules.profile is Profiling.OFF:
        return
    silent = 0
    for task in brain.unlooked(max(0, LOOK_AHEAD - brain.looked)):
        try:
            task_class = find_class(task)
        except TimeoutError:
            silent += 1
            if silent == MOST_SILENT:
                return
        else:
            brain.assign(task, task_class)


class DirectoryLookup:
    """The directories of waiting tasks, while some directory cannot be entered."""

    def __init__(self, brain: Brain, find_directory: Callable[[int], str]) -> None:
        self._brain = brain
        self._find_directory = find_directory
        self._directories: dict[int, str] = {}

    def look(self) -> None:
        """Tell the Brain which of the next waiting tasks are in a directory that could not be entered."""
        away = self._brain.backoff.away
        if not away:
            self._directories.clear()
            return
        for task in self._brain.wait_queue.first_together(LOOK_FOR_DIRECTORIES):
            if task not in self._directories:
                self._directories[task] = self._find_directory(task)
            if self._directories[task] in away:
                self._brain.locate(task, self._directories.pop(task))
