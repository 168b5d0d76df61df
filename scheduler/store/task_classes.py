"""The finder of task classes, which uses the text of a task and the content of its script."""

from __future__ import annotations

import os

from scheduler.core.model import Job
from scheduler.core.profiling.hardware import Hardware
from scheduler.core.profiling.task_class import ScriptPlace, TaskClass, files_of, kind, script_of
from scheduler.runtime.python_envs import Programs
from scheduler.runtime.threads import BoundedCalls
from scheduler.store.profiles import ProfileStore
from scheduler.store.run.launch_command import located
from scheduler.store.script_digests import ScriptDigests
from scheduler.values import replace


class TaskClassFinder:
    """The finder of task classes; each version of a script is read only once."""

    def __init__(
        self,
        profiles: ProfileStore,
        programs: Programs,
        directory: str,
        hardware: Hardware,
        calls: BoundedCalls | None = None,
    ) -> None:
        self.profiles = profiles
        self.hardware = hardware
        self._programs = programs
        self._directory = directory
        self._scripts = ScriptDigests(calls)
        self._home = os.path.expanduser("~")

    def of(self, job: Job, programs: Programs | None = None) -> TaskClass:
        """Return the class of a task; a program on PATH is identified by its path. Raise TimeoutError if the folder of
        the task's script does not answer.
        """
        programs = programs or self._programs
        job = replace(job, spec=located(job.spec, programs))
        directory = os.path.normpath(os.path.join(self._directory, job.spec.directory))
        script = script_of(job.spec)
        files = [os.path.normpath(os.path.join(directory, file)) for file in files_of(job.spec, script) if file]
        root = "" if len(files) == 1 else directory  # a module is found from the directory of the task
        found = next(((file, digest) for file in files if (digest := self._scripts.digest(file, root))), ("", ""))
        device, *others = self.hardware.of(job.spec.terms)
        place = self._place(found[0], directory)
        return kind(job.spec, job.append, programs.python.path, found[1], device, place, others)

    def _place(self, script: str, directory: str) -> ScriptPlace:
        """Return the place of a script. Its folder is empty if it would be the home directory itself, which does not
        count as the folder of a project.
        """
        folder = os.path.dirname(script) if script else directory
        return ScriptPlace(script, "" if folder == self._home else folder, self._home)
