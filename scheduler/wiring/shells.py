"""The shell of a run: the one it begins in, and on a resume what of it still holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field

from scheduler.environments import Programs, Python
from scheduler.paths import RunPlaces
from scheduler.settings import Settings
from scheduler.store.shell import Shell, keep, kept, this_shell, with_secrets
from scheduler.values import dataclass
from scheduler.wiring.choices import chosen_python

_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_GIVEN_ANEW = ("SLURM_", "NVIDIA_VISIBLE_DEVICES")
"""Beginnings of names by which an allocation or a container says what it gives now: a former one's are void."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the tasks of a run start from, and the facts of its journal that say so."""

    shell: Shell
    python: Python
    directory: str
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """What changes in the journal."""

    @property
    def programs(self) -> Programs:
        """Finds programs as that shell does."""
        return Programs(self.shell.environ, self.directory, self.python)

    def for_devices(self) -> dict[str, str]:
        """What says which GPUs may be used: this shell, and where it says nothing the run's first one."""
        now, first = os.environ, self.shell.environ
        here = {name: text for name, text in now.items() if name in _CUDA or name.startswith(_GIVEN_ANEW)}
        gone = _is_given(first) or any(name in here for name in (_CUDA[0], _GIVEN_ANEW[1])) or _is_given(now)
        kept_ = {
            name: text
            for name, text in first.items()
            if not name.startswith(_GIVEN_ANEW) and not (gone and name in _CUDA)
        }
        return {**kept_, **here}


def _is_given(environ: Mapping[str, str]) -> bool:
    return any(name.startswith("SLURM_") for name in environ)


def of_new(settings: Settings) -> Origin:
    """What a run gets that begins here."""
    python = chosen_python(settings)
    facts = {"python": python.path, "python_why": python.why, "python_env": python.prefix}
    return Origin(this_shell(), python, os.getcwd(), facts=facts)


def of_resumed(run: RunPlaces, meta: Mapping[str, str], settings: Settings, *, from_now: bool) -> Origin:
    """What a run gets that is taken over here: what it began with, or all from now.

    Raises StateError where what it began with cannot be read.
    """
    if from_now:
        now = of_new(settings)
        return Origin(now.shell, now.python, meta["directory"], facts=now.facts)
    python = Python(meta["python"], meta.get("python_why", ""), meta.get("python_env", ""))
    first, here = kept(run.env), this_shell()
    if first is None:
        return Origin(here, python, meta["directory"])
    shell = with_secrets(first, here.environ)
    notes = [*shell.out_of_reach(here), *_asked_for(shell.withheld)]
    return Origin(shell, python, meta["directory"], tuple(notes))


def keep_shell(run: RunPlaces, origin: Origin) -> None:
    """Have what tasks start from survive this process and this boot."""
    keep(run.env, origin.shell)


def _asked_for(missing: tuple[str, ...]) -> list[str]:
    """The secrets that nobody has any more, by name, before anything starts without them."""
    if not missing:
        return []
    were, are, them = ("was", "is", "it") if len(missing) == 1 else ("were", "are", "them")
    what = f"{', '.join(missing)} {were} set where the run was started, {are} kept nowhere and not set in this shell"
    return [f"{what}: tasks start without; if they need {them}, stop (Ctrl-C), export {them} and resume again"]
