"""A stand-in for nvidia-cuda-mps-control: the same words, for clients of the stand-in's GPUs; records what it is told.

`-d` starts a daemon on the socket `control` in CUDA_MPS_PIPE_DIRECTORY, which counts as its own server. Without it the
lines of standard input are commands. Each is written to the file that STANDIN_MPS names, with its daemon's directory.
Where files of these names lie beside that file: `refuse` keeps daemons from starting, `hang` keeps them from answering,
`half` gives tasks 50 % of the threads, `busy` keeps `terminate_client` waiting until it is gone,
`old` makes it one that knows no `get_server_status`.

A client connects, says `client PID`, and stays connected; `ok`, or an error of CUDA, is the answer. Later it may be
told `810`, after `terminate_client`, or `719`, when a client said `fault`: then no client is taken (807) until all have
gone.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time

PIPES = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
NOTES = os.environ.get("STANDIN_MPS", "/dev/null")
KIND = socket.SOCK_SEQPACKET
LONGEST = 106


def note(words: str) -> None:
    with open(NOTES, "a") as file:
        file.write(f"{os.path.basename(os.path.dirname(PIPES))} {words}\n")


def is_set(switch: str) -> bool:
    return os.path.exists(os.path.join(os.path.dirname(NOTES), switch))


class Daemon:
    """The clients by their connection, and whether a fault keeps new ones out."""

    def __init__(self, listening: socket.socket) -> None:
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(listening, selectors.EVENT_READ)
        self.listening = listening
        self.clients: dict[socket.socket, int] = {}
        self.faulty = False
        self.percentage = 50.0 if is_set("half") else 100.0
        self.over = False

    def serve(self) -> None:
        while not self.over:
            for key, _ in self.waiting.select():
                if key.fileobj is self.listening:
                    end, _ = self.listening.accept()
                    self.waiting.register(end, selectors.EVENT_READ)
                else:
                    self.hear(key.fileobj)

    def hear(self, end: socket.socket) -> None:
        try:
            said = end.recv(4096).decode()
        except OSError:
            said = ""
        if not said:
            self.lose(end)
        elif said.startswith("client "):
            self.take(end, int(said.split()[1]))
        elif said == "fault":
            note(f"fault {self.clients[end]}")
            self.faulty = True
            self.tell_all("719")
        else:
            note(said)
            while is_set("hang"):
                time.sleep(0.01)
            self.tell(end, self.answer(said.split()) + "\n")

    def lose(self, end: socket.socket) -> None:
        self.waiting.unregister(end)
        end.close()
        if self.clients.pop(end, None) is not None and not self.clients:
            self.faulty = False

    def take(self, end: socket.socket, pid: int) -> None:
        if self.faulty:
            self.tell(end, "807")
            return
        note(f"client {pid}")
        self.clients[end] = pid
        self.tell(end, "ok")

    def tell(self, end: socket.socket, words: str) -> None:
        try:
            end.send(words.encode())
        except OSError:
            return

    def tell_all(self, words: str) -> None:
        for end in self.clients:
            self.tell(end, words)

    def answer(self, words: list[str]) -> str:
        match words:
            case ["get_default_active_thread_percentage"]:
                return str(self.percentage)
            case ["get_server_list"]:
                return str(os.getpid()) if self.clients else ""
            case ["get_server_status", _] if not is_set("old"):
                return "FAULT" if self.faulty else "ACTIVE"
            case ["get_client_list", _]:
                return "\n".join(map(str, self.clients.values()))
            case ["terminate_client", _, pid]:
                return self.terminate(int(pid))
            case ["quit", *_]:
                self.over = True
                return ""
        return f'Unknown command "{words[0]}"'

    def terminate(self, pid: int) -> str:
        while is_set("busy"):
            time.sleep(0.01)
        for end, client in list(self.clients.items()):
            if client == pid:
                self.tell(end, "810")
                note(f"terminated {pid}")
                return "0"
        return f"Client {pid} not found\n1"


def start() -> int:
    where = f"{PIPES}/control"
    if len(f"{PIPES}/control_privileged") > LONGEST:
        return 1
    if is_set("refuse"):
        print("Failed to initialize the stand-in")
        return 1
    os.makedirs(PIPES, exist_ok=True)
    try:
        with socket.socket(socket.AF_UNIX, KIND) as other:
            other.connect(where)
        print("An instance of this daemon is already running")
        return 1
    except OSError:
        if os.path.exists(where):
            os.unlink(where)
    ready, written = os.pipe()
    if os.fork():
        os.close(written)
        return 0 if os.read(ready, 1) else 1
    os.setsid()
    if os.fork():
        os._exit(0)
    listening = socket.socket(socket.AF_UNIX, KIND)
    listening.bind(where)
    listening.listen(64)
    note(f"start {os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
    os.write(written, b"!")
    os.close(written)
    Daemon(listening).serve()
    note("stop")
    os.unlink(where)
    os._exit(0)


def command() -> int:
    for line in sys.stdin:
        with socket.socket(socket.AF_UNIX, KIND) as end:
            try:
                end.connect(f"{PIPES}/control")
                end.send(line.strip().encode())
                said = end.recv(1 << 16).decode()
            except OSError:
                said = ""
        if not said:
            print("Cannot find MPS control daemon process", file=sys.stderr)
            return 1
        print(said.rstrip("\n"))
    return 0


if __name__ == "__main__":
    sys.exit(start() if sys.argv[1:] == ["-d"] else command())
