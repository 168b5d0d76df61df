"""The page in the browser, and attacks on it: other users, other pages, links and pipes."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.sharing.test_two_users import USERS, become
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.paging import Page
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL_GO = "sh -c 'until [ -e go ]; do sleep 0.1; done'"
RUNS, WAITS = 2, 3
"""The running task, and a waiting one, of the run that all tests share."""


def begun(root: Path) -> Home:
    """Start a run with a failed task, one with secrets, a running one and some waiting ones."""
    made = Home(root)
    made.commands(
        "sh -c 'echo these are my words; exit 3'", "env HF_TOKEN=abcdef true --api-key sesame", UNTIL_GO, UNTIL_GO,
        UNTIL_GO,
    )  # fmt: skip
    made.call("run", "jobs.csv", "-j", "1", "--keep-going", "-d", code=0)
    wait_until(lambda: made.states()[RUNS] == "running", 60, 0.1)
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Start one run for all tests that do not change it."""
    made = begun(tmp_path_factory.mktemp("web"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def page(home: Home) -> Iterator[Page]:
    made = Page(home)
    yield made
    assert made.close() == ""
    assert made.process.returncode == 0


def listening(port: int) -> list[str]:
    """Return the addresses with a listener on a port, in the kernel's form."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.append(address.rpartition(":")[0])
    return found


# ---- what it shows ----


def test_page_has_the_figures_of_the_live_view(page: Page) -> None:
    status, facts = page.get("/api/live?run=1")
    assert status == 200
    assert (facts["tasks"], facts["over"], facts["goes_on"]) == (5, 2, True)
    assert facts["states"] == {"running": 1, "waiting": 2, "succeeded": 1, "failed": 1}
    assert [task["task"] for task in facts["living"]] == [RUNS]
    assert [bar["label"] for bar in facts["bars"]][-1] == "host"


def test_page_lists_tasks_by_query(page: Page) -> None:
    def listed(said: str) -> list[int]:
        return [task["id"] for task in page.get(f"/api/tasks?run=1&{said}")[1]["tasks"]]

    assert listed("group=waiting") == [3, 4]
    assert sorted(listed("group=ended")) == [0, 1]
    assert listed("group=failed") == [0]
    assert listed("group=all&sort=id&down=1") == [4, 3, 2, 1, 0]
    assert listed("group=all&find=my%20words") == [0]
    assert listed("group=all&find=sesame") == []


def test_page_does_not_show_secrets_of_commands(page: Page) -> None:
    said = json.dumps([page.get(f"/api/{what}?run=1") for what in ("live", "tasks", "report")])
    assert "abcdef" not in said
    assert "sesame" not in said
    assert "--api-key ***" in said


def test_page_follows_the_output_of_a_task(page: Page) -> None:
    status, log = page.get("/api/log?run=1&task=0")
    assert (status, log["text"], log["attempts"]) == (200, "these are my words\n", [1])
    assert page.get(f"/api/log?run=1&task=0&attempt=1&at={log['end']}")[1]["text"] == ""
    assert "start" in page.get("/api/log?run=1")[1]["text"]


def test_unknown_run_or_task_is_answered_with_an_error(page: Page) -> None:
    assert page.get("/api/live?run=99")[0] == 404
    assert page.get("/api/log?run=1&task=99")[0] == 404
    assert page.get("/api/elsewhere")[0] == 404
    assert page.get("/api/live?run=x%0d%0ay")[0] == 404
    assert page.get("/api/tasks?run=1&page=1e9")[0] == 400


def test_page_has_the_machine_and_the_users_runs(page: Page) -> None:
    status, facts = page.get("/api/live?run=all")
    assert status == 200
    assert [lease["task"] for lease in facts["leases"]] == [RUNS]
    assert [run["number"] for run in facts["runs"]] == [1]


def test_port_in_use_is_named(home: Home, page: Page) -> None:
    assert "already in use" in home.call("top", "--web", "--port", str(page.port), code=2).stderr
    assert "--port 80 has an effect only with --web" in home.call("top", "--port", "80", code=2).stderr
    assert "--port 99999: give a port from 0" in home.call("top", "--web", "--port", "99999", code=2).stderr


# ---- who may ask it ----


@fault(62)
def test_page_listens_on_loopback_only_and_changes_its_token(home: Home, page: Page) -> None:
    assert listening(page.port) == ["0100007F"]
    other = Page(home, "--all")
    assert (len(page.token), other.token != page.token) == (32, True)
    assert other.close() == ""
    assert "ssh -L" in page.said[0]


@fault(63)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_other_user_without_the_token_gets_no_data(home: Home, page: Page) -> None:
    def curl(*arguments: str) -> str:
        command = [*become(USERS[0]), "curl", "-s", "-w", "\n%{http_code}", *arguments]
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True, cwd="/", timeout=60).stdout
        except FileNotFoundError:
            pytest.skip("there is no curl")

    for path in (
        "/api/live?run=1",
        "/api/live?run=all",
        "/api/tasks?run=1",
        "/api/log?run=1&task=0",
        "/api/report?run=1",
    ):
        for guess in ("", "Bearer ", f"Bearer {page.token[:-1]}x", page.token, "Bearer \xff"):
            body, _, status = curl(page.root + path, "-H", f"Authorization: {guess}").rpartition("\n")
            assert status == "401"
            assert set(json.loads(body)) == {"error"}
    body, _, status = curl(page.root + "/api/ask", "-d", "{}", "-H", "Content-Type: application/json").rpartition("\n")
    assert status == "401"
    shell, _, status = curl(page.root + "/").rpartition("\n")
    assert status == "200"
    assert "jobs.csv" not in shell
    assert page.token not in shell
    assert home.states()[RUNS] == "running"


@fault(63)
def test_token_is_not_readable_by_other_users(home: Home, page: Page) -> None:
    pid = page.process.pid
    assert page.token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    kept = [path for path in home.state.rglob("*") if path.is_file()]
    assert [path for path in kept if page.token.encode() in path.read_bytes()] == []


@fault(64)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:7717"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_host_names_and_pages_are_refused_even_with_the_token(page: Page, headers: dict[str, str]) -> None:
    for path in ("/api/live?run=1", "/live.js"):
        status, facts = page.get(path, **headers)
        assert (status, set(facts)) == (403, {"error"})
    assert page.ask({"run": 1, "what": "cancel", "tasks": [RUNS]}, **headers)[0] == 403
    assert not any(name.startswith("access-control") for name in page.headers)


@fault(64)
def test_loopback_names_are_answered_whatever_the_port_of_a_tunnel(page: Page) -> None:
    for host in ("127.0.0.1:9", "localhost:9", "[::1]:9", "localhost"):
        assert page.get("/api/live?run=1", Host=host, Origin=f"http://{host}", Sec_Fetch_Site="same-origin")[0] == 200


@fault(64)
def test_get_or_a_missing_token_changes_nothing(home: Home, page: Page) -> None:
    doom = {"run": 1, "what": "cancel", "tasks": [RUNS, WAITS]}
    asked = json.dumps(doom).encode()
    assert page.get("/api/ask?run=1&what=cancel&tasks=2")[0] == 405
    assert page.request("POST", "/api/ask", asked, Content_Type="application/json")[0] == 401
    assert page.request("POST", f"/api/ask?token={page.token}", asked, Content_Type="application/json")[0] == 401
    assert (
        page.request("POST", "/api/ask", asked, Cookie=f"token={page.token}", Content_Type="application/json")[0] == 401
    )
    assert page.ask(doom, Content_Type="text/plain")[0] == 415
    assert page.request("OPTIONS", "/api/ask", Origin=page.root, Access_Control_Request_Method="POST")[0] == 501
    assert not any(name.startswith("access-control") for name in page.headers)
    assert home.states()[RUNS:] == ["running", "waiting", "waiting"]


@fault(64)
@pytest.mark.parametrize(
    "said",
    [
        [],
        "cancel",
        {"run": 1, "what": "cancel", "tasks": []},
        {"run": 1, "what": "stop", "tasks": [2]},
        {"run": "1", "what": "cancel", "tasks": [2]},
        {"run": 1, "what": "cancel", "tasks": ["2"]},
        {"run": 1, "what": "cancel", "tasks": [True]},
        {"run": 1, "what": "cancel", "tasks": [-2]},
        {"run": 1, "what": "cancel", "tasks": [2], "x": "y" * 70_000},
    ],
)
def test_invalid_request_is_refused(page: Page, said: Any) -> None:
    assert page.ask(said)[0] in (400, 413)


NO_HTTP = (
    b"\x16\x03\x01\x02",
    b"GET http://evil/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /api/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)


@fault(64)
def test_malformed_http_is_refused_and_does_not_delay_others(page: Page) -> None:
    for words in NO_HTTP:
        with socket.create_connection(("127.0.0.1", page.port), timeout=60) as connection:
            connection.sendall(words + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: connection.recv(4096), b""))
        assert not said.startswith(b"HTTP/1.1 200")
    waiting = [socket.create_connection(("127.0.0.1", page.port), timeout=60) for _ in range(8)]
    assert page.get("/api/live?run=1")[0] == 200
    for connection in waiting:
        connection.close()


class Drips:
    """Connections that send a byte of a request at intervals, each opened again when it is closed."""

    def __init__(self, port: int, number: int) -> None:
        self.closed = 0
        self._port = port
        self._open = [self._connect() for _ in range(number)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        made.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        made.setblocking(False)
        return made

    def _run(self) -> None:
        while not self._over.wait(0.2):
            for place, one in enumerate(self._open):
                try:
                    one.send(b"a")
                    if one.recv(1) != b"":
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                one.close()
                self.closed += 1
                self._open[place] = self._connect()

    def __enter__(self) -> Drips:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for one in self._open:
            one.close()


@fault(115)
def test_owner_is_answered_within_a_second_while_forty_slow_connections_are_open(page: Page) -> None:
    with Drips(page.port, 40):
        for _ in range(15):
            began = time.monotonic()
            assert page.get("/api/tasks?run=1&group=all")[0] == 200
            assert time.monotonic() - began < 1.0


@fault(115)
def test_slow_request_is_closed_after_five_seconds(page: Page) -> None:
    began = time.monotonic()
    with Drips(page.port, 1) as drips:
        wait_until(lambda: drips.closed, 15, 0.05)
    assert 4.0 < time.monotonic() - began < 10.0


@fault(115)
def test_request_that_stops_in_its_middle_is_closed_after_five_seconds(page: Page) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        while connection.recv(4096):
            pass
    assert 4.0 < time.monotonic() - began < 15.0


@fault(115)
def test_client_with_the_token_keeps_its_connection_while_others_come(page: Page) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    said = {"Authorization": f"Bearer {page.token}"}
    connection.request("GET", "/api/tasks?run=1&group=all", headers=said)
    assert connection.getresponse().read()
    kept = connection.sock
    with Drips(page.port, 40) as drips:
        wait_until(lambda: drips.closed)
        connection.request("GET", "/api/tasks?run=1&group=all", headers=said)
        assert connection.getresponse().status == 200
        assert connection.sock is kept
    connection.close()


@fault(66)
def test_page_allows_no_scripts_from_elsewhere(page: Page) -> None:
    assert page.request("GET", "/")[0] == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"


# ---- logs ----

ROADS = (
    "../../../../../../../../etc/passwd",
    "..%2f..%2fetc/passwd",
    "%2e%2e/%2e%2e/etc/passwd",
    "....//etc/passwd",
    "1/../2",
    "",
)


@fault(65)
@pytest.mark.parametrize("road", ROADS)
def test_no_path_reads_a_file(page: Page, road: str) -> None:
    quoted = quote(road, safe="")
    asked = [f"run=1&task={road}", f"run={road}&task=0", f"run=1&task={quoted}", f"run=1&task=0&attempt={quoted}"]
    for path in (f"/{road}", f"/api/{road}", *(f"/api/log?{said}" for said in asked)):
        _, body = page.request("GET", path, Authorization=f"Bearer {page.token}")
        assert b"root:" not in body


@fault(65)
def test_log_that_was_replaced_by_a_link_is_not_shown(home: Home, page: Page) -> None:
    """Replace the log by a link, as the task itself could."""
    log, folder, secret = home.state / "runs/1/tasks/0/1.log", home.state / "runs/1/tasks/0", home.root / "secret"
    secret.mkdir()
    (secret / "1.log").write_text("precious")
    log.rename(home.root / "away.log")
    for plant in (lambda: log.symlink_to(secret / "1.log"), lambda: os.mkfifo(log), log.mkdir):
        plant()
        status, facts = page.get("/api/log?run=1&task=0")
        assert (status, "is not shown" in facts["error"]) == (409, True)
        log.rmdir() if log.is_dir() and not log.is_symlink() else log.unlink()
    folder.rename(home.root / "away")
    folder.symlink_to(secret)
    status, facts = page.get("/api/log?run=1&task=0")
    assert (status, "a link is in its way" in facts["error"]) == (409, True)
    folder.unlink()
    (home.root / "away").rename(folder)
    (home.root / "away.log").rename(log)
    assert page.get("/api/log?run=1&task=0")[1]["text"] == "these are my words\n"


def test_why_on_the_page_equals_the_verb(home: Home, page: Page) -> None:
    assert page.ask({"run": 1, "what": "why", "tasks": [0]})[1]["lines"] == [home.call("why", "0").stdout.strip()]
    assert page.ask({"run": 1, "what": "why", "tasks": [WAITS]})[1]["lines"][0].startswith(f"task {WAITS} ")
    assert home.states()[RUNS:] == ["running", "waiting", "waiting"]


# ---- what its reader asks for ----


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Home, Page]]:
    """Start a run for one test, and its page."""
    home = begun(tmp_path)
    page = Page(home)
    yield home, page
    assert page.close() == ""
    home.end()


def test_cancel_and_retry_on_the_page_equal_the_verbs(own: tuple[Home, Page]) -> None:
    home, page = own
    status, told = page.ask({"run": 1, "what": "cancel", "tasks": [WAITS, 99]})
    assert (status, told["applied"]) == (200, "now")
    assert told["lines"] == ["task 3: cancelled", "task 99: is not a task of this run"]
    assert page.ask({"run": 1, "what": "retry", "tasks": []})[1]["lines"]
    wait_until(lambda: home.states()[WAITS] == "waiting", 60, 0.1)
    (home.root / "go").touch()
    wait_until(lambda: page.get("/api/live?run=1")[1]["stands"], 60, 0.1)
    status, told = page.ask({"run": 1, "what": "retry", "tasks": [0]})
    assert (status, told["applied"]) == (200, "at resume")
