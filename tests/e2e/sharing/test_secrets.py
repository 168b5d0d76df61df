"""Secrets on command lines and in the environment: no view shows them, and no file has those of the environment."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.runtime.shim import pack_block
from scheduler.store.machine.locked_files import make_locked
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
CANARY = "c4n4rybird"
IN_ENVIRONMENT = "h1dd3nbird"
ESCAPES = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202e"
OUTPUTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Yield a home with an ended and a running run, with secrets and escape sequences in every place of a list."""
    made = Home(tmp_path_factory.mktemp("secrets"))
    made.env["WANDB_API_KEY"] = IN_ENVIRONMENT
    said = f"--token {CANARY} --api-key={CANARY} db_password={CANARY}"
    rows = [
        [f"sh -c 'exit 3' x {said}", "", CANARY, ""],
        [f"sh -c 'MY_SECRET={CANARY} true; exit 4' x", f"HF_TOKEN={CANARY}", CANARY, ""],
        [f"true {said} {ESCAPES}", "", CANARY, f"named --token {CANARY} {ESCAPES}"],
        [f"false --token {CANARY}", "", CANARY, ""],
        ["printf 'be\\033]52;c;eA==\\007fore\\n\\302\\233 31mend\\n'", "", CANARY, ""],
    ]
    made.write("jobs.csv", "Command,Env,hf_token,Name", *rows)
    made.call("run", "jobs.csv", "--devices", "host", "--keep-going", "--json", code=1)
    made.commands(f"sh -c 'touch here; until [ -e go ]; do sleep 0.05; done' x {said}", name="more.csv")
    with made.start("run", "more.csv", "--devices", "host") as scheduler:
        wait_until((made.root / "here").exists, 60)
        yield made
        (made.root / "go").touch()
        assert scheduler.wait(60) == 0
    made.end()


VIEWS = [
    ("status",), ("status", "--json"), ("list", "r1"), ("list", "r1", "--json"), ("list", "r2"),
    ("results", "r1"), ("results", "r1", "--json"), ("results", "r1", "--csv"), ("results", "r1", "--md"),
    ("report", "r1", "--json"), ("why", "1"), ("why", "2"), ("why", "--json"), ("runs",), ("runs", "--json"),
    ("logs", "1"), ("logs", "3"), ("profiles",), ("profiles", "--json"), ("devices",), ("devices", "--json"),
    ("doctor",), ("top", "--once"), ("run", "jobs.csv", "--dry-run"), ("run", "jobs.csv", "--new", "--dry-run"),
    ("run", "jobs.csv"), ("run", "jobs.csv", "--new", "--keep-going", "--json"), ("wait", "1"),
    ("cancel", "1"), ("hold", "1"), ("retry", "1"), ("schedule", "-l"), ("exec", "--", "true", "--token", CANARY),
    ("resume", "r1"), ("completion", "bash"),
]  # fmt: skip


@fault(61, 68)
@pytest.mark.parametrize("words", VIEWS, ids=" ".join)
def test_no_view_shows_a_secret_or_an_escape_sequence(home: Home, words: tuple[str, ...]) -> None:
    done = home.call(*words)
    said = done.stdout + done.stderr
    assert CANARY not in said
    assert IN_ENVIRONMENT not in said
    assert not OUTPUTS.search(said.replace("\r", "")), said


@fault(68)
@pytest.mark.parametrize("words", [("status",), ("status", "--prometheus"), ("top", "--all"), ("devices",)])
def test_device_names_of_other_users_are_shown_without_escape_sequences(home: Home, words: tuple[str, ...]) -> None:
    folder = os.open(home.leases, os.O_RDONLY | os.O_DIRECTORY)
    lease = {"version": 1, "shim": 0, "boot": "", "bytes": {f"card{ESCAPES}": 1 << 30}, "load": {}}
    ticket = {"version": 2, "task": 1, "devices": [f"card{ESCAPES}"], "gpus": [], "host": 0, "cores": 0, "busy": 0}
    said = {**ticket, "alone": False, "closed": False, "bare": [], "last": 0, "since": 0, "looked": 1e9}
    held = [
        make_locked(folder, f"{os.getuid()}.9-f.1.1.{os.urandom(8).hex()}", pack_block(lease)),
        make_locked(folder, f"ticket.{os.getuid()}.9-f.{os.urandom(8).hex()}", pack_block(said)),
    ]
    shown = home.call(*words, code=0).stdout
    for fd in (*held, folder):
        os.close(fd)
    assert "cardred" in shown or words[0] in ("top", "devices")
    assert not OUTPUTS.search(shown), shown


@fault(68)
def test_logs_lose_escape_sequences_on_a_terminal_and_keep_them_in_a_pipe(home: Home) -> None:
    terminal = Terminal(home, "logs", "4")
    assert terminal.wait() == 0
    wait_until(lambda: "end" in terminal.said, 30)
    assert "before\r\n" in terminal.said
    assert not OUTPUTS.search(terminal.said.replace("\r", ""))
    piped = home.start("logs", "4", text=False, stdout=subprocess.PIPE)
    assert b"be\x1b]52;c;eA==\x07fore\n" in piped.communicate()[0]


@fault(61)
@pytest.mark.parametrize("name", ["page.html", "data.json", "attempts.csv"])
def test_no_report_shows_a_secret_or_an_escape_sequence(home: Home, name: str) -> None:
    home.call("report", "r1", "-o", name, code=0)
    said = (home.root / name).read_text()
    assert "***" in said or name == "attempts.csv"
    assert CANARY not in said
    assert not OUTPUTS.search(said.replace("\r", ""))


@fault(61)
@pytest.mark.parametrize("words", [("results", "r1", "--csv"), ("results", "r1", "--json"), ("list", "r1", "--json")])
def test_show_secrets_shows_the_users_own_secrets(home: Home, words: tuple[str, ...]) -> None:
    said = home.call(*words, "--show-secrets", code=0).stdout
    assert said.count(CANARY) > 6


@fault(61)
def test_a_secret_of_the_environment_is_in_no_file_and_no_lease(home: Home) -> None:
    grep = ["grep", "-rla", IN_ENVIRONMENT, str(home.state), str(home.leases), str(home.root / "jobs.csv")]
    assert subprocess.run(grep, capture_output=True, text=True, check=False).stdout == ""
    of_tasks = [path for path in home.leases.iterdir() if CANARY.encode() in path.read_bytes()]
    assert of_tasks == []
    assert [Path(home.state / f"runs/{run}/run.log").read_text().count(CANARY) for run in (1, 2)] == [0, 0]
    assert os.stat(home.state).st_mode & 0o077 == 0


@fault(61)
def test_the_address_of_notifications_is_stored_nowhere_and_gets_no_task(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.env["SCHEDULER_NOTIFY"] = f"true {CANARY}"
    home.commands("sh -c 'env'")
    home.call("run", "jobs.csv", "--devices", "host", code=0)
    assert "SCHEDULER_TASK_ID=0" in (home.state / "runs/1/tasks/0/1.log").read_text()
    grep = ["grep", "-rla", CANARY, str(home.state), str(home.leases)]
    assert subprocess.run(grep, capture_output=True, text=True, check=False).stdout == ""
    home.end()
