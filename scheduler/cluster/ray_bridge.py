"""The bridge to a Ray cluster: it carries bytes between sockets of the head and agents on the nodes.

It is a process of its own, because Ray's library ends its process when the cluster is gone. No other module imports
`ray`. Its standard input is a socket of packets to the head:

    head to bridge   {"open": NODE, "name": NAME, "words": [PROGRAM, ...]}, and with it one end of a stream socket
    bridge to head   {"nodes": [{"id": NODE, "name": HOSTNAME}, ...],  first, and whenever the nodes have changed
                      "address": ADDRESS, "token": true or false}
                     {"ended": NODE, "reason": TEXT}                   what its program said when a link ended
                     {"failed": TEXT}                                  the cluster cannot be used; the bridge ends

On each node a Ray actor starts the agent and carries its input and output. An actor ends by itself when no bridge has
called it for some time, and its agent then reads the end of its input. So nothing is left in a cluster when a head
dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import socket
import sys
import threading
from collections.abc import Coroutine
from typing import Any

PIECE = 1 << 16
"""The most bytes in one call: Ray sends larger arguments through its object store."""
WAIT = 4.0
"""The seconds for which an actor waits for bytes; then it answers that there are none."""
PATIENCE = 15.0
"""The seconds after which an actor that has received no call ends."""
LOOK = 2.0
"""The seconds between two checks of the nodes of the cluster."""
MOST_WORDS = 2000
"""The number of bytes from the end of an agent's standard error that are sent after the agent's end."""
PACKET = 1 << 16
UNAUTHORISED = b"InvalidAuthToken"
"""A word in Ray's log when the cluster refuses the token; Ray itself tries again until its own time limit."""
REFUSED = "the cluster refuses this token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
APART = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as exc:
    os.write(2, f"{sys.argv[1]}: {exc.strerror}\\n".encode())
    os._exit(127)
"""
"""A program that starts another one detached from the actor, because Ray kills the child processes of a worker that
ends."""


class Carrier:
    """The actor on a node. It starts one agent at a time there and carries its input and output.

    Ray sends this class to the node as it is, so it may use only the standard library. The agent has the environment
    that Ray was started with there, without the variables that Ray sets for its workers (OMP_NUM_THREADS,
    CUDA_VISIBLE_DEVICES).
    """

    def __init__(self, patience: float) -> None:
        """Start the thread that ends this actor after `patience` seconds without a call."""
        import tempfile
        import time

        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            self._environ = dict(word.split(b"=", 1) for word in file.read().split(b"\0") if b"=" in word)
        self._clock = time.monotonic
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the actor
        self._link = 0
        self._ends: tuple[int, ...] = ()
        self._asked = self._clock()
        threading.Thread(target=self._leave_when_forgotten, args=(patience,), daemon=True).start()

    def open(self, words: list[str]) -> int:
        """Start an agent, end the input of the previous agent, and return the number of the new link."""
        import subprocess

        with self._lock:
            self._close()
            self._link += 1
            self._errors.truncate(0)
            their_input, my_output = os.pipe()
            my_input, their_output = os.pipe()
            command = [sys.executable, "-I", "-S", "-c", APART, *words]
            subprocess.run(  # noqa: TID251  # on the node there may be no scheduler to import
                command, stdin=their_input, stdout=their_output, stderr=self._errors, cwd="/", check=True,
                env=self._environ, start_new_session=True,
            )  # fmt: skip
            os.close(their_input)
            os.close(their_output)
            self._ends = my_input, my_output
            return self._link

    def read(self, link: int) -> bytes | None:
        """Return what the agent has written, nothing if it writes nothing for a while, or None at its end."""
        if (fd := self._end(link, 0)) is None:
            return None
        try:
            ready = select.select([fd], [], [], WAIT)[0]
            return (os.read(fd, PIECE) or None) if ready else b""
        finally:
            os.close(fd)
            self._asked = self._clock()

    def write(self, link: int, data: bytes) -> None:
        """Write bytes to the agent. If it has ended, they are lost."""
        if (fd := self._end(link, 1)) is None:
            return
        try:
            while data:
                data = data[os.write(fd, data) :]
        except BrokenPipeError:
            return
        finally:
            os.close(fd)

    def end_input(self, link: int) -> None:
        """Close the agent's input, so that the agent reads the end of its input."""
        with self._lock:
            if link == self._link and len(self._ends) > 1:
                os.close(self._ends[1])
                self._ends = self._ends[:1]

    def last_words(self) -> str:
        """Return the last line that the agent wrote to its standard error."""
        fd = self._errors.fileno()
        size = os.fstat(fd).st_size
        lines = os.pread(fd, MOST_WORDS, max(0, size - MOST_WORDS)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _end(self, link: int, which: int) -> int | None:
        with self._lock:
            self._asked = self._clock()
            return os.dup(self._ends[which]) if link == self._link and which < len(self._ends) else None

    def _close(self) -> None:
        for fd in self._ends:
            os.close(fd)
        self._ends = ()

    def _leave_when_forgotten(self, patience: float) -> None:
        import time

        while self._clock() - self._asked < patience:
            time.sleep(1.0)
        os._exit(0)


class Bridge:
    """The links of one head to the nodes of one cluster."""

    def __init__(self, ray: Any, head: socket.socket) -> None:
        """Prepare to serve the head, which is at the other end of a socket of packets."""
        self._ray = ray
        self._address = ray.get_runtime_context().gcs_address
        self._token = _needs_token()
        self._head = head
        self._head.setblocking(False)
        self._running = set[asyncio.Task[None]]()

    async def serve(self) -> None:
        """Carry bytes until the head closes its socket."""
        self._start(self._tell_nodes())
        loop = asyncio.get_running_loop()
        orders = asyncio.Event()
        loop.add_reader(self._head, orders.set)
        while await orders.wait():
            orders.clear()
            try:
                data, descriptors, _, _ = socket.recv_fds(self._head, PACKET, 1)
            except BlockingIOError:
                continue
            if not data:
                return
            order = json.loads(data)
            mine = socket.socket(fileno=descriptors[0])
            self._start(self._carry(order["open"], order["name"], order["words"], mine))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _tell(self, **message: Any) -> None:
        select.select([], [self._head], [])
        try:
            self._head.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)  # the head is gone: the actors end by themselves

    async def _tell_nodes(self) -> None:
        last = None
        while True:
            told = await asyncio.to_thread(self._ray.nodes)
            living = [(node["NodeManagerHostname"], node["NodeID"]) for node in told if node["Alive"]]
            nodes = [{"id": number, "name": name} for name, number in sorted(living)]
            if nodes != last:
                self._tell(nodes=nodes, address=self._address, token=self._token)
            last = nodes
            await asyncio.sleep(LOOK)

    async def _carry(self, node: str, name: str, words: list[str], mine: socket.socket) -> None:
        mine.setblocking(False)
        try:
            actor, link = await self._open(node, name, words)
            orders = asyncio.ensure_future(self._to_agent(mine, actor, link))
            try:
                await self._from_agent(mine, actor, link)
            finally:
                orders.cancel()
            reason = await actor.last_words.remote()
            self._ray.kill(actor)
        except Exception as exc:  # noqa: BLE001  # whatever Ray raises: this link has ended, the others go on
            reason = _first_line(exc)
        mine.close()
        self._tell(ended=node, reason=reason)

    async def _open(self, node: str, name: str, words: list[str]) -> tuple[Any, int]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        for left in (2, 1, 0):
            options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 8, "scheduling_strategy": place}
            made = self._ray.remote(Carrier).options(
                name=name, get_if_exists=True, lifetime="detached", **options
            )  # fmt: skip
            actor = made.remote(PATIENCE)
            try:
                return actor, await actor.open.remote(words)
            except self._ray.exceptions.RayActorError:
                if not left:
                    raise
                await asyncio.sleep(0.3)  # the earlier actor of this name was about to end
        raise AssertionError

    async def _to_agent(self, mine: socket.socket, actor: Any, link: int) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(mine, PIECE):
            await actor.write.remote(link, data)
        await actor.end_input.remote(link)

    async def _from_agent(self, mine: socket.socket, actor: Any, link: int) -> None:
        loop = asyncio.get_running_loop()
        while (data := await actor.read.remote(link)) is not None:
            await loop.sock_sendall(mine, data)


def _needs_token() -> bool:
    """Tell whether Ray uses a token for authentication in this environment."""
    try:
        from ray._private.authentication.authentication_utils import is_token_auth_enabled
    except ImportError:  # another release of Ray has another name for it
        return os.environ.get("RAY_AUTH_MODE") == "token"
    return bool(is_token_auth_enabled())


def _first_line(exc: BaseException) -> str:
    lines = [line for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0].strip() if lines else ''}"[:MOST_WORDS]


def why_unusable(exc: BaseException) -> str:
    """Return why Ray could not connect to the cluster, and for known causes what to do."""
    said = str(exc)
    versions = re.findall(r"(?:Ray|Python): (\S+)", said)
    if "Version mismatch" in said and len(versions) == 4:
        ray, python, ours, our_python = versions
        return (
            f"the cluster was started with Ray {ray} of Python {python}, and {sys.executable} has Ray {ours} of Python "
            f"{our_python}: install the same Ray here (pip install ray=={ray}), with that Python, or start the cluster "
            "with this one"
        )
    if "Could not find any running Ray instance" in said:
        return "no Ray cluster runs on this machine: start one with `ray start --head`, or name one: ray://HOST:PORT"
    return _first_line(exc)


def _give_up_when_refused(log: int, head: socket.socket, connected: threading.Event) -> None:
    while not connected.wait(0.2):
        if UNAUTHORISED in os.pread(log, 1 << 20, 0):
            head.send(json.dumps({"failed": REFUSED}).encode())
            os._exit(1)


def main() -> None:
    """Serve the head on standard input."""
    address, namespace = sys.argv[1:]
    head = socket.socket(fileno=os.dup(0))
    log = os.memfd_create("log")
    os.dup2(log, 1)
    os.dup2(log, 2)  # Ray prints to both streams
    connected = threading.Event()
    threading.Thread(target=_give_up_when_refused, args=(log, head, connected), daemon=True).start()
    try:
        import ray

        ray.init(address=address, namespace=namespace, log_to_driver=False, configure_logging=False)
    except Exception as exc:  # noqa: BLE001  # whatever Ray raises: the head says it to the user
        head.send(json.dumps({"failed": why_unusable(exc)}).encode())
        sys.exit(1)
    connected.set()
    asyncio.run(Bridge(ray, head).serve())


if __name__ == "__main__":
    main()
