"""Placeholders: which are filled from columns, and which stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.profiling.task_class import kind
from scheduler.core.tasks.command import argv, key, name
from scheduler.core.tasks.fields import RowForm, joined, words
from scheduler.core.tasks.placeholders import names, takes, unknown
from tests.support.faults import fault

NASTY = ["a b", "it's", '"', "", "\\", "$HOME;ls", "{id}", "{epochs}", "{{id}}", "{lr}", "{", "}}", "é\n", "#x", "-v"]


def row_of(template: list[str], **cells: str) -> list[str]:
    """Return the words that task 17, of 5 epochs, is executed as for a row of a table with these cells."""
    spec = RowForm([*cells], template=template).spec([*cells.values()], 2)
    return list(argv(spec, 17, spec.terms.epochs, "python", "none"))


def line_of(cells: dict[str, str], **texts: str) -> list[str]:
    """Return the words that task 17, of 5 epochs, is executed as for a row of an ordinary list with these cells."""
    spec = RowForm([*texts, *cells]).spec([*texts.values(), *cells.values()], 2)
    return list(argv(spec, 17, spec.terms.epochs, "python", "none"))


class TestTable:
    def test_columns_fill_the_template_of_a_table(self) -> None:
        assert row_of(["train", "--lr={lr}", "runs/{lr}_{bs}"], lr="0.1", bs="32") == [
            "train",
            "--lr=0.1",
            "runs/0.1_32",
        ]

    @fault(60)
    @pytest.mark.parametrize("cell", NASTY)
    def test_each_word_stays_one_argument_whatever_its_cell_holds(self, cell: str) -> None:
        assert row_of(["echo", "{x}", "a{x}b", "{id}"], x=cell) == ["echo", cell, f"a{cell}b", "17"]

    @given(st.text(" '\"\\{}id$\n", max_size=8))
    def test_any_cell_becomes_one_argument(self, cell: str) -> None:
        assert row_of(["echo", "{x}"], x=cell) == ["echo", cell]

    def test_epochs_and_id_are_filled_for_each_attempt(self) -> None:
        assert row_of(["t", "{epochs}", "{id}"], Epochs="5") == ["t", "5", "17"]
        spec = RowForm(["Epochs"], template=["t", "train.epochs={epochs}"]).spec(["5"], 2)
        assert argv(spec, 3, 2, "python") == ("t", "train.epochs=2")

    def test_doubled_braces_become_single_braces(self) -> None:
        assert row_of(["{{}}", "{{lr}}", "{{{lr}}}", "{{id}}", '{{"a": {lr}}}'], lr="1") == [
            "{}", "{lr}", "{1}", "{id}", '{"a": 1}',
        ]  # fmt: skip

    def test_placeholders_match_columns_in_any_case_with_blanks(self) -> None:
        assert row_of(["t", "{LR}", "{Batch Size}"], lr="1", **{"batch size": "2"}) == ["t", "1", "2"]

    def test_a_column_called_id_comes_before_the_tasks(self) -> None:
        assert row_of(["t", "{id}"], id="mine") == ["t", "mine"]

    def test_task_fields_keep_their_meaning_and_can_be_placeholders(self) -> None:
        form = RowForm(["Priority", "Name", "lr"], template=["t", "{lr}", "{priority}"])
        spec = form.spec(["3", "run {lr}", "0.1"], 2)
        assert (spec.terms.priority, spec.name, spec.command) == (3, "run 0.1", "t 0.1 3")

    def test_columns_of_commands_are_parameters_of_a_table(self) -> None:
        spec = RowForm(["Args", "Filename"], template=["t", "{args}", "{filename}"]).spec(["a b", "f"], 2)
        assert (spec.executable, spec.command, spec.own) == ("", "t 'a b' f", (("Args", "a b"), ("Filename", "f")))

    def test_the_names_of_a_template_and_its_unknown_ones_are_found(self) -> None:
        assert names(["t", "{lr}", "{{no}}", "{BS}x{lr}"]) == ["lr", "bs"]
        assert unknown(["{lr}", "{id}", "{bs}"], {"lr"}) == "bs"
        assert unknown(["{lr}", "{id}"], {"lr"}) == ""

    @pytest.mark.parametrize("word", ["{", "a}", "{lr", "{{lr}"])
    def test_a_brace_alone_is_no_placeholder(self, word: str) -> None:
        with pytest.raises(ValueError, match=r"has a single [{}]: write"):
            names([word])

    def test_a_row_of_a_table_survives_packing(self) -> None:
        form = RowForm(["lr"], template=["t", "{lr}"])
        assert RowForm.unpack(form.pack()).spec(["1"], 2) == form.spec(["1"], 2)

    def test_rows_of_a_table_differ_in_key_class_and_name(self) -> None:
        form = RowForm(["lr"], template=["python", "train.py", "--lr", "{lr}"])
        one, two = (form.spec([lr], 2) for lr in ("1", "2"))
        assert key(one, 0) != key(two, 0)
        assert (name(one), name(two)) == ("train --lr 1", "train --lr 2")
        kinds = [kind(spec, "none", "python", "d", "host") for spec in (one, two)]
        assert kinds[0].key != kinds[1].key
        assert kinds[0].family == kinds[1].family


class TestList:
    def test_own_columns_fill_filename_args_command_and_name(self) -> None:
        cells = {"lr": "a b"}
        assert line_of(cells, Filename="t.py --lr {lr}", Epochs="1") == ["python", "t.py", "--lr", "a b"]
        assert line_of(cells, Filename="t.py", Args="--lr={lr}", Epochs="1") == ["python", "t.py", "--lr=a b"]
        assert line_of(cells, Command="make '{lr} x'") == ["make", "a b x"]
        assert RowForm(["Command", "Name", "lr"]).spec(["x", "lr {lr}", "a b"], 2).name == "lr a b"

    @pytest.mark.parametrize("own", [{"lr": "1"}, {}])
    def test_double_braces_are_braces_with_and_without_columns_of_ones_own(self, own: dict[str, str]) -> None:
        assert line_of(own, Command="t {{x}} '{{ a.b }}' {{epochs}} {x}") == ["t", "{x}", "{ a.b }", "{epochs}", "{x}"]

    @pytest.mark.parametrize("text", ['t --json {"a":1}', "sh -c 'echo ${HOME}'", "t {other} {}", "t {"])
    def test_braces_that_name_no_column_stay_as_they_are(self, text: str) -> None:
        assert line_of({"lr": "1"}, Command=text) == words(text)

    def test_doubled_braces_around_a_column_become_single_braces(self) -> None:
        assert line_of({"lr": "1"}, Command="t {{lr}} {lr} {{id}} {id}") == ["t", "{lr}", "1", "{id}", "17"]

    def test_a_row_without_placeholders_keeps_its_text(self) -> None:
        assert RowForm(["Command", "lr"]).spec(["sh -c  'a  b'", "1"], 2).command == "sh -c  'a  b'"

    def test_a_row_with_an_epochs_placeholder_can_be_probed(self) -> None:
        spec = RowForm(["Command", "Epochs"]).spec(["t --num_train_epochs {epochs}", "50"], 2)
        assert kind(spec, "both", "python", "", "host").probes
        assert takes("--n={epochs}", "epochs")
        assert not takes("{{epochs}} {id}", "epochs")


@given(st.lists(st.text("ab '\"\\{}\n#$", max_size=4), max_size=4))
def test_joined_words_are_split_again(said: list[str]) -> None:
    assert words(joined(said)) == said
