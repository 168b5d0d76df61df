"""The documents agree with the code: generated pages, links, commands, lists."""

from __future__ import annotations

import csv
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import EstimateSource
from scheduler.core.tasks.fields import words
from scheduler.runtime.settings import READERS, Settings
from scheduler.ui.live.keys import LIST_KEYS, SIGNAL_KEYS
from tests.docs import reference

ROOT = Path(__file__).parents[2]


def test_generated_reference_is_up_to_date() -> None:
    made = {path.name: path.read_text() for path in (ROOT / "docs/reference").iterdir()}
    assert made == reference.pages(), "run ./scripts/reference"


UNSET = {"the usual ones", "by the system", "active environment", "learned", "–"}
"""Words of the reference for a setting that has no value."""


def test_documented_defaults_of_settings_are_those_of_the_code() -> None:
    settings, config = Settings(), SchedulingConfig()
    for name, (_, default, _) in reference.SETTINGS.items():
        if name == "settle":
            assert default == f"{config.settle:g}s; on GPUs automatic, at most {config.gpu_settle:g}s"
            assert settings.settle is None
        else:
            assert getattr(settings, name) == ("" if default in UNSET else READERS[name](default)), name


def test_every_link_in_the_documents_has_a_target() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points at {target}"


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for package in (ROOT / "scheduler").glob("*/__init__.py"):
        assert f"`{package.parent.name}/`" in text, package.parent.name


def test_reference_lists_every_variable_of_a_task() -> None:
    told = set(
        re.findall(
            r'"(SCHEDULER_[A-Z_]+|(?:PET_)?MASTER_PORT)"', (ROOT / "scheduler/core/attempts/launch_spec.py").read_text()
        )
    )
    assert told == {name for name, _ in reference.TASKS_ARE_TOLD}


def test_the_glossary_lists_the_sources_of_estimates() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    (row,) = re.findall(r"^\| source \(of an estimate\) \| How a need is known: (.*)\. \|$", text, re.MULTILINE)
    assert set(re.split(", | or ", row)) == set(EstimateSource)


def test_the_page_on_the_live_view_lists_its_keys() -> None:
    rows = "".join(f"| `{one.keys}` | {one.does} |\n" for one in (*LIST_KEYS, *SIGNAL_KEYS))
    assert f"| --- | --- |\n{rows}\n" in (ROOT / "docs" / "howto" / "live-view.md").read_text()


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    from scheduler.cli.main import VERBS

    verbs = set(re.findall(r"(?:^\$ |`)scheduler ([a-z]+)", text, re.MULTILINE))
    assert verbs <= VERBS.keys()
    for script in re.findall(r"\./(scripts/[a-z]+)", text):
        assert (ROOT / script).is_file()


def test_the_commands_of_the_how_tos_exist() -> None:
    from scheduler.cli.main import VERBS

    for page in (ROOT / "docs/howto").glob("*.md"):
        verbs = set(re.findall(r"(?:^\$ |`|/|scope )scheduler ([a-z]+)", page.read_text(), re.MULTILINE))
        assert verbs, page.name
        assert verbs <= VERBS.keys(), page.name


def test_the_lists_of_the_documents_can_be_read() -> None:
    found = 0
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for block in re.findall(
            r"^```(?:csv)?\n((?:Directory|Command),.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            rows = list(csv.reader(block.splitlines(), strict=True))
            assert {len(row) for row in rows} == {len(rows[0])}, f"{page.name}: {block}"
            assert all(
                words(cell) for row in rows[1:] for name, cell in zip(rows[0], row, strict=True) if name == "Command"
            )
            found += 1
    assert found > 5


def test_commands_compared_with_other_tools_exist_with_their_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from scheduler.cli.completion import flags
    from scheduler.cli.main import VERBS

    monkeypatch.setenv("COLUMNS", "80")  # asking for help changes it
    text = (ROOT / "docs/coming_from.md").read_text()
    commands = re.findall(r"(?:^|  |[`'])scheduler ([a-z]+)((?:(?!   |[`#|\n]).)*)", text, re.MULTILINE)
    assert len(commands) > 30
    for verb, rest in commands:
        assert verb in VERBS, verb
        said = {word for word in shlex.split(rest.partition(" -- ")[0]) if word.startswith("-") and word.strip("-")}
        assert said <= flags(verb), (verb, rest)


def test_the_commands_of_all_pages_exist_with_their_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.cli.completion import flags
    from scheduler.cli.main import VERBS

    monkeypatch.setenv("COLUMNS", "80")
    known = {verb: flags(verb) for verb in VERBS}
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    found = 0
    for page in pages:
        for verb, rest in re.findall(
            r"(?:^\$ |`)scheduler ([a-z]+)((?:[^`#|;\n](?!   ))*)", page.read_text(), re.MULTILINE
        ):
            assert verb in known, (page.name, verb)
            ours = re.sub(r"'[^']*'|\"[^\"]*\"", "QUOTED", rest.partition(" -- ")[0])
            said = {word.partition("=")[0] for word in ours.split() if re.match(r"-[-a-z]", word)}
            assert said - {"--"} <= known[verb], (page.name, verb, rest)
            found += 1
    assert found > 100


def test_requirements_and_project_agree() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    listed = [line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    assert sorted(wanted) == sorted(line for line in listed if line)
