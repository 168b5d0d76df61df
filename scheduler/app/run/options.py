"""The options of one run, and the scheduling configuration derived from them and from the settings."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from typing import Any

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import HOST, Profiling, RankOrder, UnmanagedPolicy
from scheduler.errors import UsageError
from scheduler.runtime.python_envs import Programs, Python
from scheduler.runtime.settings import Settings
from scheduler.values import dataclass, replace

FENCES = ("torch", "dmem")
"""The values of `--fence`."""
MPS_WORDS = {
    **dict.fromkeys(("on", "true", "1", "yes"), "on"),
    **dict.fromkeys(("off", "false", "0", "no", ""), "off"),
    "auto": "auto",
    "join": "join",
}
"""The words that `--mps` accepts, with their meanings."""
FIRST_ROWS = 5
"""If this many first attempts fail with equal last lines, the whole list is assumed to fail."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run in addition to its Settings; the journal keeps them, and `resume` uses them again."""

    devices: str = HOST
    """`auto`, or the value of `--devices`."""
    slots: int | None = None
    jobs: int | None = None
    max_per_device: int | None = None
    name: str = ""
    learn_only: bool = False
    keep_going: bool = True
    """True if the run continues even if its first rows all fail in the same way."""
    max_failures: int | None = None
    plain: bool = False
    """True if tasks run as from a plain shell: background processes of a task outlive the task."""
    mps: str = "off"
    """The use of MPS: off, on, auto or join."""
    mps_fence: bool = True
    mps_exclusive: bool = False
    fence: str = ""
    """How GPU memory is limited outside of MPS: torch or dmem; empty: not at all."""
    power_cap: float | None = None
    """The power limit of each GPU during the run, in watts."""
    preload: Sequence[str] = ()
    """The modules that are loaded before the calls of an executor start."""
    path: Sequence[str] = ()
    """The places where these modules are found, in the form of `sys.path`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values, for the journal."""
        names = (
            "devices", "slots", "jobs", "max_per_device", "name", "learn_only", "keep_going", "max_failures", "plain",
            "mps", "mps_fence", "mps_exclusive", "fence", "power_cap", "preload", "path",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunOptions:
        """Return the options that `to_dict` wrote; raise TypeError for an option that this version does not know."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """The options of `resume`."""

    gone: bool = False
    """True if the user confirmed that the run's other machine, or the lost end of its journal, will not come back."""
    env_from_now: bool = False
    """True if tasks get the environment of this shell instead of that of the run's first shell."""
    keep_going: bool = False
    """True if the run continues even if the next rows all fail in the same way."""
    drain: bool = False
    """True if no more tasks start: running tasks are watched to their ends, and recorded requests are carried out."""
    mps: str = ""
    """How MPS is used from now on; empty: as before."""


def mps_word(flag: str, said: object) -> str:
    """Return `on`, `off`, `auto` or `join`; for any other word raise UsageError, which names the flag as it was
    written.
    """
    how = MPS_WORDS.get(str(said).lower())
    if how is None:
        raise UsageError(f"{flag}: write on, off, auto or join, or nothing after --mps")
    return how


def watts(said: str | None) -> float | None:
    """Return the value of `--power-cap`, such as 250W; raise UsageError for anything else."""
    if said is None:
        return None
    number = said.strip().upper().removesuffix("W").strip()
    if not number.replace(".", "", 1).isdecimal() or not float(number):
        raise UsageError(f"--power-cap {said}: write watts, such as 250W")
    return float(number)


def fence_word(said: str, mps: str) -> str:
    """Return the value of `--fence`; raise UsageError for another word, or under MPS."""
    if said not in ("", *FENCES):
        raise UsageError(f"--fence {said}: write torch or dmem")
    if said and mps != "off":
        raise UsageError(f"--fence {said} is for tasks outside of MPS, which limits memory itself (--mps-fence)")
    return said


def run_name(spelled: str, name: str) -> str:
    """Return the name of a run; raise UsageError for a number such as 3 or r3, with the flag as it was written."""
    if name.removeprefix("r").isdecimal():
        raise UsageError(f"{spelled}{name}: a name must not be a number, with or without r: numbers already name runs")
    return name


def check_counts(**said: object) -> None:
    """Refuse numbers from the Python API with which no task could ever start; None is no limit."""
    for name, number in said.items():
        if number is not None and (not isinstance(number, int) or number < 1):
            raise UsageError(f"{name}={number!r}: give a whole number of at least 1")


def ranked(settings: Settings, columns: Container[str]) -> Settings:
    """Return the settings with the order that suits a list with these columns, unless the user has chosen an order.

    A list with the older tool's column Filename is ranked inside batches, every other list by priority over all rows.
    """
    chosen = {"order", "num"} & settings.source.keys() or settings.profile == Profiling.SEQUENTIAL
    return settings if chosen or "Filename" in columns else replace(settings, order=str(RankOrder.GLOBAL))


def rules(choices: RunOptions, settings: Settings, *, mps: bool = False) -> SchedulingConfig:
    """Return the configuration for the core; `mps` says whether the run really uses MPS."""
    usual = SchedulingConfig()
    found = SchedulingConfig(
        order=RankOrder(settings.order),
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
        by_evidence=settings.settle is None,
        manners=UnmanagedPolicy(settings.unmanaged),
        unmanaged_calm=settings.unmanaged_calm,
        margin=settings.margin[0],
        margin_bytes=settings.margin[1],
        share_margins="margin" not in settings.source and not (mps and choices.mps_fence) and not choices.fence,
        learn_only=choices.learn_only,
        first_rows=0 if choices.keep_going else FIRST_ROWS,
        max_failures=choices.max_failures,
        window=settings.window,
        **_early_stops(settings),
        directory_wait=settings.directory_wait,
        preempt=settings.preempt == "yes",
        preempt_after=settings.preempt_after,
        mps=mps,
        fence=choices.mps_fence,
        fenced_by=choices.fence,
        mps_alone=choices.mps_exclusive,
    )
    if found.profile is not Profiling.SEQUENTIAL:
        return found
    from scheduler.core.profiling import own_peak  # submit loads this module, and needs no estimates

    return own_peak.config(found)


def _early_stops(settings: Settings) -> dict[str, Any]:
    """Return the rules by which tasks are stopped early, as values of the configuration."""
    if not settings.stop_when and not settings.keep_best:
        return {}
    from scheduler.core.metrics.stop_rules import keep_best, stop_rules  # most runs have no such rules

    return {"stop_when": stop_rules(settings.stop_when), "keep_best": keep_best(settings.keep_best)}


def nodes_of(on: str | Sequence[str]) -> str | None:
    """Return the argument `on` of the Python API as the text of the flag `--on`; None if it names no machine."""
    return (on if isinstance(on, str) else " ".join(on)) or None


def this_python(settings: Settings) -> str:
    """Return the path of the interpreter that an Executable of `-1` means."""
    return chosen_python(settings).path


def chosen_python(settings: Settings) -> Python:
    """Return the interpreter that an Executable of `-1` means, with the reason for this choice."""
    source = settings.source.get("python", "flag")
    spelled = {"flag": "--python", "environment": "SCHEDULER_PYTHON"}.get(source, f"python in {source}")
    return Programs(os.environ, os.getcwd()).chosen(settings.python, spelled)
