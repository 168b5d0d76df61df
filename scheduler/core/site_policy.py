"""The site's policy as decisions use it: the quota of a user, and devices on which this run starts nothing."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.values import dataclass, field

TASKS, GPUS, MEMORY = "tasks", "GPUs", "GPU memory"
"""The names of the resources that a quota limits; the name for RAM is `HOST`."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The quota of one user over all of its runs; None: unlimited."""

    gpus: int | None = None
    memory: int | None = None
    """Bytes reserved on all GPUs together."""
    host_memory: int | None = None
    tasks: int | None = None
    source: str = ""
    """The name of the place where the quota is set, for messages."""

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
    """The rules of the administrator and of users (reservations of devices) that apply to one run at present."""

    caps: Caps = NO_CAPS
    closed: Mapping[str, str] = field(default_factory=dict)
    """Devices on which this run may start nothing, each with the reason."""
    quotas: UserQuotas = UserQuotas()
    """The quotas of all users; their leases count only up to these."""
