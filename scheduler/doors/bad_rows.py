"""The rows of a list that cannot be taken, told in one sentence: the first few of them, and how many there are."""

from __future__ import annotations

from scheduler.errors import InputError

SHOWN = 3
"""So many rows are told; who mends a list sees by them what is wrong with it."""


class BadRows:
    """What was found while a list was read to its end; false while nothing was."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._first: list[tuple[int, str, str]] = []
        self._rows = 0

    def __bool__(self) -> bool:
        return self._rows > 0

    def add(self, row: int, message: str, column: str) -> None:
        """One row, with the first thing that is wrong with it; no column: the whole of it is."""
        self._rows += 1
        if len(self._first) < SHOWN:
            self._first.append((row, message, column))

    def refuse(self) -> None:
        """Raise InputError, where there are some."""
        if not self._rows:
            return
        (row, message, column), *more = self._first
        others = "".join(self._other(*one) for one in more)
        all_ = f"; {self._rows:,} rows in all cannot be taken" if more else ""
        raise InputError(self._path, f"{message}{others}{all_}", row, column or None)

    def _other(self, row: int, message: str, column: str) -> str:
        """Lists are often wrong in the same way from their first row on."""
        if (message, column) == self._first[0][1:]:
            return f"; row {row}: the same"
        return f"; row {row}, column {column}: {message}" if column else f"; row {row}: {message}"
