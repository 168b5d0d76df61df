"""Tables of parameters and JSON lines: which are accepted, and which are refused with which sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scheduler.errors import InputError, UsageError
from scheduler.inputs.csv_reader import CsvFile
from scheduler.inputs.table import check_template

COMMAND = ["sh", "-c", "true", "--lr", "{lr}"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file_of(text: str, template: list[str] = COMMAND, name: str = "table.csv", **said: object) -> CsvFile:
    Path(name).write_bytes(text.encode())
    return CsvFile(name, template=template, **said)  # type: ignore[arg-type]  # what it takes by name


def commands(text: str, template: list[str] = COMMAND, name: str = "table.csv", **said: object) -> list[str]:
    file = file_of(text, template, name, **said)
    return [file.form.spec(cells, row).command.removeprefix("sh -c true ") for row, cells, _, _ in file.rows()]


def refusal(text: str, template: list[str] = COMMAND, name: str = "table.csv", **said: object) -> str:
    with pytest.raises(InputError) as caught:
        commands(text, template, name, **said)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table.csv", "lr,bs\n0.1,32\n0.2,64\n"),
        ("table.csv", "lr;bs\n0.1;32\n0.2;64\n"),
        ("table.txt", "bs\tlr\n32\t0.1\n64\t0.2\n"),
        ("table.tsv", "a,b\tlr\nx\t0.1\ny\t0.2\n"),
        ("table.csv", "\ufeffLR\r\n0.1\r\n\r\n# not now\r\n0.2"),
        ("table.jsonl", '{"lr": 0.1, "bs": 32}\n\n# not now\n{"bs": 64, "lr": 0.2}'),
        ("table.NDJSON", '{"lr": "0.1"}\n{"lr": "0.2", "deep": [1]}\n'),
    ],
)
def test_tables_in_usual_formats_give_equal_commands(name: str, text: str) -> None:
    assert commands(text, name=name) == ["--lr 0.1", "--lr 0.2"]


def test_only_the_first_cell_can_make_a_row_a_comment() -> None:
    assert commands("lr,note\n1,#fff\n#2,x\n") == ["--lr 1"]
    assert commands('{"color": "#fff", "lr": 1}\n', name="t.jsonl") == ["--lr 1"]


def test_a_table_may_have_only_a_command_column() -> None:
    assert commands("Command\necho a\n\n#echo b\necho c\n", []) == ["echo a", "echo c"]
    assert commands('{"Command": "echo a"}\n', [], "t.jsonl") == ["echo a"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1e-4", "1e-4"), ("0.10", "0.10"), ("1000000000000000000000", "1" + "0" * 21), ("NaN", "NaN"),
        ("true", "true"), ('"a b"', "'a b'"), ("null", "''"), ("[1, 2.5]", "'[1, 2.5]'"), ('{"a": 1}', "'{\"a\": 1}'"),
    ],
)  # fmt: skip
def test_json_values_become_arguments_as_they_are_written(value: str, text: str) -> None:
    assert commands(f'{{"lr": {value}, "bs": 1}}', name="t.jsonl") == [f"--lr {text}"]


def test_task_fields_keep_their_meaning_in_a_table() -> None:
    file = file_of("lr,Priority,Memory,Env,note\n1,3,1GiB,A=b,mine\n")
    [(row, cells, terms, _)] = file.rows()
    spec = file.form.spec(cells, row)
    assert (terms.priority, terms.memory, spec.env) == (3, 1 << 30, (("A", "b"),))
    assert spec.own == (("lr", "1"), ("note", "mine"))


def test_a_parameter_that_resembles_a_task_field_is_accepted() -> None:
    assert file_of("lr,mem\n1,2\n", ["sh", "{lr}", "{mem}"]).warnings == []


def test_a_column_that_is_no_parameter_and_resembles_a_task_field_is_refused() -> None:
    with pytest.raises(InputError, match=r"column mem: it is not a task field: did you mean Memory\?"):
        file_of("lr,mem\n1,2\n")
    assert file_of("lr,mem\n1,2\n", mine=["mem"]).warnings == []


def test_a_placeholder_that_resembles_a_column_gets_one_warning() -> None:
    file = file_of("Command,lr,width\nsh {lrr},1,2\nsh {lrr} {widht},1,2\n", [])
    assert len(list(file.rows())) == 2
    assert [warning for warning in file.warnings if "did you mean" in warning] == [
        "table.csv: {lrr} is not a column and is passed on unchanged: did you mean {lr}?"
    ]


@pytest.mark.parametrize("text", ["'${lrr}'", "{{lrr}}", "{print}", "{}", "{lr}", "{epochs}"])
def test_other_braces_in_a_list_get_no_warning(text: str) -> None:
    file = file_of(f"Command,Epochs,lr\nsh {text},1,2\n", [])
    assert len(list(file.rows())) == 1
    assert file.warnings == []


def test_double_braces_are_literal_in_a_command_and_stay_in_a_name() -> None:
    file = file_of("Command,Name,Epochs\nsh {{x}},{{x}},1\n", [])
    ((row, cells, _, _),) = file.rows()
    spec = file.form.spec(cells, row)
    assert (spec.command, spec.name) == ("sh {x}", "{{x}}")


def test_json_lines_refuse_the_flag_header() -> None:
    with pytest.raises(UsageError, match="--header 2: a JSON lines file has no header"):
        file_of("{}", [], "t.jsonl", header=2)


def test_a_table_without_a_command_is_refused_with_the_next_step() -> None:
    assert "give a command that takes them (-- python train.py {lr})" in refusal("lr\n1\n", [])


def test_a_column_called_id_gets_a_note_that_it_fills_the_placeholder() -> None:
    assert "{id} is filled from the column 'id'" in file_of("id\n1\n", ["sh", "{id}"]).warnings[0]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("lrr,bs\n1,2\n", "t.csv", "row 1: it has no column for {lr} of the command; its columns are lrr, bs; did "),
        ("lrr,bs\n1,2\n", "t.csv", "lrr, bs; did you mean {lrr}?"),
        ("a,b\n1,2\n", "t.csv", "its columns are a, b; write literal braces twice: {{ and }}"),
        ('{"bs": 1}', "t.jsonl", "it has no column for {lr} of the command; its columns are bs"),
        ('{"lr": 1}\n\n{"bs": 1}', "t.jsonl", "t.jsonl, row 3: the object has no 'lr', but the command contains {lr}"),
        ('{"lr": 1}\n{"lr": }', "t.jsonl", "t.jsonl, row 2: this line is not a JSON object (expecting value)"),
        ("[1]", "t.jsonl", "t.jsonl, row 1: this line is not a JSON object: write it like"),
        ("\n", "t.jsonl", "t.jsonl: it contains no objects: write one on each line"),
        ('{"lr": "\\u0000"}', "t.jsonl", "t.jsonl, row 1: 'lr' contains a character that a command cannot contain"),
        ('{"lr": "\\ud800"}', "t.jsonl", "'lr' contains a character that a command cannot contain"),
        ("[" * 100_000, "t.jsonl", "t.jsonl, row 1: this line is not a JSON object (it is nested too deeply)"),
        ("lr,bs\n1,2\n\n3\n", "t.csv", "t.csv, row 4: 1 field where there are 2 columns (lr, bs)"),
        ("lr,Timeout\n\n1,5\n", "t.csv", "t.csv, row 3, column Timeout: '5' has no unit"),
        ("lr,lr\n1,2\n", "t.csv", "two columns have the name 'lr'"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_with_place_and_cure(text: str, name: str, said: str) -> None:
    assert said in refusal(text, name=name)


def test_a_table_whose_program_is_missing_is_refused() -> None:
    assert "'pyton' is not a program on PATH" in refusal("lr\n1\n", ["pyton", "{lr}"])
    assert "row 3, column Command: 'b/run' does not exist" in refusal("x\nsh\nb/run\n", ["{x}"])


@pytest.mark.parametrize("template", [["sh", "{epochs}"], ["sh", "{{}}", "n={epochs}"]])
def test_a_table_without_epochs_for_its_placeholder_is_refused(template: list[str]) -> None:
    assert "no column for {epochs}" in refusal("lr\n1\n", template)
    assert "row 2, column Epochs: it is empty or missing, but the command contains {epochs}" in refusal(
        "lr,Epochs\n1,\n", template
    )
    assert "row 2, column Epochs: it is empty" in refusal("Command,lr\nsh {epochs},1\n", [])


@pytest.mark.parametrize("template", [[], [""], ["sh", "{"]])
def test_a_table_with_an_empty_command_is_refused(template: list[str]) -> None:
    with pytest.raises(UsageError, match="after --"):
        check_template(template)


@pytest.mark.parametrize(
    ("name", "first", "more", "bad", "said"),
    [
        ("t.csv", "lr\n1\n", "\n2\n", "3,4\n", "t.csv, row 5: 2 fields where"),
        (
            "t.jsonl",
            '{"lr": 1}\n',
            '#\n{"lr": 2}\n',
            '{"lr": 3, "bs": 4}\n',
            "row 4: the object has 'bs', a name that no",
        ),
    ],
)
def test_rows_appended_to_a_table_join_before_and_after_a_resume(
    name: str, first: str, more: str, bad: str, said: str
) -> None:
    file = file_of(first, name=name)
    assert len(list(file.rows())) == 1
    resumed = CsvFile.resumed(name, file.form, file.position, python=sys.executable, cwd=os.getcwd())
    with open(name, "a") as appended:
        appended.write(more + bad)
    for reader in (file, resumed):
        rows, _, sentence = reader.appended(last=False)
        reader.accepted()
        assert [reader.form.spec(cells, row).command for row, cells, _, _ in rows] == ["sh -c true --lr 2"]
        assert reader.position.rows == 2
        assert said in (sentence or "")


def test_equal_rows_of_a_table_are_counted() -> None:
    file = file_of("lr,note\n1,a\n2,b\n1,c\n")
    assert [nth for *_, nth in file.rows()] == [0, 0, 1]
    assert "1 row runs the same command as an earlier row (the first is row 4)" in file.warnings[-1]
