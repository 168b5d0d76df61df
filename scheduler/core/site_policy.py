"""The site's policy in the form that decisions use: a user's quota, and the devices where this run starts nothing."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.values import dataclass, field

TASKS, GPUS, MEMORY = "tasks", "GPUs", "GPU memory"
"""The subjects of quotas, apart from the host's RAM."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The quota of one user over all of its runs; None: unlimited."""

    gpus: int | None = None
    memory: int | None = None
    """Bytes reserved on all GPUs together."""
    host_memory: int | None = None
    tasks: int | None = None
    source: str = ""
    """The source of the quota, as messages name it."""

    @property
    def some(self) -> bool:
        """True if anything is limited."""
        return (self.gpus, self.memory, self.host_memory, self.tasks) != (None,) * 4


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class UserQuotas:
    """The quota of each user of the machine."""

    default: Caps = NO_CAPS
    """The quota of a user without a quota of its own."""
    users: Mapping[int, Caps] = field(default_factory=dict)

    def of(self, uid: int) -> Caps:
        """Return the quota of one user."""
        return self.users.get(uid, self.default)


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """The rules of the machine's administrator and its users that apply to one run now."""

    caps: Caps = NO_CAPS
    closed: Mapping[str, str] = field(default_factory=dict)
    """Devices on which this run may start nothing, each with the reason."""
    quotas: UserQuotas = UserQuotas()
    """The quotas of all users, up to which their leases count."""
