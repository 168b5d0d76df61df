"""The dependencies of a list that is being accepted: they are read from its rows, and become events with task ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scheduler.core.causes import DependencyStep
from scheduler.core.events import Depended
from scheduler.core.model import Spec
from scheduler.core.tasks import command
from scheduler.core.tasks.after import AfterRow, BadAfter, Dependency, Earlier, resolved
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.placeholders import parents_named
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import InputError
from scheduler.values import replace


class ListDependencies:
    """The dependencies of the rows of a list that is being accepted."""

    def __init__(self, form: RowForm) -> None:
        """Prepare to collect the dependencies of rows of this form. A list without the field After, and without
        placeholders for results, costs no work.
        """
        self._form = form
        self._is_used = "After" in form.known or "After" in form.defaults or any("result." in w for w in form.template)
        self._rows: list[AfterRow] = []
        self._unnamed: dict[int, Spec] = {}
        """The rows without a Name, by their places. Their tasks get names only once it is known which parameters
        vary."""
        self._found: list[Dependency] = []

    def noting(self, batches: Iterable[Sequence[InputRow]]) -> Iterator[Sequence[InputRow]]:
        """Yield the batches unchanged; meanwhile note the names and the parents of their rows."""
        for batch in batches:
            if self._is_used or any("result." in cell for _, cells, _, _ in batch for cell in cells):
                self.note(self._form.spec(cells, row) for row, cells, _, _ in batch)
            yield batch

    def note(self, specs: Iterable[Spec]) -> None:
        """Note the names and the parents of the next rows."""
        for spec in specs:
            if not spec.name:
                self._unnamed[len(self._rows)] = spec
            results = parents_named(spec.command)
            self._rows.append(AfterRow(spec.row, spec.name, spec.after, results))

    def resolve(self, known: Earlier, what: str) -> None:
        """Find the parents of all rows, in the list and in `known`.

        Raise InputError for a parent that does not exist or can never succeed, and for rows that wait for one another.
        """
        if not any(row.after or row.results for row in self._rows):
            return
        for place, spec in self._unnamed.items():
            self._rows[place] = replace(self._rows[place], name=command.name(spec, varies=self._form.varies))
        try:
            self._found = resolved(self._rows, known)
        except BadAfter as exc:
            raise InputError(what, str(exc), exc.row, "After") from exc

    def known(self) -> list[int]:
        """Return the parents that are not rows of the list."""
        return list({parent: None for one in self._found for parent in (*one.after_known, *one.ended_known)})

    def events(self, first: int) -> list[Depended]:
        """Return the events that block the rows until their parents end; `first` is the id of the first row."""
        return [
            Depended(
                DependencyStep.BLOCK,
                tuple(first + place for place in one.places),
                (*(first + place for place in one.after), *one.after_known),
                (*(first + place for place in one.ended), *one.ended_known),
            )
            for one in self._found
        ]
