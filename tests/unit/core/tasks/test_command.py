"""The argument list, the name and the key of a row."""

from __future__ import annotations

import pytest

from scheduler.core.model import Spec
from scheduler.core.tasks.command import argv, content, key, name
from scheduler.core.tasks.fields import FIVE, RowForm
from tests.e2e.older_tools.contracts import contract
from tests.support.builders import spec

PYTHON = "/opt/python"


def args(*, append: str = "both", epochs: int | None = 5, **said: object) -> list[str]:
    """Return the words that task 17 is executed as."""
    return list(argv(spec(**said), 17, epochs, PYTHON, append))  # type: ignore[arg-type]  # texts of a row


class TestArgv:
    @contract("S3-12")
    def test_epochs_and_id_are_appended(self) -> None:
        assert args(filename="train.py --lr 1") == [PYTHON, "train.py", "--lr", "1", "--epochs=5", "--id=17"]

    @pytest.mark.parametrize(
        ("append", "tail"),
        [("both", ["--epochs=5", "--id=17"]), ("none", []), ("epochs", ["--epochs=5"]), ("id", ["--id=17"])],
    )
    def test_append_chooses_what_is_appended(self, append: str, tail: list[str]) -> None:
        assert args(append=append)[2:] == tail

    def test_epochs_and_id_are_not_appended_where_a_placeholder_has_them(self) -> None:
        assert args(filename="t.py -n {epochs}") == [PYTHON, "t.py", "-n", "5", "--id=17"]
        assert args(filename="t.py o/{id}.pt") == [PYTHON, "t.py", "o/17.pt", "--epochs=5"]
        assert args(filename="t.py {id}{epochs}") == [PYTHON, "t.py", "175"]

    def test_no_epochs_are_appended_for_a_row_without_epochs(self) -> None:
        assert args(epochs=None) == [PYTHON, "train.py", "--id=17"]

    @contract("S3-09", "S3-10")
    @pytest.mark.parametrize("executable", ["-1", "-1.0", ""])
    def test_executable_minus_one_is_the_python_of_the_run(self, executable: str) -> None:
        made = RowForm(FIVE).spec([".", executable, "train.py", "5", "0"], 2)
        assert argv(made, 17, 5, PYTHON)[0] == PYTHON

    @contract("S3-09")
    def test_another_executable_is_used_as_written(self) -> None:
        assert args(executable="bash", filename="go.sh", append="none") == ["bash", "go.sh"]

    def test_quotes_keep_words_together_and_no_shell_reads_them(self) -> None:
        assert args(filename="t.py 'a b' $HOME;ls", append="none") == [PYTHON, "t.py", "a b", "$HOME;ls"]

    def test_a_command_gets_nothing_appended(self) -> None:
        assert args(command="make -j {epochs} out/{id}", filename="") == ["make", "-j", "5", "out/17"]


class TestName:
    @pytest.mark.parametrize(
        ("row", "called"),
        [
            (spec("dir/train.py --lr 1"), "train --lr 1"),
            (spec("", command="python3 dir/train.py --lr 1"), "train --lr 1"),
            (spec("", command="/usr/bin/python train.py"), "train"),
            (spec("", command="make all"), "make all"),
            (spec("", command="python"), "python"),
            (spec("train.py", name="my own"), "my own"),
            (spec("", row=9), "row 9"),
        ],
    )
    def test_the_name_of_a_row_is_its_own_or_script_and_arguments(self, row: Spec, called: str) -> None:
        assert name(row) == called


class TestKey:
    def test_the_key_of_a_row_does_not_depend_on_its_place(self) -> None:
        assert key(spec(row=2), 0) == key(spec(row=99), 0)

    def test_the_key_of_a_row_is_the_same_in_every_version(self) -> None:
        """Results are joined across runs by their keys."""
        assert key(spec("train.py --lr 1", directory="work", epochs=5), 0) == "6164a61ea5aed6e4"

    @pytest.mark.parametrize(
        "other",
        [
            spec("train.py --lr 2"), spec(directory="work"), spec(executable="bash"), spec(epochs=5),
            spec(env=(("A", "1"),)), spec("", command="train.py"),
        ],
    )  # fmt: skip
    def test_the_key_changes_with_every_field_of_the_command(self, other: Spec) -> None:
        assert key(other, 0) != key(spec(), 0)

    @pytest.mark.parametrize("other", [spec(priority=3), spec(memory="1GiB"), spec(name="x"), spec(own=(("a", "b"),))])
    def test_the_key_does_not_change_with_other_fields(self, other: Spec) -> None:
        assert key(other, 0) == key(spec(), 0)

    def test_equal_rows_have_different_keys(self) -> None:
        assert len({key(spec(), nth) for nth in range(5)}) == 5

    def test_a_command_that_is_not_utf_8_has_a_key(self) -> None:
        assert len(key(spec("train.py \udcff"), 0)) == 16


class TestContent:
    """Rows with the same content share a key across runs."""

    def of(self, nth: int = 0, append: str = "both", **said: object) -> object:
        return content(spec(**said), nth, append, "/here")  # type: ignore[arg-type]  # texts of a row

    @pytest.mark.parametrize(
        "edit",
        [
            {"filename": "train.py --lr 2"},
            {"executable": "python3"},
            {"directory": "there"},
            {"env": (("A", "b"),)},
            {"epochs": 7},
            {"memory": "2GiB"},
            {"host_memory": "2GiB"},
            {"gpus": 2},
            {"cpus": 3.0},
            {"exclusive": True},
            {"nth": 1},
            {"append": "none"},
        ],
    )
    def test_the_content_changes_with_command_and_needs(self, edit: dict[str, object]) -> None:
        assert self.of(**edit) != self.of()  # type: ignore[arg-type]  # any of its parts

    @pytest.mark.parametrize(
        "edit",
        [{"name": "other"}, {"row": 9}, {"priority": 4}, {"retries": 3}, {"timeout": 60.0}, {"own": (("Note", "x"),)}],
    )
    def test_the_content_does_not_change_with_priority_and_name(self, edit: dict[str, object]) -> None:
        assert self.of(**edit) == self.of()  # type: ignore[arg-type]  # any of its parts

    def test_the_content_changes_with_own_columns_that_the_command_uses(self) -> None:
        one, other = (self.of(filename="train.py --lr {lr}", own=(("lr", lr),)) for lr in ("1", "2"))
        assert one != other

    def test_the_content_does_not_depend_on_how_a_directory_is_written(self) -> None:
        named = content(spec(directory="there"), 0, "both", "/here")
        assert named == content(spec(directory=""), 0, "both", "/here/there")
        assert named == content(spec(directory="/here/there"), 0, "both", "/elsewhere")
