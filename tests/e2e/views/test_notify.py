"""Notifications of a run: a real web server on loopback, real commands, and ones that hang or fail."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.tasks.redaction import notifier
from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SECRET = "T0PS3CRET"


class Hook:
    """A web hook with its received messages and its answer."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status = 200
        self.silent = threading.Event()
        self.silent.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.paths.append(self.path)
                hook.sent.append(json.loads(body))
                hook.silent.wait(60)
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Ignore log messages."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/hook/{SECRET}"

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.sent]

    def close(self) -> None:
        self.silent.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def everything_written(home: Home) -> bytes:
    return b"".join(path.read_bytes() for path in home.state.rglob("*") if path.is_file())


def test_web_hook_gets_the_first_failure_and_the_end(home: Home, hook: Hook) -> None:
    listing = home.commands("true", "sh -c 'exit 3'", "sh -c 'exit 4'")
    done = home.call("run", listing, "-j", "1", "--name", "night", "--notify", hook.address, "--keep-going", code=1)
    assert hook.events == ["failure", "end"]
    failure, end = hook.sent
    assert (failure["task"], failure["run"], failure["name"], failure["file"]) == (1, 1, "night", "jobs.csv")
    assert "task 1 failed" in failure["text"]
    assert (end["states"], end["tasks"]) == ({"succeeded": 1, "failed": 2}, 3)
    assert end["host"]
    assert end["text"] == end["content"]
    assert end["text"].startswith("run 1 (night) on ")
    assert hook.paths == [f"/hook/{SECRET}"] * 2
    assert SECRET not in done.stdout + done.stderr
    assert SECRET.encode() not in everything_written(home)


def test_web_hook_gets_a_message_when_launching_stops(home: Home, hook: Hook) -> None:
    home.call("run", home.commands(*["sh -c 'echo no such file; exit 1'"] * 8), "--notify", hook.address, code=1)
    assert hook.events == ["failure", "stopped", "end"]
    assert "no more tasks start" in hook.sent[1]["text"]
    assert hook.sent[1]["states"]["waiting"] >= 1


def test_command_gets_the_message_in_variables_and_as_json(home: Home) -> None:
    script = home.root / "tell.sh"
    script.write_text('#!/bin/sh\necho "$SCHEDULER_NOTIFY_EVENT $SCHEDULER_NOTIFY_FAILED" >> told\ncat >> told.json\n')
    script.chmod(0o755)
    home.call("run", home.commands("true", "false"), "--notify", "./tell.sh", "--keep-going", code=1)
    assert (home.root / "told").read_text() == "failure 1\nend 1\n"
    assert '"event": "end"' in (home.root / "told.json").read_text()


def test_failing_web_hook_is_reported_once_and_delays_no_task(home: Home, hook: Hook) -> None:
    hook.status = 500
    home.call("run", home.commands("true", "false"), "--notify", hook.address, "--keep-going", code=1)
    said = [line for line in home.log().splitlines() if "--notify" in line]
    assert len(said) == 1
    assert said[0].endswith("/*** failed: HTTP 500 Internal Server Error (reported once; the run continues)")


def test_failing_command_is_reported_with_its_last_line(home: Home) -> None:
    home.call("run", home.commands("true"), "--notify", "sh -c 'echo no mail here; exit 7'", code=0)
    assert "failed: exit 7: no mail here" in home.log()


@pytest.mark.long
def test_hanging_web_hook_does_not_delay_the_run(home: Home, hook: Hook) -> None:
    hook.silent.clear()
    listing = home.commands("sh -c 'exit 3'", *["true"] * 5, "sh -c 'until [ -e go ]; do sleep 0.05; done'")
    home.call("run", "-d", listing, "--notify", hook.address, "--keep-going", "-j", "1", code=0)
    wait_until(lambda: home.states()[:6] == ["failed", *["succeeded"] * 5], 60)
    assert len(hook.sent) == 1
    (home.root / "go").touch()
    wait_until(lambda: "failed: no answer within 10 s" in home.log(), 60)
    assert home.call("wait", code=1)


def test_notify_works_as_a_setting_and_doctor_shows_no_secret(home: Home, hook: Hook) -> None:
    home.env["SCHEDULER_NOTIFY"] = hook.address
    home.call("run", home.commands("true"), code=0)
    assert hook.events == ["end"]
    told = home.call("doctor").stdout
    assert "/***" in told
    assert SECRET not in told + home.call("doctor", "--json").stdout


def test_resumed_run_sends_messages(home: Home, hook: Hook) -> None:
    listing = home.commands("true", "sh -c 'until [ -e go ]; do sleep 0.05; done'")
    home.call("run", "-d", listing, "-j", "1", code=0)
    wait_until(lambda: home.states() == ["succeeded", "running"], 60)
    os.kill(home.scheduler(), signal.SIGKILL)
    (home.root / "go").touch()
    home.call("resume", "--notify", hook.address, code=0)
    assert hook.events == ["end"]


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("ftp://here/x", "ftp:// is not a web address"),
        ("sh 'x", '--notify: "sh \'x" cannot be split into words: no closing quotation'),
        ("no-such-program --now", "there is no program 'no-such-program'"),
    ],
)
def test_unusable_notify_target_is_refused_at_once(home: Home, who: str, why: str) -> None:
    assert why in home.call("run", home.commands("touch here"), "--notify", who, code=2).stderr
    assert not (home.root / "here").exists()


def test_messages_show_only_the_host_of_an_address() -> None:
    assert notifier("https://me:pw@hooks.example.org/services/T0/B1") == "https://hooks.example.org/***"
    assert notifier("http://localhost:8080") == "http://localhost:8080"
    assert notifier("notify-send --token=abc over") == "notify-send --token=*** over"
