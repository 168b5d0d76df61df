"""The finder of tasks' classes, from the text of a task and the content of its script."""

from __future__ import annotations

import os
from collections.abc import Callable

from scheduler.core.model import Job, Terms
from scheduler.core.profiling.task_class import TaskClass, files_of, kind, script_of
from scheduler.runtime.python_envs import Programs
from scheduler.runtime.threads import BoundedCalls
from scheduler.store.profiles import ProfileStore, ScriptDigests
from scheduler.store.run.launch_command import located
from scheduler.values import replace


class TaskClassFinder:
    """The finder of tasks' classes; each version of a script is read only once."""

    def __init__(
        self,
        profiles: ProfileStore,
        programs: Programs,
        directory: str,
        device: Callable[[Terms], str],
        calls: BoundedCalls | None = None,
    ) -> None:
        self.profiles = profiles
        self.device = device
        """Returns the device of a task, as far as its memory depends on it."""
        self._programs = programs
        self._directory = directory
        self._scripts = ScriptDigests(calls)

    def of(self, job: Job, programs: Programs | None = None) -> TaskClass:
        """Return the class of a task; a program on PATH is identified by its path. Raise TimeoutError where the
        folder of its script does not answer.
        """
        programs = programs or self._programs
        job = replace(job, spec=located(job.spec, programs))
        place = os.path.join(self._directory, job.spec.directory)
        files = files_of(job.spec, script_of(job.spec))
        digest = next(filter(None, (self._scripts.digest(os.path.join(place, file)) for file in files)), "")
        return kind(job.spec, job.append, programs.python.path, digest, self.device(job.spec.terms))
