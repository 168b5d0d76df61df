"""The program that a row starts, and the variables of the row's Python environment."""

from __future__ import annotations

from shlex import quote

from scheduler.core.model import Spec
from scheduler.core.tasks.command import PLAIN_PYTHON
from scheduler.core.tasks.fields import THIS_PYTHON
from scheduler.runtime.python_envs import Environment, Programs
from scheduler.values import replace

Variables = tuple[tuple[str, str | None], ...]


def launched(spec: Spec, programs: Programs) -> tuple[Spec, Variables]:
    """Return the row with the python of its environment, and the variables of that environment.

    If there is no `python` on PATH, the executable `python` is replaced with `-1`, which means the run's own
    interpreter.
    """
    if spec.is_whole:
        return _with_some_python(spec, programs), ()
    if spec.executable in THIS_PYTHON:
        prefix = programs.python.prefix
        return spec, _variables(programs.environment(prefix) if prefix else None, programs)
    environment = programs.environment(spec.executable, spec.directory)
    if environment is not None:
        return replace(spec, executable=environment.python), _variables(environment, programs)
    lacks = spec.executable == PLAIN_PYTHON and programs.which(PLAIN_PYTHON) is None
    return (replace(spec, executable="-1") if lacks else spec), ()


def located(spec: Spec, programs: Programs) -> Spec:
    """Return the row with its program replaced by the program's path on PATH, by which a profile identifies the
    program.
    """
    spec, _ = launched(spec, programs)
    if spec.is_whole or "/" in spec.executable or spec.executable in THIS_PYTHON:
        return spec
    return replace(spec, executable=programs.which(spec.executable) or spec.executable)


def _with_some_python(spec: Spec, programs: Programs) -> Spec:
    first, blank, rest = spec.command.partition(" ")
    if first != PLAIN_PYTHON or programs.which(PLAIN_PYTHON) is not None:
        return spec
    return replace(spec, command=f"{quote(programs.python.path)}{blank}{rest}")


def _variables(environment: Environment | None, programs: Programs) -> Variables:
    return tuple(environment.variables(programs.environ).items()) if environment is not None else ()
