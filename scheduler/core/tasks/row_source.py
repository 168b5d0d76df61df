"""Rows of inputs, and sources from which rows join a run while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.core.model import Terms
from scheduler.core.tasks.fields import RowForm

if TYPE_CHECKING:
    from scheduler.core.ports import Happening

InputRow = tuple[int, list[str], Terms, int]
"""A row of an input: its number in the source, its cells, their terms, and the number of earlier equal rows."""


class RowSource:
    """A source that may grow while its run goes on; by itself it has no rows and no end to wait for."""

    form: RowForm

    @property
    def mark(self) -> str:
        """The position up to which rows are accepted; empty for a source that cannot be read again."""
        return ""

    @property
    def more(self) -> bool:
        """True if more rows may come, so that the run has not ended when all its tasks have."""
        return False

    def fileno(self) -> int:
        """Return a descriptor that is readable when there may be rows; -1 if only `appended` can tell."""
        return -1

    def collect(self) -> Sequence[Happening]:
        """Read available input without blocking; rows become events only when they are accepted."""
        return ()

    def appended(self, *, last: bool) -> tuple[Sequence[InputRow], str, str]:
        """Return the new rows, the mark after them, and a sentence about anything else; `last`: no task is left."""
        return (), "", ""

    def accepted(self) -> None:
        """Continue after the rows that were returned last; until this call they are returned again."""

    def untaken(self) -> tuple[Sequence[InputRow], str]:
        """Read again, and return the rows that were not accepted and a sentence about the invalid row after them."""
        return (), ""
