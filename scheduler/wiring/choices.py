"""What was asked of one run, and the rules the core decides by because of it."""

from __future__ import annotations

import os

from scheduler.core.model import HOST, Manners, Order, Profiling
from scheduler.core.rules import Rules
from scheduler.environments import Programs, Python
from scheduler.errors import UsageError
from scheduler.settings import Settings
from scheduler.values import dataclass

MPS_WORDS = {
    **dict.fromkeys(("on", "true", "1", "yes"), "on"),
    **dict.fromkeys(("off", "false", "0", "no", ""), "off"),
    "auto": "auto",
    "join": "join",
}
"""How MPS may be asked for, and what that means."""
FIRST_ROWS = 5
"""So many first attempts that fail with the same last line are enough to know that the whole list will."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What was asked of one run besides the Settings; kept in its journal, so that `resume` asks for the same."""

    devices: str = HOST
    """`auto`, or what `--devices` says; runs of older versions knew the host only."""
    slots: int | None = None
    jobs: int | None = None
    max_per_device: int | None = None
    name: str = ""
    learn_only: bool = False
    keep_going: bool = True
    """Whether it goes on even where its first rows all fail alike; runs of older versions did."""
    max_failures: int | None = None
    plain: bool = False
    """Whether tasks run as from a plain shell: what they leave in the background lives on after them."""
    mps: str = "off"
    """off, on, auto or join."""
    mps_fence: bool = True
    mps_exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Resuming:
    """What was asked of a run that is taken over."""

    gone: bool = False
    """The user's word that its other machine will never come back: what ran there is lost."""
    env_from_now: bool = False
    """Its tasks get the environment of this shell, not of the one that it was started from."""
    keep_going: bool = False
    """It goes on even if the next rows all fail alike."""
    mps: str = ""
    """How MPS is used from now on; empty: as the run was begun."""


def mps_word(flag: str, said: object) -> str:
    """`on`, `off`, `auto` or `join`; raises UsageError, with the flag as it was written."""
    how = MPS_WORDS.get(str(said).lower())
    if how is None:
        raise UsageError(f"{flag}: write on, off, auto or join, or nothing behind --mps")
    return how


def run_name(spelled: str, name: str) -> str:
    """The name of a run; raises UsageError, with the flag as it was written before it."""
    if name.isdigit():
        raise UsageError(f"{spelled}{name}: a name must not be a number, those are the runs' own")
    return name


def check_counts(**said: object) -> None:
    """Refuse keywords of the Python API that would let nothing start for ever; None is no limit."""
    for name, number in said.items():
        if number is not None and (not isinstance(number, int) or number < 1):
            raise UsageError(f"{name}={number!r}: write a whole number above 0")


def rules(choices: Choices, settings: Settings, *, mps: bool = False) -> Rules:
    """What the core decides by; `mps`: whether the run really has it."""
    usual = Rules()
    return Rules(
        order=Order(settings.order),
        buffer=settings.buffer,
        max_load=settings.max_load,
        max_gpu_load=settings.max_gpu_load,
        jobs=choices.jobs,
        slots=choices.slots,
        max_per_device=choices.max_per_device,
        profile=Profiling(settings.profile),
        profile_epochs=settings.profile_epochs,
        settle=usual.settle if settings.settle is None else settings.settle,
        gpu_settle=usual.gpu_settle if settings.settle is None else settings.settle,
        manners=Manners(settings.foreign),
        foreign_calm=settings.foreign_calm,
        margin=settings.margin[0],
        margin_bytes=settings.margin[1],
        learn_only=choices.learn_only,
        first_rows=0 if choices.keep_going else FIRST_ROWS,
        max_failures=choices.max_failures,
        mps=mps,
        fence=choices.mps_fence,
        mps_alone=choices.mps_exclusive,
    )


def this_python(settings: Settings) -> str:
    """The interpreter that `-1` stands for."""
    return chosen_python(settings).path


def chosen_python(settings: Settings) -> Python:
    """What `-1` stands for, and why."""
    source = settings.source.get("python", "flag")
    spelled = {"flag": "--python", "environment": "SCHEDULER_PYTHON"}.get(source, f"python in {source}")
    return Programs(os.environ, os.getcwd()).chosen(settings.python, spelled)
