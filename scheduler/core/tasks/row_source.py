"""The rows of inputs, and sources that may add rows to a run while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.core.model import Terms
from scheduler.core.tasks.fields import RowForm

if TYPE_CHECKING:
    from scheduler.core.ports import Happening

InputRow = tuple[int, list[str], Terms, int]
"""A row of an input: its number in the source, its cells, its terms, and how many earlier rows are equal to it."""


class RowSource:
    """A source of rows that may grow while its run goes on. This base class has no rows and never grows."""

    form: RowForm

    @property
    def mark(self) -> str:
        """The position in the source up to which rows are accepted; empty for a source that cannot be read again."""
        return ""

    @property
    def more(self) -> bool:
        """True if more rows may come, so that the run goes on after all its tasks have ended."""
        return False

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there may be new rows; -1 if only a call of `appended` can
        show whether there are any.
        """
        return -1

    def collect(self) -> Sequence[Happening]:
        """Read available input without blocking, and return happenings. Rows become events only when they are
        accepted.
        """
        return ()

    def appended(self, *, last: bool) -> tuple[Sequence[InputRow], str, str]:
        """Return the new rows, the mark of the position after them, and a sentence for the user, which may be empty.

        `last` is True if the run has no task left.
        """
        return (), "", ""

    def accepted(self) -> None:
        """Note that the last returned rows are accepted. Until this call `appended` returns them again."""

    def untaken(self) -> tuple[Sequence[InputRow], str]:
        """Read the source again; return the rows that were not accepted, and a sentence if an invalid row follows
        them.
        """
        return (), ""
