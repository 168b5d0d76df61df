"""`scheduler top --web` as a test starts it, and arbitrary requests to it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from typing import Any

from tests.support.killing import Home


class Page:
    """A served page, until it is closed."""

    def __init__(self, home: Home, *arguments: str) -> None:
        how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = home.start(
            "top", *arguments, "--web", *([] if "--port" in arguments else ["--port", "0"]), **how
        )
        assert self.process.stdout is not None
        self.said = [self.process.stdout.readline() for _ in range(3)]
        found = re.search(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]+)", "".join(self.said))
        assert found is not None, "".join(self.said)
        self.port, self.token = int(found[1]), found[2]

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        """Return the address of the page with its token."""
        return f"{self.root}/#token={self.token}"

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Send a request; return status and body. Underscores in header names become hyphens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            self.headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Send a GET request with the token."""
        status, body = self.request("GET", path, Authorization=f"Bearer {self.token}", **headers)
        return status, json.loads(body)

    def ask(self, said: Any, **headers: str) -> tuple[int, Any]:
        """Send a request for a change, with the token and all headers unless they are given."""
        usual = {"Authorization": f"Bearer {self.token}", "Content_Type": "application/json"}
        status, body = self.request("POST", "/api/ask", json.dumps(said).encode(), **{**usual, **headers})
        return status, json.loads(body)

    def close(self) -> str:
        """End it as Ctrl-C does; what it complained of."""
        self.process.send_signal(2)
        _, complaints = self.process.communicate(timeout=60)
        return str(complaints)
