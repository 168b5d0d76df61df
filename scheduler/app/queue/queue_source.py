"""The source of a queue's rows: it reads nothing, because submissions are requests, but keeps an idle run alive."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.runtime.clock import since_boot

FIRST = 60.0
"""The shortest idle time, in seconds, after which a queue without any submission ends."""


class QueueSource(RowSource):
    """The open end of a queue: the queue's run ends once there has been nothing to do for some time."""

    def __init__(self, idle: float) -> None:
        """Prepare a queue that ends after `idle` seconds without anything to do."""
        self.form = RowForm(("Command",))
        self._idle = idle
        self._patience = max(idle, FIRST)
        self._over_since: float | None = None
        """The time since which no task is left; None while there is one."""

    @property
    def more(self) -> bool:
        """True while submissions may still come."""
        return self._over_since is None or since_boot() - self._over_since < self._patience

    def appended(self, *, last: bool) -> tuple[Sequence[InputRow], str, str]:
        """Return no rows; with `last`, which means that no task is left, begin to count the idle time."""
        if last and self._over_since is None:
            self._over_since = since_boot()
        return (), "", ""

    def accepted(self) -> None:
        """Note that a submission was accepted: the queue is not idle."""
        self._patience = self._idle
        self._over_since = None
