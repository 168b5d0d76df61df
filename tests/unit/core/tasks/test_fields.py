"""The table of task fields, the form that reads a source's cells, and how both are kept as text."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import SHARED_OUT, Spec, Terms
from scheduler.core.tasks.fields import (
    BY_COLUMN,
    FIELDS,
    BadCell,
    RowForm,
    pack_cells,
    pack_terms,
    unpack_cells,
    unpack_terms,
    words,
)
from scheduler.units import GIB, MIB

GOOD: list[tuple[str, str, Any]] = [
    ("Epochs", "5", 5), ("Epochs", "5.0", 5), ("Epochs", " 5 ", 5), ("Priority", "-3", -3), ("Priority", "0", 0),
    ("GPUs", "0", 0), ("Memory", "8GiB", 8 * GIB), ("HostMemory", "900M", 900 * MIB), ("CPUs", "0.5", 0.5),
    ("Timeout", "1h30m", 5400.0), ("Grace", "0s", 0.0), ("StopSignal", "INT", 2), ("StopSignal", "sigusr1", 10),
    ("RetryOn", "timeout, FAILED", "failed,timeout"), ("RetryOn", "timeout", "timeout"), ("Resumable", "on", True),
    ("Retries", "2", 2), ("PreemptAfter", "90s", 90.0), ("Device", "host", "host"), ("Exclusive", "yes", True),
    ("Exclusive", "False", False),
    ("Node", "n2", "n2"), ("Node", "n2, n1,n2", "n2,n1"),
    ("ThreadPercentage", "1", 1), ("ThreadPercentage", "100%", 100), ("ThreadPercentage", "Auto", SHARED_OUT),
]  # fmt: skip
BAD: list[tuple[str, str, str]] = [
    ("Epochs", "0", "0 is below 1"), ("Epochs", "5.5", "'5.5' is not a whole number"),
    ("Epochs", "nan", "'nan' is not a whole number"), ("Epochs", "inf", "'inf' is not a whole number"),
    ("Epochs", "1e30", "is too large"),
    ("Priority", "high", "'high' is not a whole number"), ("GPUs", "-1", "-1 is below 0"),
    ("Memory", "8", "'8' has no unit: write 8GiB or 8MiB"), ("Memory", "0GiB", "'0GiB' is not a size above 0"),
    ("Memory", "0", "'0' is not a size above 0: leave the cell empty if the need is unknown"),
    ("Memory", "9999999T", "is more than any machine has"), ("HostMemory", "lots", "is not a size"),
    ("CPUs", "0", "is not a number of cores above 0"), ("CPUs", "many", "'many' is not a number of cores"),
    ("CPUs", "nan", "is not a number of cores above 0"), ("Timeout", "0s", "'0s' is not a time above 0"),
    ("Timeout", "60", "'60' has no unit"), ("StopSignal", "NO", "'NO' is not a signal: write it like TERM"),
    ("StopSignal", "USR1@0", "'0s' is not a time above 0"), ("StopSignal", "USR1@", "is not a time"),
    ("StopSignal", "USR1@9", "is sent 9 s before the time limit, and there is none: give the task a Timeout"),
    ("RetryOn", "oom", "'oom' is not failed, timeout or failed,timeout"),
    ("Retries", "-1", "-1 is below 0"), ("Exclusive", "maybe", "'maybe' is neither yes nor no"),
    ("Node", "n1,", "'n1,' is not a list of nodes: write it like n1 or n1,n2"),
    ("Node", "n1 n2", "'n1 n2' is not a list of nodes"),
    ("ThreadPercentage", "0", "'0' is not a percentage of a GPU's threads: write 1 to 100, or auto"),
    ("ThreadPercentage", "101", "'101' is not a percentage of a GPU's threads: write 1 to 100, or auto"),
]  # fmt: skip


def read(column: str, text: str) -> Any:
    """Return the value that a cell of a column is read as."""
    return getattr(RowForm([column, "Command"]).terms([text, "x"]), BY_COLUMN[column.lower()].attribute)


class TestCells:
    @pytest.mark.parametrize(("column", "text", "value"), GOOD)
    def test_a_valid_cell_is_read(self, column: str, text: str, value: Any) -> None:
        assert read(column, text) == value

    @pytest.mark.parametrize(("column", "text", "message"), BAD)
    def test_an_invalid_cell_is_refused_with_column_and_reason(self, column: str, text: str, message: str) -> None:
        with pytest.raises(BadCell) as caught:
            read(column, text)
        assert caught.value.column == column
        assert message in str(caught.value)

    @pytest.mark.parametrize("field", [field for field in FIELDS if field.in_terms], ids=lambda field: field.column)
    def test_an_empty_cell_has_the_default_of_its_column(self, field: Any) -> None:
        assert read(field.column, "") == getattr(Terms(), field.attribute)


class TestTable:
    def test_every_term_has_one_task_field(self) -> None:
        named = [field.attribute for field in FIELDS if field.in_terms]
        assert sorted(named) == sorted(field.name for field in dataclass_fields(Terms))

    def test_every_column_and_flag_has_one_task_field(self) -> None:
        columns = [field.column.lower() for field in FIELDS]
        flags = [field.flag for field in FIELDS if field.flag]
        assert len(columns) == len(set(columns))
        assert len(flags) == len(set(flags))

    def test_every_field_has_a_help_text(self) -> None:
        assert all(field.help for field in FIELDS)


class TestForm:
    def test_columns_in_any_order_and_case(self) -> None:
        form = RowForm(["PRIORITY", "filename", "epochs", "Executable", "directory"])
        spec = form.spec(["3", "train.py --lr 1", "5", "-1", "work"], 7)
        assert spec == Spec(7, "work", "-1", "train.py --lr 1", "", (), (), Terms(priority=3, epochs=5))

    def test_args_follow_the_filename(self) -> None:
        form = RowForm(["Filename", "Args", "Epochs"])
        assert form.spec(["train.py", "--lr 1", "1"], 2).command == "train.py --lr 1"
        assert form.spec(["train.py", "", "1"], 2).command == "train.py"

    def test_columns_of_the_user_stay_as_they_are(self) -> None:
        form = RowForm(["lr", "Command", "Note"])
        assert form.spec([" 0.10 ", "x", "a\nb"], 2).own == (("lr", " 0.10 "), ("Note", "a\nb"))

    def test_defaults_apply_to_empty_cells(self) -> None:
        form = RowForm(["Command", "Memory"], {"Memory": "2GiB", "Priority": "4", "Name": "it"})
        assert form.terms(["x", ""]) == Terms(memory=2 * GIB, priority=4)
        assert form.terms(["x", "1GiB"]).memory == GIB
        assert form.spec(["x", ""], 2).name == "it"

    def test_an_invalid_default_is_refused_at_once(self) -> None:
        with pytest.raises(BadCell, match="no unit"):
            RowForm(["Command"], {"Memory": "2"})

    def test_epochs_are_needed_unless_rows_may_be_commands(self) -> None:
        with pytest.raises(BadCell, match="it is empty"):
            RowForm(["Filename", "Epochs"]).terms(["train.py", ""])
        assert RowForm(["Command", "Epochs"]).terms(["x", ""]).epochs is None

    @pytest.mark.parametrize(
        ("signal", "timeout", "warn"), [("USR1@120", "1h", (10, 120.0)), ("INT@90s", "2m", (2, 90.0))]
    )
    def test_a_stop_signal_may_have_a_warning_before_the_time_limit(
        self, signal: str, timeout: str, warn: tuple[int, float]
    ) -> None:
        form = RowForm(["Command", "Timeout", "StopSignal"], {"StopSignal": "USR2@1s"})
        assert form.terms(["x", timeout, signal]).stop_signal == warn
        assert form.terms(["x", timeout, ""]).stop_signal == (12, 1.0)
        with pytest.raises(BadCell, match="before the time limit, which is 30 s: warn later, or raise the Timeout"):
            form.terms(["x", "30s", signal])

    def test_rows_with_equal_cells_share_their_terms(self) -> None:
        form = RowForm(["Command", "Memory"])
        assert form.terms(["x", "1GiB"]) is form.terms(["y", "1GiB"])

    def test_env_is_read_as_names_and_values(self) -> None:
        form = RowForm(["Command", "Env"])
        assert form.spec(["x", "A=1 B='two words' C= D=x=y"], 2).env == (
            ("A", "1"), ("B", "two words"), ("C", ""), ("D", "x=y"),
        )  # fmt: skip

    @pytest.mark.parametrize("text", ["A", "1A=2", "=2", "A B=1"])
    def test_env_without_name_and_value_is_refused(self, text: str) -> None:
        with pytest.raises(BadCell, match="is not NAME=value"):
            RowForm(["Command", "Env"]).spec(["x", text], 2)

    def test_a_form_that_was_packed_and_unpacked_reads_equal_rows(self) -> None:
        form = RowForm(["Filename", 'é, "x"', "Epochs"], {"Memory": "2GiB"}, "id")
        again = RowForm.unpack(form.pack())
        cells = ["train.py", "own", "3"]
        assert again.spec(cells, 5) == form.spec(cells, 5)
        assert (again.append, again.pack()) == ("id", form.pack())


NASTY = [
    [], [""], ["", ""], ["a"], ["a", "b"], ["\x1f"], ["a\x1fb", "c"], ["\x1f", "\x1f"], ["["], ["[", "x"], ["[1]"],
    ['["a"]'], ["a\nb", "\r\n"], ["\0"], ['"'], ["'", "\\"], [" ", "\t"], ["é", "日本", "\U0001f600"], ["\udcff"],
    ["", "["], ["null"], ["\ufeff"],
]  # fmt: skip


class TestKeeping:
    @pytest.mark.parametrize("cells", NASTY, ids=repr)
    def test_unusual_cells_survive_packing(self, cells: list[str]) -> None:
        assert unpack_cells(pack_cells(cells)) == cells

    @given(st.lists(st.text('ab[\x1f"\\,\n\0é'), max_size=5))
    def test_any_cells_survive_packing(self, cells: list[str]) -> None:
        assert unpack_cells(pack_cells(cells)) == cells

    def test_usual_cells_are_packed_as_they_are(self) -> None:
        assert pack_cells(["work", "-1", "train.py"]) == "work\x1f-1\x1ftrain.py"

    def test_default_terms_are_packed_as_nothing(self) -> None:
        assert pack_terms(Terms()) == "{}"

    @given(
        st.builds(
            Terms,
            priority=st.integers(-9, 9),
            epochs=st.none() | st.integers(1, 99),
            gpus=st.none() | st.integers(0, 9),
            memory=st.none() | st.integers(1, 1 << 50),
            cpus=st.none() | st.floats(0.01, 999),
            timeout=st.none() | st.floats(0.01, 1e9),
            device=st.text(max_size=5),
            exclusive=st.booleans(),
        )
    )
    def test_any_terms_survive_packing(self, terms: Terms) -> None:
        assert unpack_terms(pack_terms(terms)) == terms

    @pytest.mark.parametrize("text", ["INT", "USR1@120", "sigusr2@2m"])
    def test_signals_and_warnings_survive_packing(self, text: str) -> None:
        terms = RowForm(["Command", "Timeout", "StopSignal", "Resumable"]).terms(["x", "1h", text, "yes"])
        assert unpack_terms(pack_terms(terms)) == terms
        assert hash(unpack_terms(pack_terms(terms))) == hash(terms)

    def test_terms_of_a_newer_version_are_left_out(self) -> None:
        assert unpack_terms('{"priority": 3, "colour": "red"}') == Terms(priority=3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b  c", ["a", "b", "c"]),
        ("a 'b c'", ["a", "b c"]),
        ('a="b c" d', ["a=b c", "d"]),
        (r"a\ b c", ["a b", "c"]),
        ("", []),
        ("''", [""]),
        ("a #b", ["a", "#b"]),
        ("$HOME *", ["$HOME", "*"]),
    ],
)
def test_a_command_is_split_into_words(text: str, said: list[str]) -> None:
    assert words(text) == said


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be split into words: no closing quotation"):
        words("echo 'a")
