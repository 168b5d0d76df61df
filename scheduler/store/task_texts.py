"""The texts of a run's tasks in its journal: rows, and the forms that say how to read them."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.model import Spec
from scheduler.core.tasks import command, launchers
from scheduler.core.tasks.fields import RowForm, unpack_cells
from scheduler.store.run.journal_reader import JournalReader, Row


class TaskTexts:
    """The texts of one run's tasks; the forms are read once, and again only after further rows were accepted."""

    def __init__(self, journal: JournalReader, forms: list[RowForm] | None = None) -> None:
        """Prepare to read a journal; `forms` are its forms by number, if the caller has them."""
        self.journal = journal
        self._forms = [] if forms is None else forms

    def forms(self) -> Sequence[RowForm]:
        """Return the forms of all rows that are accepted now."""
        self._forms[:] = [RowForm.unpack(text) for text in self.journal.forms()]
        return self._forms

    def known_forms(self) -> Sequence[RowForm]:
        """Return the forms that are already in memory; the forms of the run's first rows are always among them."""
        return self._forms or self.forms()

    def form(self, row: Row) -> RowForm:
        """Return the form of a row."""
        return self._forms[row.form] if row.form < len(self._forms) else self.forms()[row.form]

    def spec(self, row: Row) -> Spec:
        """Return a row in the form in which it was accepted."""
        return self.form(row).spec(unpack_cells(row.text), row.row)

    def name(self, row: Row) -> str:
        """Return the name of the task of a row."""
        return command.name(self.spec(row), varies=self.form(row).varies)

    def started(self, row: Row, spec: Spec, task: int, python: str, port: int) -> tuple[str, ...]:
        """Return the words of a task's command in the form in which it is started."""
        form = self.form(row)
        argv = command.argv(spec, task, spec.terms.epochs, python, form.append)
        return launchers.as_started(argv, spec, form, port)
