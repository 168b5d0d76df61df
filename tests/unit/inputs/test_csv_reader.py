"""CSV files: which rows are accepted, which are refused with which sentence, and what may be appended in mid-run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scheduler.core.tasks.command import key
from scheduler.core.tasks.fields import pack_cells, unpack_cells
from scheduler.errors import InputError, UsageError
from scheduler.inputs.csv_reader import CsvFile, CsvMark, batches
from tests.e2e.older_tools.contracts import contract
from tests.support.faults import fault

HEADER = "Directory,Executable,Filename,Epochs,Priority\n"
ONE = "work,-1,train.py,3,1\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Enter and return a directory with `work/train.py` in it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str | bytes, name: str = "jobs.csv") -> str:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def read(text: str | bytes, **kw):
    file = CsvFile(write(text), **kw)
    return list(file.rows()), file


def specs(text: str | bytes, **kw):
    rows, file = read(text, **kw)
    return [file.form.spec(cells, row) for row, cells, _, _ in rows]


def refusal(text: str | bytes, **kw) -> str:
    with pytest.raises(InputError) as caught:
        read(text, **kw)
    return str(caught.value)


def row(text: str, header: str = HEADER) -> str:
    return refusal(header + text + "\n")


# What is taken.

CLEAN = [(2, "train.py --a 1", 3, 1), (3, "train.py --b 2", 4, 0)]
ROWS = HEADER + "work,-1,train.py --a 1,3,1\nwork,-1,train.py --b 2,4,0\n"


def said(text: str | bytes, **kw):
    rows, file = read(text, **kw)
    return [(r, file.form.spec(c, r).command, t.epochs, t.priority) for r, c, t, _ in rows]


@fault(45)
@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        "\ufeff" + ROWS,
        ROWS.replace("\n", "\r\n"),
        ROWS.replace("\n", "\r"),
        ROWS.rstrip("\n"),
        ROWS.replace("train.py --a 1", '"train.py --a 1"'),
        '\ufeff"Directory"' + ROWS[len("Directory") :],
        ROWS.replace(",", "\t"),
        ROWS.replace(",", ";"),
        ROWS.replace("Directory,Executable", " directory , EXECUTABLE "),
        ROWS.replace("work,-1,train", " work , -1 , train"),
        ROWS.replace(",3,1", ",3.0,1.0"),
    ],
    ids=["plain", "bom", "crlf", "cr", "unended", "quoted", "bom quoted", "tab", "semicolon", "case", "blanks", "5.0"],
)
def test_every_spelling_of_a_file_gives_the_rows_of_a_clean_file(text):
    assert said(text) == CLEAN


def test_blank_lines_empty_rows_and_comments_are_skipped_and_counted_as_lines():
    text = f"\n# made by hand\n{HEADER}\n{ONE}#work,-1,gone.py,3,1\n  # 'so'\n,,,,\n   \n{ONE}"
    assert [r for r, *_ in read(text)[0]] == [5, 10]


def test_a_quoted_cell_keeps_its_commas_quotes_and_line_ends():
    text = HEADER + 'work,-1,"train.py --l ""a, b""\n --m 1",3,1\n' + ONE
    [first, second] = specs(text)
    assert (first.command, first.row, second.row) == ('train.py --l "a, b"\n --m 1', 2, 4)


@contract("S3-06")
def test_columns_may_stand_in_any_order_and_others_are_the_users_own():
    [spec] = specs("lr,Priority,Epochs,Filename,Executable,Directory,\n0.1,1,3,train.py,-1,work,x\n")
    assert (spec.command, spec.terms.priority, spec.own) == ("train.py", 1, (("lr", "0.1"), ("column_7", "x")))


@pytest.mark.parametrize("text", ["NA", "None", "007", "nan", "1e5"])
def test_words_that_look_like_numbers_or_nothing_stay_text(text):
    Path("work", text).touch()
    [spec] = specs(f"{HEADER[:-1]},tag\nwork,-1,{text},3,1,{text}\n")
    assert (spec.command, spec.own) == (text, (("tag", text),))


def test_cells_of_blanks_count_as_empty():
    [spec] = specs(HEADER + "work,  ,train.py,3,  \n")
    assert (spec.executable, spec.terms.priority) == ("-1", 0)


def test_shell_metacharacters_are_text():
    [spec] = specs(HEADER + "work,-1,train.py $(touch x); `id` > y | z && *,3,1\n")
    assert spec.command == "train.py $(touch x); `id` > y | z && *"
    assert not Path("work", "x").exists()


@pytest.mark.parametrize("word", ["|", ">", "2>", ">>", "<", "&&", "||", ";", "&", "2>&1"])
def test_a_five_column_row_with_words_of_a_shell_gets_a_warning(word):
    passed = f"{word!r} is passed to the program as a word, because rows are not read by a shell"
    warnings = read(f"{HEADER}work,-1,train.py {word} a,3,1\n")[1].warnings
    assert f"jobs.csv: {passed}; for a shell write the Command sh -c '...'" in warnings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("true > a", ">"), ("true >a", ">a"), ("true 2>&1", "2>&1"), ("true | cat", "|"), ("true && true", "&&"),
        ("true & true", "&"), ("true; true", "true;"), ("true --lr $LR", "$LR"), ("true --lr ${LR}", "${LR}"),
        ("true $(id)", "$(id)"), ("true `id`", "`id`"), ("true < a", "<"), ("true 'a b' > c", ">"),
    ],
)  # fmt: skip
def test_a_command_with_shell_syntax_is_refused_with_two_cures(text, found):
    assert refusal(f'Command\n"{text}"\n') == (
        f"jobs.csv, row 2, column Command: {found} is shell syntax, and a command is not read by a shell: for a shell "
        f"write sh -c '...', to pass {found} to the program put it in single quotes"
    )


@pytest.mark.parametrize(
    "text", ["a>b", "sh -c 'a | b > c'", "x;y", "--a=<b>", "http://a/?b&c", "-> =>", "'$LR' '>' '|'", "5$", "a\\;"]
)
def test_a_row_without_words_of_a_shell_gets_no_warning(text):
    assert read(f"Command\necho {text}\n")[1].warnings == []


def test_a_header_alone_gives_no_rows_and_no_error():
    rows, file = read(HEADER)
    assert (rows, file.position.rows, file.position.lines) == ([], 0, 1)


@contract("S3-07")
def test_without_a_header_the_five_columns_stand_in_the_order_of_the_readme():
    assert said(ROWS[len(HEADER) :], header=None) == [(1, *CLEAN[0][1:]), (2, *CLEAN[1][1:])]


@contract("S3-08")
@pytest.mark.parametrize(
    ("above", "header", "line"),
    [
        ("a title\n", 1, 3),
        ('"junk, of\nany sort\n', 2, 4),
        ("# remark\n", 1, 3),
        ("\n# r\n", 0, 4),
        ("\ntitle\n", 1, 4),
    ],
)
def test_rows_above_the_header_are_left_out(above, header, line):
    assert [r for r, *_ in read(above + HEADER + ONE, header=header)[0]] == [line]


def test_a_command_column_replaces_the_five_columns():
    [spec] = specs('Command,Memory\n"python work/train.py --x ""a b""",8GiB\n')
    assert (spec.command, spec.terms.memory, spec.terms.epochs) == ('python work/train.py --x "a b"', 8 << 30, None)


def test_commands_and_scripts_may_share_a_file():
    text = "Directory,Command,Executable,Filename,Epochs\nwork,echo hi,,,\nwork,,-1,train.py,3\n"
    said = [(spec.executable, spec.command, spec.terms.epochs) for spec in specs(text)]
    assert said == [("", "echo hi", None), ("-1", "train.py", 3)]


def test_a_command_may_come_from_a_flag():
    [spec] = specs("lr\n0.1\n", defaults={"Command": "echo {lr}"})
    assert spec.command == "echo 0.1"


def test_flags_fill_what_a_row_leaves_empty():
    rows, _ = read(HEADER + "work,-1,train.py,3,\n" + ONE, defaults={"Priority": "7", "Memory": "2GiB"})
    assert [(t.priority, t.memory) for _, _, t, _ in rows] == [(7, 2 << 30), (1, 2 << 30)]


def test_a_bad_flag_is_named_and_not_the_file():
    with pytest.raises(UsageError, match=r"^--memory: '8' has no unit"):
        read(HEADER, defaults={"Memory": "8"})


def test_a_file_may_come_through_a_pipe_and_is_never_appended_to():
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(HEADER + ONE))
    writer.start()
    file = CsvFile("pipe")
    assert len(list(file.rows())) == 1
    writer.join()
    assert file.appended(last=True) == ([], "", "")


# Duplicates.


def test_equal_rows_are_accepted_and_numbered_with_one_warning():
    other = "work,-1,train.py --x,3,1\n"
    rows, file = read(HEADER + ONE + other + ONE + ONE + other)
    assert [nth for *_, nth in rows] == [0, 0, 1, 2, 1]
    [warning] = file.warnings
    assert warning == "jobs.csv: 3 rows run the same command as an earlier row (the first is row 4); all are accepted"


def test_any_two_rows_have_different_keys():
    """These rows differ only in fields that are not executed, or in how they are written."""
    header = "Directory,Executable,Filename,Args,Epochs,Priority,note,Env\n"
    lines = [
        "work,-1,train.py,a b,3,1,x,A=1 B=2",
        "work,-1,train.py,a b,3,2,y,A=1 B=2",
        " work,-1,train.py a,b,3.0,1,x,A=1  B=2",
        "work,-1,train.py a b,,3,1,x,A=1 B=2",
        "work,-1,train.py,a b,4,1,x,A=1 B=2",
    ]
    rows, file = read(header + "\n".join(lines))
    keys = {key(file.form.spec(cells, number), nth) for number, cells, _, nth in rows}
    assert len(keys) == len(lines)


def test_rows_of_five_columns_that_differ_in_blanks_are_equal():
    rows, _ = read(HEADER + ONE + " work , -1 , train.py , 3.0 , 2 \n")
    assert [nth for *_, nth in rows] == [0, 1]


def test_a_placeholder_makes_rows_of_different_cells_different():
    header = HEADER.replace("\n", ",lr\n")
    rows, _ = read(header + "".join(f"work,-1,train.py --lr {{lr}},3,1,{lr}\n" for lr in ("1", "2", "1")))
    assert [nth for *_, nth in rows] == [0, 0, 1]


# Bytes, lines and quotes that are refused.


@fault(46)
@pytest.mark.parametrize(
    ("codec", "named"),
    [
        ("utf-16", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32-le", "UTF-32LE"),
        ("utf-32-be", "UTF-32BE"),
    ],
)
def test_another_encoding_is_named_with_the_cure(codec, named):
    message = refusal(ROWS.encode(codec))
    assert message == f"jobs.csv: it is {named}, not UTF-8: iconv -f {named} -t UTF-8 jobs.csv > utf8.csv"


def test_bytes_that_are_not_utf8_are_refused_with_their_place():
    text = HEADER.encode() + b"work,-1,train.py,3,1\nwork,-1,caf\xe9.py,3,1\n"
    assert refusal(text) == (
        "jobs.csv, row 3: byte 0xE9 at character 12 is not UTF-8: iconv -f LATIN1 -t UTF-8 jobs.csv > utf8.csv"
    )


@fault(46)
@pytest.mark.parametrize("lines", [2, 100_000])
def test_a_nul_byte_is_refused_with_its_place_before_any_later_row_is_read(lines):
    text = HEADER.encode() + ONE.encode() * lines + b"work,-1,tr\0ain.py,3,1\n"
    assert refusal(text).startswith(f"jobs.csv, row {lines + 2}: character 11 is a NUL byte")


def test_a_nul_byte_in_the_header_is_refused():
    assert refusal(b"Directory\0,Executable\n").startswith("jobs.csv, row 1: character 10 is a NUL byte")


@fault(46)
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (f'{ONE}work,-1,"train.py,3,1\n{ONE}', "row 3: a quote opened in this row is never closed"),
        (f'{ONE}work,-1,"train.py,3,1\n{ONE * 9000}', "row 3: a cell is longer than 128KiB"),
        (
            f'{ONE}work,-1,"train.py,3,1\n{ONE}work,-1,"train.py",3,1\n',
            "row 3: a quote opened in this row is closed only in line 5, with text after it",
        ),
        ('work,-1,"train.py" --x,3,1\n', "row 2: text follows a closing quote: put the whole cell in quotes"),
        (f'#a,"b\n{ONE}#"\n', "row 2: this comment opens a quote that is closed only in line 4"),
    ],
)
def test_a_quote_that_swallows_rows_is_named_where_it_opened(rows, expected):
    assert refusal(HEADER + rows).startswith(f"jobs.csv, {expected}")


@contract("S3-28")
@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "\ufeff"])
def test_an_empty_file_is_refused(text):
    assert refusal(text).startswith("jobs.csv: it is empty: its first line names the columns (Directory,")
    assert refusal(text, header=None).startswith("jobs.csv: it is empty")


@pytest.mark.parametrize(("path", "why"), [("gone.csv", "no such file or directory"), ("work", "is a directory")])
def test_a_file_that_cannot_be_read_is_named(path, why):
    with pytest.raises(InputError, match=f"^{path}: it cannot be read: {why}"):
        CsvFile(path)


# Headers that are refused or doubted.


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Directory,Executable,Epochs", "row 1: the column Filename is missing"),
        ("Directory,Executable", "row 1: the columns Filename, Epochs are missing"),
        ("Directory,Executable,File,Epoch", "missing; did you mean 'File' for Filename and 'Epoch' for Epochs?"),
        ("Dir,Exe,File,Epoch", "missing; did you mean 'Dir' for Directory and 'Exe' for Executable and"),
        ("Directory;Executable;Filename", "row 1: the column Epochs is missing"),
        (
            ONE[:-1],
            "row 1: the header has none of the columns Directory, Executable, Filename, Epochs, Priority; it has ",
        ),
        (ONE[:-1], "or use --header None if the file has no header"),
        ("Directory,Executable,Filename,Epochs,epochs", "row 1: two columns have the name 'epochs'"),
        ("Directory,Executable,Filename,Epochs,lr,lr", "row 1: two columns have the name 'lr'"),
        ('"Directory', "row 1: a quote opened in this row is never closed"),
    ],
)
def test_an_unusable_header_is_refused(header, expected):
    assert expected in refusal(header + "\n" + ONE)


def test_a_header_in_a_later_row_is_named_by_its_line():
    assert refusal("title\n\nDirectory\n" + ONE, header=1).startswith("jobs.csv, row 3: the columns Executable,")


def test_a_file_without_a_row_for_the_header_is_refused():
    assert refusal(HEADER + ONE, header=5) == "jobs.csv: it has 2 rows, so --header 5 is beyond its end"


def test_a_header_with_the_flag_header_none_is_refused():
    assert refusal(ROWS, header=None) == "jobs.csv, row 1: this row is a header: remove --header None"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Prio", "Priority"),
        ("GPU", "GPUs"),
        ("host_memory", "HostMemory"),
        ("time out", "Timeout"),
        ("Mem", "Memory"),
        ("Memroy", "Memory"),
        ("Priorty", "Priority"),
        ("TimeLimit", "Timeout"),
        ("Depends", "After"),
        ("VRAM", "Memory"),
    ],
)
def test_a_column_that_resembles_a_task_field_is_refused_with_that_name(name, meant):
    assert refusal(f"Directory,Executable,Filename,Epochs,{name}\nwork,-1,train.py,3,1\n") == (
        f"jobs.csv, row 1, column {name}: it is not a task field: did you mean {meant}? Rename it, or keep it as a "
        f"column of your own: --my-columns {name}"
    )


def test_all_columns_that_resemble_task_fields_are_named_at_once():
    assert refusal("Command,GPU,TimeLimit\ntrue,1,5m\n").endswith(
        "column GPU: it is not a task field: did you mean GPUs?; 'TimeLimit': did you mean Timeout? Rename it, or keep "
        "it as a column of your own: --my-columns GPU,TimeLimit"
    )


def test_a_doubtful_column_is_the_users_own_where_the_user_says_so():
    rows, file = read("Command,GPU\ntrue,1\n", mine=["gpu"])
    assert file.form.spec(rows[0][1], 2).own == (("GPU", "1"),)


def test_a_doubtful_column_is_the_users_own_where_a_placeholder_uses_it():
    [first, second] = specs("Command,GPU\ntrue,0\ntrue --on {gpu},1\n")
    assert (first.own, second.command) == ((("GPU", "0"),), "true --on 1")


@pytest.mark.parametrize(
    ("name", "what", "program"), [("train.py", "Python file", "python"), ("a b.sh", "shell script", "sh")]
)
def test_a_script_in_place_of_a_list_is_named_as_such(name, what, program):
    with pytest.raises(InputError) as caught:
        CsvFile(write("print(1)\n", name))
    quoted = f"'{name}'" if " " in name else name
    assert str(caught.value) == (
        f"{name}: it is a {what}, not a list of tasks: scheduler exec -- {program} {quoted} runs it as one task"
    )


@pytest.mark.parametrize("name", ["lr", "seed", "batch_size", "model", "ds", "note"])
def test_a_column_of_the_user_gets_no_warning(name):
    assert read(f"Directory,Executable,Filename,Epochs,{name}\nwork,-1,train.py,3,1\n")[1].warnings == []


# Rows that are refused.


@contract("S3-13", "S3-14")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("work,-1,train.py,3", "row 2: 4 fields where there are 5 columns (Directory, "),
        ("work,-1,train.py --a 1,2,3,1", "row 2: 6 fields where there are 5 columns"),
        ("work,-1,train.py --a 1,2,3,1", "a cell with ',' in it must stand in \"quotes\""),
        ("work;-1;train.py;3;1", "1 field where there are 5 columns"),
        ("work;-1;train.py;3;1", "the row is delimited by ';': delimit it with commas"),
        ("work,-1,train.py,3,1,", "row 2: 6 fields"),
        (",-1,train.py,3,1", "row 2, column Directory: it is empty: write . for"),
        ("gone,-1,train.py,3,1", "row 2, column Directory: 'gone' does not exist (looked at {here}/gone)"),
        ("~/exp,-1,train.py,3,1", "~ and $ are not expanded: write the whole path"),
        ("work/train.py,-1,train.py,3,1", "row 2, column Directory: 'work/train.py' is not a directory"),
        ("work,no-such-program,train.py,3,1", "column Executable: 'no-such-program' is not a program on PATH"),
        ("work,python -u,train.py,3,1", "Executable is one program; its arguments belong in Filename"),
        ("work,train.py,x,3,1", "is not a program on PATH: for the file in the directory write ./train.py"),
        ("work,./train.py,x,3,1", "'./train.py' is not an executable file ({here}/work/train.py)"),
        ("work,bin/python,x,3,1", "'bin/python' does not exist (looked at {here}/work/bin/python)"),
        ("work,/usr,x,3,1", "column Executable: '/usr' is not an executable file"),
        ("work,-1,,3,1", "row 2, column Filename: it is empty"),
        ("work,-1,  ,3,1", "row 2, column Filename: it is empty"),
        ('work,-1,"""""",3,1', "row 2, column Filename: it is empty"),
        ("work,-1,gone.py --x,3,1", "column Filename: 'gone.py' does not exist (looked at {here}/work/gone.py)"),
        ("work,python3,gone.py,3,1", "column Filename: 'gone.py' does not exist"),
        ("work,-1,train.py 'x,3,1", 'column Filename: "train.py \'x" cannot be split into words: no closing'),
        ("work,-1,train.py,,1", "row 2, column Epochs: it is empty"),
        ("work,-1,train.py,0,1", "row 2, column Epochs: 0 is below 1"),
        ("work,-1,train.py,-1,1", "row 2, column Epochs: -1 is below 1"),
        ("work,-1,train.py,nan,1", "column Epochs: 'nan' is not a whole number"),
        ("work,-1,train.py,inf,1", "column Epochs: 'inf' is not a whole number"),
        ("work,-1,train.py,1e30,1", "column Epochs: 1000000000000000019884624838656 is too large"),
        ("work,-1,train.py,x,1", "column Epochs: 'x' is not a whole number"),
        ("work,-1,train.py,2.5,1", "column Epochs: '2.5' is not a whole number"),
        ("work,-1,train.py,3,x", "row 2, column Priority: 'x' is not a whole number"),
        ("work,-1,train.py,3,nan", "column Priority: 'nan' is not a whole number"),
        ("work,-1,train.py,3,1.5", "column Priority: '1.5' is not a whole number"),
    ],
)
@contract("S3-D16")
def test_a_bad_row_is_refused_with_its_column_and_the_next_step(here, text, expected):
    message = row(text)
    assert message.startswith("jobs.csv, row 2")
    assert expected.format(here=here) in message


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("Memory", "8", "'8' has no unit: write 8GiB or 8MiB"),
        ("Memory", "0", "'0' is not a size above 0"),
        ("Memory", "0GiB", "'0GiB' is not a size above 0"),
        ("Memory", "-1GiB", "'-1GiB' is not a size"),
        ("HostMemory", "x", "'x' is not a size"),
        ("Timeout", "90", "'90' has no unit: write 90s or 90m"),
        ("Timeout", "0s", "'0s' is not a time above 0"),
        ("GPUs", "-1", "-1 is below 0"),
        ("Retries", "x", "'x' is not a whole number"),
        ("StopSignal", "X", "'X' is not a signal"),
        ("Exclusive", "maybe", "'maybe' is neither yes nor no"),
        ("Env", "1x", "'1x' is not NAME=value"),
        ("Args", "'", "cannot be split into words"),
    ],
)
def test_a_bad_cell_of_any_other_field_is_refused_with_its_place(column, text, expected):
    message = row(f"work,-1,train.py,3,1,{text}", f"{HEADER[:-1]},{column}\n")
    assert message.startswith(f"jobs.csv, row 2, column {column}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("work,echo,,train.py,3", "row 2, column Filename: the row also has a Command"),
        ("work,echo,python3,,", "row 2, column Executable: the row also has a Command"),
        ("work,,,,3", "row 2, column Filename: it is empty, and so is Command"),
        ("work,,,train.py,", "row 2, column Epochs: it is empty"),
        (
            "work,no-such-program x,,,",
            "column Command: 'no-such-program' is not a program on PATH (a Command is not read",
        ),
        ("work,A=1 echo,,,", "column Command: 'A=1' is not a program on PATH (a Command is not read by a shell)"),
        ("work,python3 gone.py,,,", "column Command: 'gone.py' does not exist (looked at {here}/work/gone.py)"),
        ("gone,echo,,,", "column Directory: 'gone' does not exist"),
        ("work,echo 'x,,,", 'column Command: "echo \'x" cannot be split'),
        ('work,"""""",,,', "column Command: it is empty"),
    ],
)
def test_a_bad_row_with_a_command_is_refused_with_its_place(here, text, expected):
    message = row(text, "Directory,Command,Executable,Filename,Epochs\n")
    assert expected.format(here=here) in message


@pytest.mark.parametrize(
    "command", ["python3 -m http.server", "python3 -c pass", "echo {lr}", "{program} x", "python3"]
)
def test_commands_without_a_known_script_are_accepted(command):
    assert len(specs(f"Command\n{command}\n")) == 1


@pytest.mark.parametrize(
    "text", ["-m pkg", "-c pass", "-", "{id}.py", '"train.py"', "./train.py", "{here}/work/train.py"]
)
def test_scripts_that_exist_or_cannot_be_known_are_accepted(here, text):
    cell = text.replace("{here}", str(here)).replace('"', '""')
    assert len(specs(f'{HEADER}work,-1,"{cell}",3,1\n')) == 1


def test_a_script_of_another_program_need_not_be_a_file():
    assert len(specs(HEADER + "work,echo,hello,3,1\n")) == 1


def test_a_relative_program_is_searched_in_the_directory_of_the_task():
    Path("work", "tool").touch(0o755)
    assert len(specs(HEADER + "work,./tool,x,3,1\n")) == 1


def test_a_missing_directory_that_exists_beside_the_file_gets_a_hint(here):
    Path("my lab", "exp").mkdir(parents=True)
    path = write(HEADER + "exp,-1,-c pass,3,1\n", "my lab/jobs.csv")
    with pytest.raises(InputError) as caught:
        list(CsvFile(path).rows())
    assert f"it exists in the list's directory: cd '{here}/my lab' first" in str(caught.value)


def test_relative_paths_start_at_the_given_directory(here, monkeypatch):
    write(HEADER + ONE)
    monkeypatch.chdir("/")
    assert len(list(CsvFile("jobs.csv", cwd=str(here)).rows())) == 1


def test_each_directory_is_checked_once(monkeypatch):
    looks = []
    monkeypatch.setattr(os.path, "isdir", lambda path: looks.append(path) or True)
    read(HEADER + "".join(f"work,-1,train.py --lr {n},3,1\n" for n in range(500)))
    assert looks == ["work"]


def test_rows_are_yielded_before_later_rows_are_read():
    file = CsvFile(write(HEADER + ONE + "work,-1,train.py,x,1\n"))
    rows = file.rows()
    assert next(rows)[0] == 2
    with pytest.raises(InputError, match="row 3, column Epochs"):
        next(rows)


def test_bad_rows_of_a_list_are_counted_and_the_first_three_are_described():
    rows = ONE + "work,-1,train.py,x,1\n" + ONE + "work,-1,train.py\n" + "work,-1,gone.py,3,1\n" * 98
    assert refusal(HEADER + rows) == (
        "jobs.csv, row 3, column Epochs: 'x' is not a whole number"
        "; row 5: 3 fields where there are 5 columns (Directory, Executable, Filename, Epochs, Priority)"
        f"; row 6, column Filename: 'gone.py' does not exist (looked at {os.path.abspath('work/gone.py')})"
        "; 100 rows in all cannot be accepted"
    )


def test_bad_rows_with_one_reason_are_described_once():
    same = "row 3: the same; row 4: the same; 4 rows in all cannot be accepted"
    said = refusal(HEADER + "work,-1,train.py,0,1\n" * 4)
    assert said == f"jobs.csv, row 2, column Epochs: 0 is below 1; {same}"


@pytest.mark.parametrize("behind", ['"no end', "caf\udce9.py,1", "a\0"])
def test_a_bad_row_is_reported_before_a_later_unreadable_one(behind):
    watched = (
        Watched().append("work,-1,train.py,0,1\n").append(f"work,-1,{behind}\n".encode("utf-8", "surrogateescape"))
    )
    assert watched.take()[1].startswith("jobs.csv, row 3, column Epochs: 0 is below 1;")


def test_a_delimiter_too_many_at_the_end_of_a_row_is_named():
    assert row("work,-1,train.py,3,1,").endswith("Priority): remove the ',' at its end")
    assert row("work,-1,train.py,a,3,1").endswith("""a cell with ',' in it must stand in "quotes\"""")


COUNT_THE_ROWS = """
import sys
from scheduler.inputs.csv_reader import CsvFile
rows = sum(1 for _ in CsvFile(sys.argv[1]).rows())
print(rows, int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10)
"""
"""A program that prints its peak: VmHWM, since a process inherits ru_maxrss from the one that started it."""


@fault(49)
@pytest.mark.slow
def test_a_million_rows_are_read_in_little_memory():
    with open("jobs.csv", "w") as file:
        file.write(HEADER)
        file.writelines(f"work,-1,train.py --lr 0.{n:06d},10,{n % 7}\n" for n in range(1_000_000))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, "-c", COUNT_THE_ROWS, "jobs.csv"]
    rows, mebibytes = map(int, subprocess.run(words, env=env, capture_output=True, check=True).stdout.split())
    assert rows == 1_000_000
    assert mebibytes < 150


# Batches.


@contract("S3-15")
def test_batches_are_sorted_by_priority_inside_and_stable():
    rows, _ = read(HEADER + "".join(f"work,-1,train.py,3,{p}\n" for p in (5, 1, 5, 0, 1, -2)))
    assert [[r for r, *_ in batch] for batch in batches(rows, 4)] == [[5, 3, 2, 4], [7, 6]]


@contract("S3-17")
@pytest.mark.parametrize("num", [0, -1])
def test_a_batch_of_zero_rows_is_refused(num):
    with pytest.raises(UsageError, match=f"--num {num}"):
        batches([], num)


# What is appended while a run goes on.


class Watched:
    """An accepted file, with the state of it that a run keeps."""

    def __init__(self, text: str | bytes = HEADER + ONE, **kw) -> None:
        _, self.file = read(text, **kw)

    @property
    def mark(self) -> CsvMark:
        return self.file.position

    def append(self, text: str | bytes) -> Watched:
        with open("jobs.csv", "ab") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self

    def take(self, last: bool = False):
        rows, _, sentence = self.file.appended(last=last)
        self.file.accepted()
        return [(r, cells[2], nth) for r, cells, _, nth in rows], sentence

    def resume(self) -> Watched:
        form, mark = type(self.file.form).unpack(self.file.form.pack()), CsvMark.unpack(self.file.mark)
        self.file = CsvFile.resumed("jobs.csv", form, mark)
        return self


def test_an_untouched_file_gives_nothing():
    assert Watched().take(last=True) == ([], "")


@fault(50)
def test_appended_rows_join_and_continue_the_numbering():
    watched = Watched().append("work,-1,train.py --x,3,1\n" + ONE)
    assert watched.take() == ([(3, "train.py --x", 0), (4, "train.py", 1)], "")
    assert (watched.mark.rows, watched.mark.lines) == (3, 4)
    assert watched.append(ONE).take() == ([(5, "train.py", 2)], "")
    assert watched.take(last=True) == ([], "")


@fault(50)
def test_a_row_joins_once_its_line_is_ended():
    watched = Watched().append("work,-1,train.py,1")
    assert watched.take() == ([], "")
    assert watched.append("2,1").take() == ([], "")
    rows, _, _ = watched.append("\n").file.appended(last=False)
    assert [terms.epochs for _, _, terms, _ in rows] == [12]


def test_an_unended_row_joins_when_nothing_else_is_left():
    watched = Watched().append(ONE + ONE.rstrip())
    assert watched.take() == ([(3, "train.py", 1)], "")
    assert watched.take(last=True) == ([(4, "train.py", 2)], "")


def test_text_appended_to_an_accepted_row_without_a_line_end_is_an_edit():
    watched = Watched((HEADER + ONE).rstrip()).append("2\n" + ONE)
    rows, sentence = watched.take(last=True)
    assert (rows, watched.mark.rows) == ([], 1)
    assert sentence.startswith(
        "jobs.csv, row 2: this row was accepted without a line end, and text was added directly after"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_accepted_row_may_be_given_its_line_end(end):
    watched = Watched((HEADER + ONE).rstrip()).append(end)
    assert watched.take() == ([], "")
    assert watched.append(ONE.replace("\n", end)).take() == ([(3, "train.py", 1)], "")


def test_a_line_end_written_in_two_pieces_is_one_line_end():
    crlf = ONE.replace("\n", "\r\n")
    watched = Watched(HEADER).append(crlf[:-1])
    assert watched.take() == ([(2, "train.py", 0)], "")
    assert watched.append("\n" + crlf).take() == ([(3, "train.py", 1)], "")


def test_comments_and_blank_lines_may_be_appended():
    watched = Watched().append("\n# more\n")
    assert watched.take() == ([], "")
    assert watched.append(ONE).take() == ([(5, "train.py", 1)], "")


@pytest.mark.parametrize(
    "text", ["work,-1,train.py", "", "work,-1,train.py,x,1", "work,-1,gone.py,3,1", 'work,"-1,a,3,1']
)
def test_a_bad_appended_row_waits_for_its_correction_and_is_reported_once(text):
    text = text or "work,-1,caf\udce9.py,3,1"
    before = Path(write(HEADER + ONE)).read_bytes()
    watched = Watched().append(ONE + "\n").append(text.encode("utf-8", "surrogateescape") + b"\n" + ONE.encode())
    rows, sentence = watched.take()
    assert rows == [(3, "train.py", 1)]
    assert sentence.startswith("jobs.csv, row 5")
    assert sentence.endswith("; this appended row and the rows after it wait until it is corrected")
    assert watched.take() == ([], "")
    write(before + (ONE + "\n" + ONE + ONE).encode())
    assert watched.take() == ([(5, "train.py", 2), (6, "train.py", 3)], "")


def test_a_bad_appended_row_joins_once_the_missing_file_exists():
    watched = Watched().append("work,-1,new.py,3,1\n")
    assert "new.py' does not exist" in watched.take()[1]
    assert watched.take() == ([], "")
    Path("work", "new.py").touch()
    watched.append("# a change, so that it need not wait\n")
    assert watched.take() == ([(3, "new.py", 0)], "")


@fault(50)
@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (
            HEADER + ONE.replace("3", "4"),
            "jobs.csv: its first 2 lines (67 bytes) were accepted and have been",
        ),
        (HEADER + ONE.replace("3", "30") + ONE, "have been changed since: the change is ignored"),
        (HEADER, "have been cut to 46 bytes since"),
        ("", "have been cut to 0 bytes since"),
    ],
)
def test_every_other_edit_is_reported_once_and_changes_nothing(now, expected):
    watched = Watched()
    mark = watched.mark
    write(now)
    rows, sentence = watched.take()
    assert (rows, watched.mark) == ([], mark)
    assert expected in sentence
    assert watched.take() == watched.take(last=True) == ([], "")
    write(HEADER + ONE + ONE)
    assert watched.take() == ([(3, "train.py", 1)], "")


def test_a_removed_file_is_reported_and_may_come_back():
    watched = Watched()
    os.rename("jobs.csv", "away")
    assert watched.take()[1].startswith("jobs.csv: it cannot be read any more (no such file or directory)")
    assert watched.take() == ([], "")
    os.rename("away", "jobs.csv")
    assert watched.append(ONE).take() == ([(3, "train.py", 1)], "")


def test_a_file_rewritten_by_an_editor_is_still_followed():
    watched = Watched()
    os.replace(write(HEADER + ONE + ONE, "jobs.csv.tmp"), "jobs.csv")
    assert watched.take() == ([(3, "train.py", 1)], "")


@pytest.mark.parametrize(
    ("text", "header"),
    [(HEADER + ONE, 0), (ONE, None), ('"a title\n' + HEADER + ONE, 1)],
    ids=["header", "no header", "a later header"],
)
def test_a_resumed_run_continues_where_it_stopped_reading(text, header):
    watched = Watched(text, header=header).append(ONE + ONE[:-1]).resume()
    line = watched.mark.lines + 1
    assert watched.take() == ([(line, "train.py", 1)], "")
    assert watched.resume().take(last=True) == ([(line + 1, "train.py", 2)], "")
    assert watched.resume().take(last=True) == ([], "")


def test_a_resumed_run_remembers_the_delimiter_and_the_bom():
    watched = Watched(("\ufeff" + HEADER + ONE).replace(",", "\t")).resume().append(ONE.replace(",", "\t"))
    assert watched.take() == ([(3, "train.py", 1)], "")


def test_a_mark_survives_its_journal():
    mark = Watched().mark
    assert CsvMark.unpack(mark.pack()) == mark


def test_a_bad_appended_row_is_checked_again_in_an_unchanged_file():
    watched = Watched().append("work,-1,new.py,3,1\n")
    watched.file.retry = 0.0
    assert "new.py' does not exist" in watched.take()[1]
    Path("work", "new.py").touch()
    assert watched.take() == ([(3, "new.py", 0)], "")


def test_an_untouched_file_is_not_opened(monkeypatch):
    watched = Watched()
    monkeypatch.setattr("builtins.open", lambda *_: pytest.fail("opened"))
    assert watched.take() == ([], "")


def test_the_cells_of_every_row_survive_the_journal():
    rows, _ = read(HEADER + 'work,-1,"train.py \x1f ""[a"" \n",3,1\n')
    assert unpack_cells(pack_cells(rows[0][1])) == rows[0][1]
