"""The shell from which the tasks of a run start: environment, Python, directory; for new and for resumed runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from scheduler.app.run.options import chosen_python
from scheduler.runtime.paths import RunPaths
from scheduler.runtime.python_envs import Programs, Python
from scheduler.runtime.settings import Settings
from scheduler.store.run.shell_state import ShellState, keep, kept, this_shell, with_secrets
from scheduler.values import dataclass, field

_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_GIVEN_ANEW = ("SLURM_", "NVIDIA_VISIBLE_DEVICES")
"""Prefixes of variables that say what the present allocation or container offers; a resumed run must not use their
earlier values."""


@dataclass(frozen=True, slots=True)
class ShellContext:
    """The environment that the tasks of a run start from, and the facts about it for the run's journal."""

    shell: ShellState
    python: Python
    directory: str
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts to be written to the journal."""

    @property
    def programs(self) -> Programs:
        """The finder of programs on that shell's PATH."""
        return Programs(self.shell.environ, self.directory, self.python)

    def for_devices(self) -> dict[str, str]:
        """Return the environment that says which GPUs may be used: that of this shell, or of the run's first shell."""
        now, first = os.environ, self.shell.environ
        here = {name: text for name, text in now.items() if name in _CUDA or name.startswith(_GIVEN_ANEW)}
        void = is_allocated(first) or any(name in here for name in (_CUDA[0], _GIVEN_ANEW[1])) or is_allocated(now)
        kept_ = {
            name: text
            for name, text in first.items()
            if not name.startswith(_GIVEN_ANEW) and not (void and name in _CUDA)
        }
        return {**kept_, **here}


def is_allocated(environ: Mapping[str, str]) -> bool:
    """Tell whether a shell is in an allocation of Slurm, which sets the variables of CUDA itself."""
    return any(name.startswith("SLURM_") for name in environ)


def shell_of_new_run(settings: Settings) -> ShellContext:
    """Return this shell, for a new run."""
    python = chosen_python(settings)
    facts = {"python": python.path, "python_why": python.why, "python_env": python.prefix}
    return ShellContext(this_shell(), python, os.getcwd(), facts=facts)


def shell_of_resumed_run(run: RunPaths, meta: Mapping[str, str], settings: Settings, *, from_now: bool) -> ShellContext:
    """Return the shell for a resumed run: the run's first shell, or this one with `from_now`.

    Raise StateError if the first shell cannot be read.
    """
    if from_now:
        now = shell_of_new_run(settings)
        return ShellContext(now.shell, now.python, meta["directory"], facts=now.facts)
    python = Python(meta["python"], meta.get("python_why", ""), meta.get("python_env", ""))
    first, here = kept(run.env), this_shell()
    if first is None:
        return ShellContext(here, python, meta["directory"])
    shell = with_secrets(first, here.environ)
    notes = [*shell.out_of_reach(here), *_asked_for(shell.withheld)]
    return ShellContext(shell, python, meta["directory"], tuple(notes))


def keep_shell(run: RunPaths, origin: ShellContext) -> None:
    """Write the shell to the run's directory, for later resumes."""
    keep(run.env, origin.shell)


def _asked_for(missing: tuple[str, ...]) -> list[str]:
    """Return a hint with the names of lost secrets, before tasks start without them."""
    if not missing:
        return []
    were, are, them = ("was", "is", "it") if len(missing) == 1 else ("were", "are", "them")
    what = f"{', '.join(missing)} {were} set when the run was started, {are} not stored and not set in this shell"
    return [f"{what}: tasks start without {them}; if they need {them}, stop (Ctrl-C), export {them} and resume again"]
