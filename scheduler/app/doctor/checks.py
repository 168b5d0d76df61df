"""The table of all checks of `doctor`, and the code that runs them: a check that fails does not hide the others."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.app.doctor import files, gpus, host
from scheduler.app.doctor.fences import fences
from scheduler.app.doctor.nodes import nodes
from scheduler.app.observe.run_facts import places
from scheduler.app.run.options import this_python
from scheduler.devices.host import cgroups
from scheduler.devices.host import host_environment as environment
from scheduler.devices.host.host_memory import HostDevices, available
from scheduler.devices.mps.daemon import homes_left
from scheduler.devices.mps.daemon_discovery import find_daemons, find_program
from scheduler.devices.task_env import MPS_VARIABLES
from scheduler.errors import UsageError
from scheduler.runtime.settings import PREFIX, Settings, read_settings
from scheduler.runtime.shim import hostname, oom_kills
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import find_directory
from scheduler.store.machine.lease_records import living
from scheduler.ui.verbs.doctor import DoctorPage, Finding, broken
from scheduler.units import count, size
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.cluster.node import Node

_REPORT = "this is an error in the scheduler: please report it with the output of scheduler doctor --json"


class Patient:
    """The machine under examination: its settings, and the findings that the summary uses."""

    def __init__(self, flags: Mapping[str, str | None], version: str) -> None:
        """Read the settings for a command line with these flags; use the defaults if they are invalid."""
        self.version = version
        self.trouble = ""
        """The error of invalid settings."""
        try:
            self.settings = read_settings(flags)
        except UsageError as exc:
            state = flags.get("state") or os.environ.get(PREFIX + "STATE", "")
            self.settings = Settings(state=state, leases=os.environ.get(PREFIX + "LEASES", ""))
            self.trouble = str(exc)
        self.leases = find_directory(self.settings.leases or None)
        self.gpus: gpus.ExaminedGpus | None = None
        """The GPUs, once they were examined; None if the examination failed."""
        self.ram = "the host's RAM"
        self.nodes: Sequence[Node] = ()
        """The nodes that the setting `on` names, once they were greeted."""

    def examine_gpus(self) -> Sequence[Any]:
        """Return the GPUs, allowed or not."""
        self.gpus = gpus.look(self.settings)
        return (self.gpus,)

    def examine_memory(self) -> Sequence[Any]:
        """Return the RAM limit, the total RAM and the free RAM, in bytes."""
        devices = HostDevices()
        limit = devices.limits()[0]
        self.ram = f"{size(limit.value)} of RAM"
        return limit, available()[0], devices.snapshot()[0].free

    def label(self, device: str) -> str:
        """Return the name of a device as users see it."""
        labels = {gpu.installed.uuid: gpu.installed.label for gpu in self.gpus.gpus} if self.gpus else {}
        return labels.get(device, device[:12])

    @property
    def uses(self) -> str:
        """The devices that a run would use if it started now."""
        if self.settings.on:
            answered = [node for node in self.nodes if node.facts is not None]
            return f"a run would use {len(answered)} of the {count(len(self.nodes), 'machine')} that --on names"
        usable = self.gpus.usable if self.gpus is not None else []
        return (
            f"a run would use {gpus.numbers(usable)} and {self.ram}"
            if usable
            else f"a run would use {self.ram} and no GPU"
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its group, the name of its line, the function that finds the facts, and the function that judges
    them.
    """

    group: str
    name: str
    find: Callable[[Patient], Sequence[Any]]
    """A function that finds the facts and returns them as the arguments of `say`."""
    say: Callable[..., Iterable[Finding]]


def _python(patient: Patient) -> Sequence[Any]:
    return this_python(patient.settings), patient.settings.source.get("python", ""), os.environ


def _mps(patient: Patient) -> Sequence[Any]:
    program = find_program(os.environ)
    left = [home.root for home in homes_left(patient.leases, program, os.environ) if home.is_left()]
    return program, find_daemons(os.environ), left, {n: os.environ[n] for n in MPS_VARIABLES if n in os.environ}


def _fences(patient: Patient) -> Sequence[Any]:
    usable = patient.gpus.usable if patient.gpus is not None else ()
    buses = {gpu.installed.uuid: gpu.installed.bus_id for gpu in usable}
    return (this_python(patient.settings) if buses else "", buses)


def _nodes(patient: Patient) -> Sequence[Any]:
    if not patient.settings.on:
        return ((),)
    from scheduler.app.cluster.nodes import survey  # most machines have no nodes

    patient.nodes = survey(patient.settings, os.environ)
    return (patient.nodes,)


def _kernel_kills(_: Patient) -> Sequence[Any]:
    return environment.cgroup_version(), environment.counts_kills(), oom_kills()


def _container(_: Patient) -> Sequence[Any]:
    return *environment.container(), environment.in_first_pid_namespace(), environment.in_wsl()


def _login(_: Patient) -> Sequence[Any]:
    user = user_name(os.getuid())
    return user, environment.login(user)


CHECKS = (
    Check("", "scheduler", lambda patient: (patient.version,), files.program),
    Check("", "python for -1", _python, files.python),
    Check("GPUs", "GPUs", Patient.examine_gpus, gpus.findings),
    Check("GPUs", "MPS", _mps, gpus.mps),
    Check("GPUs", "fences", _fences, fences),
    Check("host", "memory", Patient.examine_memory, host.memory),
    Check("host", "swap", lambda _: (environment.swap(),), host.swap),
    Check("host", "cores", lambda _: (HostDevices().limits()[1], os.cpu_count() or 1), host.cores),
    Check("host", "kernel kills", _kernel_kills, host.kernel_kills),
    Check("host", "/dev/shm", lambda _: environment.shared_memory() or (None,), host.shared_memory),
    Check("environment", "container", _container, host.container),
    Check("environment", "logging out", _login, host.logging_out),
    Check("environment", "limits", lambda _: (environment.ulimits(), cgroups.process_limits()), host.limits),
    Check("files", "state", lambda patient: (places(patient.settings), patient.settings), files.state),
    Check("files", "leases", lambda patient: (patient.leases,), files.leases),
    Check("files", "reservations", lambda patient: ([*living(patient.leases)], patient.label), files.reservations),
    Check("files", "machine", lambda _: (os.environ,), files.site),
    Check("environment", "nodes", _nodes, nodes),
    Check("settings", "settings", lambda patient: (patient.settings, patient.trouble), files.settings_used),
)
"""All checks, in the order of the page; the first group has the host's name."""


def examine(flags: Mapping[str, str | None], version: str, checks: Sequence[Check] = CHECKS) -> DoctorPage:
    """Check this machine with the settings for a command line with these flags; change nothing."""
    patient, name = Patient(flags, version), hostname()
    groups: dict[str, list[Finding]] = {}
    failed: list[dict[str, str]] = []
    for check in checks:
        groups.setdefault(check.group or name, []).extend(_findings(check, patient, failed))
    facts = {
        "gpus": [gpu.to_dict() for gpu in patient.gpus.gpus] if patient.gpus is not None else [],
        "settings": files.settings_data(patient.settings),
        "failed": failed,
    }
    return DoctorPage(name, groups, patient.uses, facts)


def _findings(check: Check, patient: Patient, failed: list[dict[str, str]]) -> list[Finding]:
    try:
        return [*check.say(*check.find(patient))]
    except Exception as exc:  # noqa: BLE001 - the page goes on without this check, and tells of it with its traceback
        failed.append({"check": check.name, "traceback": traceback.format_exc()})
        cure = f"pip install {exc.name}" if isinstance(exc, ModuleNotFoundError) else _REPORT
        return [broken(check.name, f"the check failed ({type(exc).__name__}: {exc})", cure, stops=False)]
