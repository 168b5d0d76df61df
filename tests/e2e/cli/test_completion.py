"""Completion in real shells: of verbs, flags, their values, task ids and runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.cli.completion import candidates
from scheduler.cli.main import VERBS
from tests.support.killing import Home

TYPED = [
    ("scheduler canc", ["cancel"]),
    ("scheduler set --pri", ["--priority"]),
    ("scheduler resume --env-from n", ["now"]),
    ("scheduler cancel ", ["0", "1", "last"]),
    ("scheduler hold 0,", ["0,0", "0,1"]),
    ("scheduler stop na", ["named"]),
    ("scheduler set --run ", ["r1", "named"]),
    ("scheduler results --st", ["--state"]),
    ("scheduler devices dis", ["disable"]),
    ("scheduler run jo", ["jobs.csv"]),
]
"""The typed words, and the completions of the last word; a file where it is none of the scheduler's words."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(Path(tmp_path_factory.mktemp("completion")))
    made.commands("true", "true")
    made.call("run", "jobs.csv", "--name", "named", code=0)
    bin_ = made.root / "bin"
    bin_.mkdir()
    for name in ("scheduler", "gsched"):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m scheduler "$@"\n')
        (bin_ / name).chmod(0o755)
    made.env["PATH"] = f"{bin_}:{made.env['PATH']}"
    yield made
    made.end()


def shell(home: Home, *command: str, script: str) -> list[str]:
    """Return the lines that a script prints in a shell that reads no settings of the user."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} here")
    done = subprocess.run(
        [*command, script], cwd=home.root, env=home.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("typed", "wanted"), TYPED)
def test_bash_completes_the_last_word(home: Home, typed: str, wanted: list[str]) -> None:
    """Call the function as bash does on Tab; where it has no words, `complete -o default` completes files."""
    script = f"""
        eval "$(scheduler completion bash)"
        line='{typed}'; COMP_LINE=$line; COMP_POINT=${{#line}}
        eval "COMP_WORDS=($line)"; [[ $line == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        complete -p scheduler | grep -q -- '-o default' || exit 9
        complete -p gsched | grep -q -- '-F _scheduler' || exit 8
        _scheduler scheduler "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        ((${{#COMPREPLY[@]}})) || COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    found = shell(home, "bash", "--norc", "-c", script=script)
    assert [word for word in found if word in wanted] == wanted
    assert all(word.startswith(typed.split(" ")[-1]) for word in found)


@pytest.mark.parametrize(("typed", "wanted"), TYPED)
def test_fish_completes_the_last_word(home: Home, typed: str, wanted: list[str]) -> None:
    found = shell(home, "fish", "-N", "-c", script=f"scheduler completion fish | source; complete -C '{typed}'")
    said = [line.partition("\t")[0] for line in found]  # which fish sorts
    assert [word for word in said if word in wanted] == sorted(wanted)


@pytest.mark.parametrize(("typed", "wanted"), TYPED)
def test_zsh_completes_the_last_word(home: Home, typed: str, wanted: list[str]) -> None:
    """Read what the function gives to `compadd`, or that it leaves the word to `_files`."""
    script = f"""
        compdef() {{ [[ "$*" == "_scheduler scheduler gsched" ]] || exit 9 }}
        compadd() {{ shift; print -l -- "$@" }}
        _files() {{ print -l -- ${{words[CURRENT]}}*(N) }}
        eval "$(scheduler completion zsh)"
        line='{typed}'; words=(${{(z)line}}); [[ $line == *' ' ]] && words+=('')
        CURRENT=${{#words}}
        _scheduler
    """
    found = shell(home, "zsh", "-f", "-c", script=script)
    assert [word for word in found if word in wanted] == wanted


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_offers_its_flags(verb: str) -> None:
    found = [*candidates([verb, "--"])]
    assert {"--json", "--help"} <= {*found}
    assert all(flag.startswith("--") for flag in found)


def test_completion_works_without_a_state_directory_and_makes_none(home: Home, tmp_path: Path) -> None:
    env = {**home.env, "SCHEDULER_STATE": str(tmp_path / "none")}
    done = home.call("completion", "words", "--", "cancel", "", code=0, env=env)
    assert done.stdout == "last\n"
    assert not (tmp_path / "none").exists()


def test_the_flags_of_an_examples_command_are_none_of_the_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # asking for help changes it
    assert [*candidates(["grid", "--l"])] == ["--log-max"]
    assert "--threads_percentage" in candidates(["run", "--thr"])
