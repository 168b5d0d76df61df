"""A Ray cluster on stand-in machines: the real Ray, started inside each of them."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support import killing
from tests.support.standin.nodes import Lab, Node
from tests.support.standin.slurm import free_port

MISSING = "Ray is not installed"
_SMALL = ("--num-cpus=2", "--object-store-memory=80000000", "--disable-usage-stats")


def is_here() -> bool:
    """Tell whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


class RayNodes:
    """A cluster of the machines of a lab, with a token; the first machine has its head. A `late` one joins later."""

    def __init__(self, lab: Lab, late: str = "") -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        self._lab = lab
        self._folder = Path(tempfile.mkdtemp(prefix="ray"))  # paths of sockets must be short
        first, *others = [node for node in lab.nodes.values() if node.name != late]
        self.start_head(first)
        starts = [self._begin(node, self._joining) for node in others]
        for node, start in zip(others, starts, strict=True):
            self._wait(node, self._joining, start)

    def start_head(self, node: Node) -> None:
        """Start the head of the cluster on a machine."""
        port = self.address.rpartition(":")[2]
        folder = f"--temp-dir={self._folder}/{node.name}"
        words = ("--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false", folder)
        self._wait(node, words, self._begin(node, words))

    def start_node(self, node: Node) -> None:
        """Start Ray on a machine that it has left."""
        self._wait(node, self._joining, self._begin(node, self._joining))

    @property
    def _joining(self) -> tuple[str, ...]:
        return f"--address={self.address}", "--node-ip-address=127.0.0.1"

    def _wait(self, node: Node, words: Sequence[str], start: subprocess.Popen[bytes]) -> None:
        if start.wait(60):  # Ray gives a start 30 s, however busy the machine is: once more
            self.kill("ray", node)
            start = self._begin(node, words)
        assert start.wait(60) == 0, (node.folder / "ray.said").read_text()

    def _begin(self, node: Node, words: Sequence[str]) -> subprocess.Popen[bytes]:
        variables = [f"{name}={text}" for name, text in {**node.env, **self.env}.items()]
        enter = ["nsenter", "-t", str(node.init), "-m", "-u", "-p", "--", "env", "-i", self._lab.mark, *variables]
        program = Path(sys.executable).parent / "ray"
        with open(node.folder / "ray.said", "w") as said:
            return subprocess.Popen(
                [*enter, str(program), "start", *words, *_SMALL], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def kill(self, word: str, node: Node) -> None:
        """Kill the processes of Ray on a machine that have a word on their command line."""
        for pid in node.processes(word):
            killing.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Remove what Ray has left; its processes end with their machines."""
        for node in self._lab.nodes.values():
            for word in ("gcs_server", "raylet", "ray::", "ray/"):
                self.kill(word, node)
        shutil.rmtree(self._folder, ignore_errors=True)
