"""Serves the page in the browser over loopback: who may ask it, and what is answered; it is fed, it reads nothing."""

from __future__ import annotations

import hmac
import json
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from scheduler.errors import NoSuchRun, SchedulerError, UsageError
from scheduler.values import dataclass

LOOPBACK = "127.0.0.1"
NAMES = frozenset({LOOPBACK, "localhost", "[::1]"})
"""What a browser may call us by; through a tunnel the port is another one, the name never is."""
LARGEST = 1 << 16
"""Bytes of what is asked for."""
MOST = 32
"""Connections at once: whoever may not ask anything shall not cost much either."""
PATIENCE = 20.0
"""Seconds that a connection may say nothing."""
ASKED = ("cancel", "retry", "why")
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks of a run are to be shown: one page of those that stand so and say so, in this order."""

    group: str = "all"
    find: str = ""
    sort: str = ""
    down: bool = False
    page: int = 0


class Feed(Protocol):
    """What the page shows; called by several threads at once. All of it raises SchedulerError."""

    def live(self, run: str, seen: str) -> Mapping[str, Any]:
        """How a run stands, or the machine (`all`); returns once that is something else than was seen, or soon."""

    def tasks(self, run: str, wanted: Wanted) -> Mapping[str, Any]:
        """Some of a run's tasks."""

    def log(self, run: str, task: int | None, attempt: int, at: int) -> Mapping[str, Any]:
        """What a task printed from a place on, or the run itself; -1: its last lines."""

    def report(self, run: str) -> Mapping[str, Any]:
        """All that a report tells of a run."""

    def ask(self, run: str, what: str, tasks: tuple[int, ...]) -> Mapping[str, Any]:
        """Cancel or retry, which is durable when it returns; or why, which changes nothing."""


class Refused(Exception):
    """What is not answered, and why."""

    def __init__(self, status: HTTPStatus, says: str) -> None:
        super().__init__(says)
        self.status = status


class Server(ThreadingHTTPServer):
    """Listens on loopback alone; each connection has a thread, and there are only so many."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, port: int, feed: Feed, token: str, files: Mapping[str, bytes]) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.feed = feed
        self.token = token
        self.files = files
        self._free = threading.BoundedSemaphore(MOST)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Without asking anybody for our name, as http.server would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give it a thread, or hang up."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nothing to tell."""
        exc = sys.exception()
        if not isinstance(exc, ConnectionError | TimeoutError):
            print(f"hint:   the page lost a connection: {exc!r}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """One connection: every request is judged before anything is done for it."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Look; nothing is ever changed by it."""
        self._guarded(self._look)

    def do_POST(self) -> None:
        """Ask for a change."""
        self._guarded(self._ask)

    # ---- who may ask ----

    def _guarded(self, answer: Callable[[str], Mapping[str, Any] | None]) -> None:
        try:
            self._judge()
            path = urlsplit(self.path).path
            facts = answer(path)
            if facts is not None:
                self._send(HTTPStatus.OK, "application/json", json.dumps(facts).encode())
        except Refused as exc:
            self.send_error(exc.status, str(exc))
        except SchedulerError as exc:
            self.send_error(_status(exc), str(exc))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as exc:  # noqa: BLE001 - the page must survive, and whoever started it is told
            print(f"hint:   the page could not answer {self.path!r}: {exc!r}", file=sys.stderr)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a fault of the scheduler's page")

    def _judge(self) -> None:
        """Refuse whoever comes by another name (DNS rebinding) or from a page that is not ours."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or _name(hosts[0]) not in NAMES or not self.path.startswith("/"):
            raise Refused(HTTPStatus.FORBIDDEN, f"this page is {LOOPBACK}'s alone: open the address that was printed")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{hosts[0]}":
            raise Refused(HTTPStatus.FORBIDDEN, "another page's requests are not answered")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not self._is_a_visit():
            raise Refused(HTTPStatus.FORBIDDEN, "another page's requests are not answered")

    def _is_a_visit(self) -> bool:
        """Whether somebody follows a link to the empty page, which says nothing about anybody."""
        return self.command == "GET" and self.path == "/" and self.headers.get("Sec-Fetch-Dest") == "document"

    def _authorize(self) -> None:
        said = self.headers.get("Authorization", "")
        if not hmac.compare_digest(said.encode("latin-1", "replace"), f"Bearer {self.server.token}".encode()):
            raise Refused(
                HTTPStatus.UNAUTHORIZED, "this needs the token: open the address that scheduler top --web printed"
            )

    # ---- what is answered ----

    def _look(self, path: str) -> Mapping[str, Any] | None:
        name = "index.html" if path == "/" else path[1:]
        if name in self.server.files:
            self._send(HTTPStatus.OK, KINDS[name.rpartition(".")[2]], self.server.files[name])
            return None
        self._authorize()
        said = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        feed, run = self.server.feed, said.get("run", "")
        match path:
            case "/api/live":
                return feed.live(run, said.get("seen", ""))
            case "/api/tasks":
                wanted = Wanted(
                    said.get("group", "all"), said.get("find", ""), said.get("sort", ""), said.get("down") == "1",
                    _number(said, "page", 0),
                )  # fmt: skip
                return feed.tasks(run, wanted)
            case "/api/log":
                task = _number(said, "task", 0) if "task" in said else None
                return feed.log(run, task, _number(said, "attempt", 0), _number(said, "at", -1))
            case "/api/report":
                return feed.report(run)
            case "/api/ask":
                raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "nothing is changed by GET")
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _ask(self, path: str) -> Mapping[str, Any]:
        self._authorize()
        if path != "/api/ask":
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "write JSON")
        said = self._body()
        run, what, tasks = said.get("run"), said.get("what"), said.get("tasks")
        if not isinstance(run, int) or what not in ASKED or not isinstance(tasks, list):
            raise Refused(HTTPStatus.BAD_REQUEST, f"write {{run, what: {', '.join(ASKED)}, tasks}}")
        if not all(type(task) is int and task >= 0 for task in tasks) or (what != "retry" and not tasks):
            raise Refused(HTTPStatus.BAD_REQUEST, "tasks are ids")
        return self.server.feed.ask(str(run), what, tuple(tasks))

    def _body(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or self.headers.get("Transfer-Encoding"):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "say how long it is")
        if int(length) > LARGEST:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{LARGEST} bytes at most")
        try:
            said = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "this is no JSON object")
        return said

    # ---- how it is answered ----

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """One sentence as JSON; the connection ends, since what follows may be the rest of what was refused."""
        self.close_connection = True
        try:
            status = HTTPStatus(code)
            self._send(status, "application/json", json.dumps({"error": message or status.phrase}).encode())
        except OSError:
            return

    def version_string(self) -> str:
        """Nothing about which version of what answers."""
        return "scheduler"

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads a line for each request."""


def _name(host: str) -> str:
    """A Host header's name, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _number(said: Mapping[str, str], name: str, default: int) -> int:
    """A whole number of a query."""
    text = said.get(name, "")
    digits = text.removeprefix("-")
    if not text:
        return default
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 15:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is a number")
    return int(text)


def _status(exc: SchedulerError) -> HTTPStatus:
    if isinstance(exc, NoSuchRun):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(exc, UsageError) else HTTPStatus.CONFLICT


def listen(port: int | None, feed: Feed, token: str, files: Mapping[str, bytes], usual: int) -> Server:
    """Listen on a port; without one on the usual, or any free one where that is taken. Raises UsageError."""
    try:
        return Server(usual if port is None else port, feed, token, files)
    except OSError as exc:
        if port is not None:
            why = (exc.strerror or str(exc)).lower()
            raise UsageError(f"--port {port}: {why}; without --port a free one is taken") from exc
        return Server(0, feed, token, files)


def lines(port: int, token: str, what: str, who: str) -> list[str]:
    """What is printed where it was started: how to come here from elsewhere, the address, how it ends."""
    return [
        f"from another machine first: ssh -L {port}:{LOOPBACK}:{port} {who}",
        f"open    http://{LOOPBACK}:{port}/#token={token}",
        f"        {what}; whoever has this address can cancel and retry. Ctrl-C ends the page, not the run",
    ]
