"""CUDA_VISIBLE_DEVICES of the shell that submits tasks: it limits the devices of these tasks alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.core.model import Terms
from scheduler.core.tasks.fields import RowForm

if TYPE_CHECKING:
    from scheduler.core.tasks.row_source import InputRow

VISIBLE = "CUDA_VISIBLE_DEVICES"
_IN_A_TASK = "SCHEDULER_TASK_ID"
_NONE = "NoDevFiles"
"""The word that Slurm writes if no GPU may be used."""


def visible_words(said: str) -> list[str]:
    """Return the devices that the value of the variable names; empty if it excludes all GPUs on purpose."""
    words = said.replace(" ", "").split(",")
    if words[0].startswith("-") or words[0] in ("", _NONE):
        return []
    return [word for word in words if word]


def limited(
    form: RowForm, rows: Sequence[InputRow], changes: Mapping[str, str | None]
) -> tuple[RowForm, Sequence[InputRow], str]:
    """Return the form and the rows, limited to the devices that their shell makes visible, and the value of the shell's
    CUDA_VISIBLE_DEVICES.

    `changes` are the shell's differences from the queue's environment. Rows that name devices stay as they are. All
    rows that are submitted by a task stay as they are too, because in its shell the variable names the devices of that
    task. The value is empty if a task submits, or if the shell leaves the variable unchanged.
    """
    said = changes.get(VISIBLE)
    if said is None or changes.get(_IN_A_TASK) is not None:
        return form, rows, ""
    words = visible_words(said)
    column, text = ("Device", ",".join(words)) if words else ("GPUs", "0")
    index = form.known.get(column)
    columns = form.columns if index is not None else (*form.columns, column)
    made = RowForm(columns, form.defaults, form.append, form.template, form.shell, form.now)
    made.adapts = form.adapts
    found: list[InputRow] = []
    for row, cells, terms, nth in rows:
        own = [*cells] if index is not None else [*cells, ""]
        if _is_free(terms, column):
            own[-1 if index is None else index] = text
        found.append((row, own, made.terms(own), nth))
    return made, found, said


def _is_free(terms: Terms, column: str) -> bool:
    """Tell whether a row leaves it open which devices it uses; `column` is the column that would set them."""
    return not terms.device and (terms.gpus is None or (terms.gpus > 0 and column == "Device"))
