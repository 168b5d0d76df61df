"""Bad lists through the real command line: refused in one sentence, nothing started, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults import fault

ROOT = Path(__file__).resolve().parents[3]
HEADER = "Directory,Executable,Filename,Epochs,Priority\n"
GOOD = "work,-1,train.py,3,1\n"
SCRIPT = """
import json, os, sys
with open(os.path.join(os.environ["CANARY"]), "a") as file:
    file.write(json.dumps([os.getcwd(), *sys.argv]) + chr(10))
"""


class Place:
    """A directory with `work/train.py`, which leaves a line in a canary file when it is started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.canary = root / "canary"
        self.script("work/train.py")

    def script(self, path: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(SCRIPT)

    def csv(self, text: str | bytes) -> Path:
        path = self.root / "jobs.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        places = {"SCHEDULER_STATE": str(self.root / "state"), "SCHEDULER_LEASES": str(self.root / "leases")}
        env = {**os.environ, **places, "CANARY": str(self.canary), "PYTHONPATH": os.pathsep.join(paths)}
        words = [sys.executable, "-m", "scheduler", "run", *args]
        return subprocess.run(words, cwd=self.root, env=env, capture_output=True, text=True, timeout=60, check=False)

    def started(self) -> list[list[str]]:
        """Return the working directory, script and arguments of each started task."""
        lines = self.canary.read_text().splitlines() if self.canary.exists() else []
        return [json.loads(line) for line in lines]

    def runs(self) -> list[str]:
        runs = self.root / "state" / "runs"
        return [path.name for path in runs.iterdir() if path.is_dir()] if runs.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def refused(place: Place, text: str | bytes, *flags: str) -> str:
    """Return the sentence that refuses a list; check that nothing was started, changed or left."""
    path = place.csv(text)
    before = path.read_bytes()
    ended = place.run("jobs.csv", *flags)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert (place.started(), place.runs(), path.read_bytes()) == ([], [], before)
    assert ended.stdout == ""
    return ended.stderr


def five(filename: str = "train.py", directory: str = "work", executable: str = "-1", epochs: str = "3") -> str:
    return f"{HEADER}{GOOD}{directory},{executable},{filename},{epochs},1\n"


def column(name: str, text: str) -> str:
    return f"{HEADER[:-1]},{name}\n{GOOD[:-1]},\n{GOOD[:-1]},{text}\n"


ROWS = {
    "a field too few": (HEADER + GOOD + "work,-1,train.py,3\n", "4 fields where there are 5 columns"),
    "an unquoted comma": (five("train.py --a 1,2"), "6 fields where there are 5 columns"),
    "an unterminated quote": (five('"train.py') + GOOD, "never closed"),
    "a quote and text": (five('"train.py" --a'), "text follows a closing quote"),
    "latin-1": (five("café.py").encode("latin-1"), "byte 0xE9 at character 12 is not UTF-8"),
    "a NUL byte": (five("tr\0ain.py"), "a NUL byte"),
}


@fault(46)
@pytest.mark.parametrize("case", ROWS)
def test_a_broken_row_is_refused_with_file_and_row(place, case):
    text, expected = ROWS[case]
    message = refused(place, text)
    assert "jobs.csv, row 3: " in message
    assert expected in message


CELLS = {
    "no directory": (five(directory="gone"), "Directory", "does not exist"),
    "an empty directory": (five(directory=""), "Directory", "it is empty"),
    "a file for a directory": (five(directory="work/train.py"), "Directory", "is not a directory"),
    "no program": (five(executable="no-such-program"), "Executable", "not a program on PATH"),
    "no such path": (five(executable="/no/python"), "Executable", "does not exist"),
    "no script": (five("gone.py"), "Filename", "does not exist (looked at "),
    "an empty script": (five(""), "Filename", "it is empty"),
    "an odd quote": (five("train.py 'x"), "Filename", "cannot be split"),
    "epochs 0": (five(epochs="0"), "Epochs", "0 is below 1"),
    "epochs -1": (five(epochs="-1"), "Epochs", "-1 is below 1"),
    "epochs nan": (five(epochs="nan"), "Epochs", "'nan' is not a whole number"),
    "epochs inf": (five(epochs="inf"), "Epochs", "'inf' is not a whole number"),
    "epochs 1e30": (five(epochs="1e30"), "Epochs", "is too large"),
    "epochs x": (five(epochs="x"), "Epochs", "'x' is not a whole number"),
    "no epochs": (five(epochs=""), "Epochs", "it is empty"),
    "priority x": (HEADER + GOOD + "work,-1,train.py,3,x\n", "Priority", "'x' is not a whole number"),
    "priority nan": (HEADER + GOOD + "work,-1,train.py,3,nan\n", "Priority", "'nan' is not a whole number"),
    "memory 8": (column("Memory", "8"), "Memory", "write 8GiB or 8MiB"),
    "memory 0": (column("Memory", "0"), "Memory", "'0' is not a size above 0"),
    "memory 0GiB": (column("Memory", "0GiB"), "Memory", "is not a size above 0"),
    "timeout 90": (column("Timeout", "90"), "Timeout", "write 90s or 90m"),
    "env": (column("Env", "1=x"), "Env", "is not NAME=value"),
    "a command as well": (column("Command", "echo"), "Filename", "the row also has a Command"),
}


@fault(47)
@pytest.mark.parametrize("case", CELLS)
def test_a_bad_cell_is_refused_with_file_row_and_column(place, case):
    text, name, expected = CELLS[case]
    message = refused(place, text)
    assert f"jobs.csv, row 3, column {name}: " in message
    assert expected in message


FILES = {
    "empty": ("", "jobs.csv: it is empty"),
    "UTF-16": (five().encode("utf-16"), "jobs.csv: it is UTF-16, not UTF-8: iconv -f UTF-16"),
    "UTF-16 without BOM": (five().encode("utf-16-le"), "it is UTF-16LE, not UTF-8"),
    "UTF-32": (five().encode("utf-32"), "it is UTF-32, not UTF-8"),
    "no header": (GOOD, "--header None"),
    "a missing column": (HEADER.replace("Filename", "File") + GOOD, "row 1: the column Filename is missing; did you"),
    "two equal columns": (HEADER.replace("Priority", "epochs") + GOOD, "row 1: two columns have the name 'epochs'"),
    "a parent that does not exist": (column("After", "77"), "row 3, column After: there is no task 77"),
    "another delimiter": (five().replace(",", ";").replace(HEADER.replace(",", ";"), HEADER), "delimited by ';'"),
}


@pytest.mark.parametrize("case", FILES)
def test_an_unusable_file_is_refused(place, case):
    text, expected = FILES[case]
    assert expected in refused(place, text)


FLAGS = {
    "--num 0": (("--num", "0"), "--num"),
    "--num -1": (("--num=-1",), "--num"),
    "--num x": (("--num", "x"), "--num"),
    "--header None": (("--header", "None"), "row 1: this row is a header: remove --header None"),
    "--header 7": (("--header", "7"), "--header 7"),
    "--header x": (("--header", "x"), "--header x"),
    "--memory 8": (("--memory", "8"), "'8' has no unit"),
    "--device 7": (("--device", "7"), "scheduler: --device 7: there is no device '7' in this run; there is: host\n"),
    "--memory 900TiB": (("--memory", "900TiB"), "scheduler: --memory 900TiB: needs 921600.0GiB; the largest device"),
    "--sample": (("--sample",), "--sample runs the sample tasks: leave the other list out"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_an_invalid_flag_is_refused(place, case):
    flags, expected = FLAGS[case]
    assert expected in refused(place, HEADER + GOOD, *flags)


def test_a_missing_file_is_named(place):
    ended = place.run("gone.csv")
    assert (ended.returncode, place.runs()) == (2, [])
    assert "gone.csv: it cannot be read: no such file or directory" in ended.stderr


@fault(46)
def test_a_bad_row_after_many_good_ones_starts_no_task(place):
    assert "row 1002, column Epochs" in refused(place, HEADER + GOOD * 1000 + "work,-1,train.py,x,1\n", "--num", "2")


def test_a_header_alone_runs_nothing_without_an_error(place):
    place.csv(HEADER)
    ended = place.run("jobs.csv")
    assert (ended.returncode, place.started(), place.runs()) == (0, [], [])
    assert "jobs.csv" in ended.stdout + ended.stderr
    assert "nothing to run" in ended.stdout + ended.stderr


# What looks bad and is good.


def completed(place: Place, text: str | bytes, *flags: str) -> list[list[str]]:
    """Run a list to its end; return script and arguments of its tasks, without the appended ones."""
    path = place.csv(text)
    before = path.read_bytes()
    ended = place.run("jobs.csv", "--append", "none", *flags)
    assert ended.returncode == 0, ended
    assert path.read_bytes() == before
    return [words for _, *words in place.started()]


PAYLOADS = ["; touch pwned", "$(touch pwned)", "`touch pwned`", "| touch pwned", "&& touch pwned", "> pwned", "-rf ~ *"]


@fault(60)
@pytest.mark.slow
def test_shell_metacharacters_arrive_literally(place):
    rows = "".join(f"work,-1,train.py {payload},3,1\n" for payload in PAYLOADS)
    assert sorted(completed(place, HEADER + rows)) == sorted(["train.py", *payload.split()] for payload in PAYLOADS)
    assert list(place.root.rglob("pwned")) == []


@pytest.mark.slow
def test_blanks_quotes_and_line_ends_arrive_as_one_word(place):
    place.script("my lab's/my train.py")
    cell = """'my train.py' --name "two words" --text 'line one
line two' it\\'s"""
    quoted = '"' + cell.replace('"', '""') + '"'
    [words] = completed(place, f"{HEADER}my lab's,-1,{quoted},3,1\n")
    assert words == ["my train.py", "--name", "two words", "--text", "line one\nline two", "it's"]
    assert place.started()[0][0] == str(place.root / "my lab's")


@fault(48)
@pytest.mark.slow
def test_equal_rows_all_run_and_give_a_warning(place):
    place.csv(HEADER + GOOD * 3)
    ended = place.run("jobs.csv")
    assert (ended.returncode, len(place.started())) == (0, 3)
    assert "2 rows run the same command as an earlier row (the first is row 3)" in ended.stderr + ended.stdout


@pytest.mark.slow
def test_a_script_called_na_runs_and_numbers_stay_as_written(place):
    place.script("work/NA")
    assert completed(place, HEADER + "work,-1,NA 007 1e5 None,3,1\n") == [["NA", "007", "1e5", "None"]]


@fault(45)
@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        ("\ufeff" + HEADER + GOOD).replace("\n", "\r\n"),
        (HEADER + GOOD).replace("\n", "\r"),
        "# made by hand\n\n" + HEADER + "\n#work,-1,gone.py,3,1\n" + GOOD.rstrip(),
        (HEADER + GOOD).replace(",", "\t"),
    ],
    ids=["bom and crlf", "cr", "comments", "tabs"],
)
def test_every_spelling_of_a_file_runs_an_equal_task(place, text):
    assert completed(place, text) == [["train.py"]]


@pytest.mark.slow
def test_a_file_without_a_header_runs(place):
    assert completed(place, GOOD, "--header", "None") == [["train.py"]]
