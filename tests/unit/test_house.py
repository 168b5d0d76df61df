"""The gate of `./scripts/check` for layout and language finds what is planted, and nothing in the project itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import house


def planted(root: Path, **files: str) -> list[str]:
    """Write modules into `scheduler/` below a root, and return what the gate finds there."""
    for name, text in files.items():
        path = root / "scheduler" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return house.gate(root)


def test_the_gate_finds_nothing_in_the_project() -> None:
    assert house.gate() == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("# a lock that nobody holds\n", "nobody"),
        ("foreign_bytes = 0\n", "foreign"),
        ("class TestOfSomebodyElse: ...\n", "Somebody"),
        ("# Promised memory\n", "Promised"),
        ("class RealWorldWait: ...\n", "RealWorld"),
    ],
)
def test_the_gate_finds_a_retired_word(tmp_path: Path, text: str, word: str) -> None:
    assert planted(tmp_path, a=f"x = 1\n{text}") == [
        f"scheduler/a.py:2: retired word {word!r}, see docs/glossary.md",
    ]


@pytest.mark.parametrize("text", ["# a yardstick, vineyards\n", "promissory = 1\n"])
def test_the_gate_accepts_words_that_only_contain_a_retired_one(tmp_path: Path, text: str) -> None:
    assert planted(tmp_path, a=text) == []


@pytest.mark.parametrize("name", ["README.md", "docs/page.md", "scripts/tool.sh", "tests/unit/test_a.py"])
def test_the_gate_reads_documents_scripts_and_tests(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("whoever\n")
    assert house.gate(tmp_path) == [f"{name}:1: retired word 'whoever', see docs/glossary.md"]


def test_the_gate_accepts_retired_words_in_the_glossary(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/glossary.md").write_text("whoever\n")
    assert house.gate(tmp_path) == []


@pytest.mark.parametrize("beginning", house.RIDDLES)
def test_the_gate_finds_a_docstring_that_begins_like_a_riddle(tmp_path: Path, beginning: str) -> None:
    found = planted(tmp_path, a=f'"""A module."""\n\n\ndef f():\n    """{beginning} it is."""\n')
    assert found == [f"scheduler/a.py:5: a docstring begins like a riddle: {f'{beginning} it is.'!r}"]


@pytest.mark.parametrize(
    "name", ["test_of_a_run", "test_is_closed", "test_it_goes_on_well", "test_json", "test_bad_input"]
)
def test_the_gate_finds_a_test_without_a_subject_in_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(f"class TestA:\n    def {name}(self) -> None: ...\n")
    assert house.gate(tmp_path) == [f"tests/test_a.py:2: {name} does not name its subject"]


@pytest.mark.parametrize("name", ["test_why_changes_nothing", "test_items_are_sorted", "test_island_is_reached"])
def test_the_gate_accepts_a_test_with_a_subject(tmp_path: Path, name: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(f"def {name}() -> None: ...\n")
    assert house.gate(tmp_path) == []


def test_the_gate_finds_an_import_cycle_in_functions_too(tmp_path: Path) -> None:
    one, other = "from scheduler import b\n", "def f():\n    from scheduler import a\n"
    assert planted(tmp_path, a=one, b=other) == ["import cycle: scheduler.a -> scheduler.b"]


def test_the_gate_finds_a_class_name_in_two_modules(tmp_path: Path) -> None:
    assert planted(tmp_path, a="class Lease: ...\n", b="class Lease: ...\n") == [
        "the class name Lease stands in scheduler/a.py and scheduler/b.py",
    ]


def test_the_gate_finds_a_folder_with_too_many_modules(tmp_path: Path) -> None:
    found = planted(tmp_path, **{f"m{number}": "" for number in range(house.MAX_MODULES + 1)})
    assert found == [f"scheduler holds {house.MAX_MODULES + 1} modules, more than {house.MAX_MODULES}"]


def test_the_gate_counts_code_lines_without_comments_blanks_and_docstrings(tmp_path: Path) -> None:
    filled = '"""A module."""\n' + "# a comment\n\n" * 300 + "x = 1\n" * house.MAX_LINES
    assert planted(tmp_path, a=filled) == []
    found = planted(tmp_path, b=f"{filled}x = 1\n")
    assert found == [f"scheduler/b.py has {house.MAX_LINES + 1} code lines, more than {house.MAX_LINES}"]


def test_the_command_prints_what_it_finds_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--gate"]) == 0
    assert capsys.readouterr().out.strip() == ""
    assert house.main([]) == 0
    assert "import cycles: 0" in capsys.readouterr().out
