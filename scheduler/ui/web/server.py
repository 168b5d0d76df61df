"""The server of the page in the browser, on loopback: it checks access and answers requests with data from a feed."""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import socket
import sys
import threading
import time
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
"""The host names by which a browser may address the server; through a tunnel, the port changes, but not the name."""
LARGEST = 1 << 16
"""The most bytes in the body of a request."""
MOST = 32
"""The most open connections; the limit makes clients without the token cheap."""
PATIENCE = 20.0
"""Seconds for which a connection may be silent between two requests, or may leave its answer unread."""
REQUEST = 5.0
"""Seconds for a complete request, from the start of the connection or from the first byte of a later request."""
ASKED = ("cancel", "retry", "why")
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "LICENSE": "text/plain"}
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
class TaskQuery:
    """A query for tasks of a run: group of states, search text, order and page."""

    group: str = "all"
    find: str = ""
    sort: str = ""
    down: bool = False
    page: int = 0


class PageFeed(Protocol):
    """The source of the page's data. Several threads may call it at once; every method may raise SchedulerError."""

    def live(self, run: str, seen: str) -> Mapping[str, Any]:
        """Return the status of a run, or of the machine (`all`), as soon as it differs from `seen`, or unchanged after
        a short wait.
        """

    def tasks(self, run: str, wanted: TaskQuery) -> Mapping[str, Any]:
        """Return one page of a run's tasks."""

    def task(self, run: str, task: int) -> Mapping[str, Any]:
        """Return the attempts, the memory and the curves of a task."""

    def log(self, run: str, task: int | None, attempt: int, at: int) -> Mapping[str, Any]:
        """Return the log of a task, or of the run, from the offset `at`; -1 stands for its last lines."""

    def report(self, run: str) -> Mapping[str, Any]:
        """Return the report data of a run."""

    def ask(self, run: str, what: str, tasks: tuple[int, ...]) -> Mapping[str, Any]:
        """Cancel or retry tasks, durably when this returns; or explain their states (`why`), which changes nothing."""


class WebError(Exception):
    """The error that a request is refused, with the reason."""

    def __init__(self, status: HTTPStatus, says: str) -> None:
        super().__init__(says)
        self.status = status


class RequestStream(io.RawIOBase):
    """The stream of bytes of a connection; each request must arrive within its time limit."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = time.monotonic() + REQUEST

    def readable(self) -> bool:
        """Return True, as a readable file does."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for more bytes; raise TimeoutError when the time limit of the request has passed."""
        left = (self._until - time.monotonic()) if self._until else PATIENCE
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        try:
            read = self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(PATIENCE)
        self._until = self._until or time.monotonic() + REQUEST
        return read

    def next(self) -> None:
        """Expect another request, whose time limit begins with its first byte."""
        self._until = 0.0


class Connections:
    """The open connections, oldest first, and whether each has shown the token."""

    def __init__(self) -> None:
        self._known: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()

    def add(self, connection: socket.socket) -> bool:
        """Add a connection; if MOST connections are open, it replaces the oldest one that has not shown the token.
        Return False if all have shown it.
        """
        with self._lock:
            if len(self._known) >= MOST:
                oldest = next((one for one, trusted in self._known.items() if not trusted), None)
                if oldest is None:
                    return False
                del self._known[oldest]
                with contextlib.suppress(OSError):  # its thread is woken, and closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._known[connection] = False
        return True

    def trust(self, connection: socket.socket) -> None:
        """Note that a connection has shown the token, so that no other connection replaces it."""
        with self._lock:
            if connection in self._known:
                self._known[connection] = True

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection from the list; afterwards, no other thread shuts it down."""
        with self._lock:
            self._known.pop(connection, None)


class PageServer(ThreadingHTTPServer):
    """An HTTP server on loopback with a thread for each connection, and at most MOST connections."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, port: int, feed: PageFeed, token: str, files: Mapping[str, bytes]) -> None:
        super().__init__((LOOPBACK, port), PageHandler)
        self.feed = feed
        self.token = token
        self.files = files
        self.connections = Connections()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind to the address without the DNS lookup of the host name that http.server makes."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread of its own, or close it if there are too many."""
        if self.connections.add(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and remove it from the list of open ones."""
        self.connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore an error that occurs because the browser has closed the connection."""
        exc = sys.exception()
        if not isinstance(exc, ConnectionError | TimeoutError):
            print(f"hint:   the page lost a connection: {exc!r}", file=sys.stderr)


class PageHandler(BaseHTTPRequestHandler):
    """One connection; every request is checked before it is carried out."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def setup(self) -> None:
        """Set up the connection, with the limit on the time that a request may take."""
        super().setup()
        self._request = RequestStream(self.connection)
        self.rfile = io.BufferedReader(self._request)

    def handle_one_request(self) -> None:
        """Answer one request; the next one has its own time limit."""
        super().handle_one_request()
        self._request.next()

    def do_GET(self) -> None:
        """Answer a request for data, which never changes anything."""
        self._guarded(self._look)

    def do_POST(self) -> None:
        """Answer a request for a change."""
        self._guarded(self._ask)

    # ---- authorisation ----

    def _guarded(self, answer: Callable[[str], Mapping[str, Any] | None]) -> None:
        try:
            self._judge()
            path = urlsplit(self.path).path
            facts = answer(path)
            if facts is not None:
                self._send(HTTPStatus.OK, "application/json", json.dumps(facts).encode())
        except WebError as exc:
            self.send_error(exc.status, str(exc))
        except SchedulerError as exc:
            self.send_error(_status(exc), str(exc))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as exc:  # noqa: BLE001 - the page must survive, and the error is printed where it was started
            print(f"hint:   the page could not answer {self.path!r}: {exc!r}", file=sys.stderr)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error of the page")

    def _judge(self) -> None:
        """Refuse requests that name another host (DNS rebinding) or come from another page."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or _name(hosts[0]) not in NAMES or not self.path.startswith("/"):
            raise WebError(
                HTTPStatus.FORBIDDEN,
                f"this page answers on {LOOPBACK} only: open the address that scheduler top --web printed",
            )
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{hosts[0]}":
            raise WebError(HTTPStatus.FORBIDDEN, "requests from other pages are refused")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not self._is_a_visit():
            raise WebError(HTTPStatus.FORBIDDEN, "requests from other pages are refused")

    def _is_a_visit(self) -> bool:
        """Tell whether the request only opens the empty page by a link; this page contains no data."""
        return self.command == "GET" and self.path == "/" and self.headers.get("Sec-Fetch-Dest") == "document"

    def _authorize(self) -> None:
        said = self.headers.get("Authorization", "")
        if not hmac.compare_digest(said.encode("latin-1", "replace"), f"Bearer {self.server.token}".encode()):
            raise WebError(
                HTTPStatus.UNAUTHORIZED, "the token is missing: open the address that scheduler top --web printed"
            )
        self.server.connections.trust(self.connection)

    # ---- answers ----

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
                wanted = TaskQuery(
                    said.get("group", "all"), said.get("find", ""), said.get("sort", ""), said.get("down") == "1",
                    _number(said, "page", 0),
                )  # fmt: skip
                return feed.tasks(run, wanted)
            case "/api/task":
                return feed.task(run, _number(said, "task", 0))
            case "/api/log":
                task = _number(said, "task", 0) if "task" in said else None
                return feed.log(run, task, _number(said, "attempt", 0), _number(said, "at", -1))
            case "/api/report":
                return feed.report(run)
            case "/api/ask":
                raise WebError(HTTPStatus.METHOD_NOT_ALLOWED, "GET changes nothing: use POST")
        raise WebError(HTTPStatus.NOT_FOUND, "there is no such page")

    def _ask(self, path: str) -> Mapping[str, Any]:
        self._authorize()
        if path != "/api/ask":
            raise WebError(HTTPStatus.NOT_FOUND, "there is no such page")
        if self.headers.get_content_type() != "application/json":
            raise WebError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON (Content-Type: application/json)")
        said = self._body()
        run, what, tasks = said.get("run"), said.get("what"), said.get("tasks")
        if not isinstance(run, int) or what not in ASKED or not isinstance(tasks, list):
            raise WebError(
                HTTPStatus.BAD_REQUEST, f"the body must be {{run, what, tasks}}; what is one of {', '.join(ASKED)}"
            )
        if not all(type(task) is int and task >= 0 for task in tasks) or (what != "retry" and not tasks):
            raise WebError(HTTPStatus.BAD_REQUEST, "tasks must be a list of task ids")
        return self.server.feed.ask(str(run), what, tuple(tasks))

    def _body(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or self.headers.get("Transfer-Encoding"):
            raise WebError(HTTPStatus.LENGTH_REQUIRED, "a Content-Length is needed")
        if int(length) > LARGEST:
            raise WebError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have at most {LARGEST} bytes")
        try:
            said = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise WebError(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
        return said

    # ---- responses ----

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
        """Send one sentence as JSON and close the connection, because unread parts of a refused request may follow."""
        self.close_connection = True
        try:
            status = HTTPStatus(code)
            self._send(status, "application/json", json.dumps({"error": message or status.phrase}).encode())
        except OSError:
            return

    def version_string(self) -> str:
        """Return the server's name without version numbers."""
        return "scheduler"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing about a request."""


def _name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _number(said: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number from the fields of a query, or `default` if it is missing."""
    text = said.get(name, "")
    digits = text.removeprefix("-")
    if not text:
        return default
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 15:
        raise WebError(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number")
    return int(text)


def _status(exc: SchedulerError) -> HTTPStatus:
    if isinstance(exc, NoSuchRun):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(exc, UsageError) else HTTPStatus.CONFLICT


def listen(port: int | None, feed: PageFeed, token: str, files: Mapping[str, bytes], usual: int) -> PageServer:
    """Listen on the given port; without one, on the usual port, or on a free port if the usual one is taken. Raise
    UsageError if that fails.
    """
    try:
        return PageServer(usual if port is None else port, feed, token, files)
    except OSError as exc:
        if port is not None:
            why = (exc.strerror or str(exc)).lower()
            raise UsageError(f"--port {port}: {why}; without --port a free one is used") from exc
        return PageServer(0, feed, token, files)


def lines(port: int, token: str, what: str, host: str) -> list[str]:
    """Return the lines to print: the address of the page, how to reach it from another machine, and how to end the
    server.
    """
    return [
        f"remote  on your own machine first: ssh -L {port}:{LOOPBACK}:{port} {host}",
        f"open    http://{LOOPBACK}:{port}/#token={token}",
        f"        {what}; the address allows cancel and retry: keep it secret. Ctrl-C ends the page, not the run",
    ]
