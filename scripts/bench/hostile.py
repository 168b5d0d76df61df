"""Measure what attacks of one user cost another user of the same machine; root is needed to be both.

    python scripts/bench/hostile.py [--goes 3] [--only NAME]

Alice runs a list of forty short tasks again and again, once in peace and once beside each attack of Bob: files of every
kind in the lease directory, locks, tickets that lie, a directory of Bob's own, processes without end, connections to
her page. Each line has the median time of her list, beside that in peace, and how many of her tasks succeeded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.paging import Page  # noqa: E402  # found through the line above
from tests.support.two_users import USERS, User, become, reachable_python  # noqa: E402

ALICE, BOB = USERS
TASKS = 40
HEAD = """
import fcntl, os, resource, signal, socket, sys, time
from scheduler.runtime.shim import pack_block
folder, alice, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.chdir(folder)
uid = os.getuid()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
said = {"version": 1, "shim": 0, "boot": "", "bytes": {"host": 1}, "load": {}}
held = []
def write(name, block, lock=False):
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, block)
    if lock:
        fcntl.flock(fd, fcntl.LOCK_EX)
        held.append(fd)
    else:
        os.close(fd)
def ready():
    print("ready", flush=True)
def wait():
    ready()
    sys.stdin.read()
def ticket(now):
    return pack_block({"version": 3, "task": 1, "devices": ["host"], "gpus": [], "host": 1 << 59, "cores": 0,
        "busy": 0, "alone": False, "closed": True, "bare": [], "last": 0, "urgent": True, "call": None,
        "since": now - 1e9, "looked": now})
"""
ATTACKS = {
    "100,000 files named like leases": """
for i in range(100_000):
    write(f"{uid}.9-f.{i}.1.{i:016x}", b"")
wait()
""",
    "100,000 files under names of Alice's leases": """
for i in range(100_000):
    write(f"{alice}.9-f.{i}.1.{i:016x}", b"")
wait()
""",
    "100,000 files of other names": """
for i in range(100_000):
    write(f"file{i}", b"")
wait()
""",
    "5,000 living leases": """
for i in range(5_000):
    write(f"{uid}.9-f.{i}.1.{i:016x}", pack_block(said), lock=True)
wait()
""",
    "5,000 living leases, rewritten without pause": """
for i in range(5_000):
    write(f"{uid}.9-f.{i}.1.{i:016x}", pack_block(said), lock=True)
ready()
while True:
    for fd in held:
        os.pwrite(fd, pack_block(said), 0)
""",
    "19,000 locked files that count for nothing": """
said |= {"locker": 1, "namespace": os.stat("/proc/self/ns/pid").st_ino}
for i in range(19_000):
    write(f"{uid}.9-f.{i}.1.{i:016x}", pack_block(said), lock=True)
wait()
""",
    "pipes, links, directories and sparse files of 1 TiB, 1,000 of each": """
for i in range(1_000):
    name = lambda kind: f"{uid}.9-f.{i}.{kind}.{i:016x}"
    os.mkfifo(name(1))
    os.symlink("/dev/zero", name(2))
    os.mkdir(name(3))
    fd = os.open(name(4), os.O_CREAT | os.O_RDWR, 0o644)
    os.truncate(fd, 1 << 40)
    os.close(fd)
wait()
""",
    "2,000 tickets that lie, renewed": """
for i in range(2_000):
    write(f"ticket.{uid}.{i}-f.{i:016x}", b"", lock=True)
ready()
while True:
    block = ticket(time.clock_gettime(time.CLOCK_BOOTTIME))
    for fd in held:
        os.pwrite(fd, block, 0)
    time.sleep(1)
""",
    "a ticket that lies under a new name each second": """
ready()
number = 0
while True:
    number += 1
    write(f"ticket.{uid}.{number}-f.{number:016x}", ticket(time.clock_gettime(time.CLOCK_BOOTTIME)), lock=True)
    time.sleep(1)
    os.close(held.pop())
""",
    "the mutex, passed on among eight processes": """
for _ in range(3):
    os.fork()
fd = os.open(".", os.O_RDONLY)
ready()
while True:
    fcntl.flock(fd, fcntl.LOCK_EX)
    time.sleep(0.03)
    fcntl.flock(fd, fcntl.LOCK_UN)
    time.sleep(0.002)
""",
    "the mutex for 2 of each 3 seconds": """
fd = os.open(".", os.O_RDONLY)
ready()
while True:
    fcntl.flock(fd, fcntl.LOCK_EX)
    time.sleep(2)
    fcntl.flock(fd, fcntl.LOCK_UN)
    time.sleep(1)
""",
    "processes without end, each of a millisecond": """
ready()
while True:
    for _ in range(8):
        if os.fork() == 0:
            os._exit(0)
    for _ in range(8):
        os.wait()
""",
    "the directory is Bob's, and is emptied without pause": """
ready()
while True:
    for name in os.listdir("."):
        try:
            os.unlink(name)
        except OSError:
            pass
    time.sleep(0.01)
""",
}
SLOW_READER = """
made = []
for _ in range(1_000):
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(b"GET / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
    made.append(one)
wait()
"""
STORM = """
ready()
made = []
while True:
    try:
        one = socket.create_connection(("127.0.0.1", port), 1)
        one.send(b"GET / HTTP/1.1\\r\\nX: ")
        made.append(one)
    except OSError:
        pass
    if len(made) > 900:
        made.pop(0).close()
    time.sleep(0.002)
"""
ON_THE_PAGE = {
    "1,000 connections to the page that read nothing": SLOW_READER,
    "a new connection to the page every 2 ms": STORM,
}


class Town:
    """A machine of two users."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o755)
        self.root = root
        self.python, self.code = reachable_python(root)
        self.rounds = 0

    def alice(self) -> User:
        """Return Alice with a new home and a new lease directory."""
        self.rounds += 1
        place = self.root / str(self.rounds)
        place.mkdir(mode=0o755)
        leases = place / "leases"
        leases.mkdir()
        leases.chmod(0o1777)
        made = User(place / "alice", ALICE, self.python, self.code, leases)
        made.prepare(0, random.Random(1))
        made.write("jobs.csv", "Command", *["true"] * TASKS)
        return made

    @contextlib.contextmanager
    def attack(self, alice: User, script: str, port: int = 0) -> Iterator[None]:
        """Let Bob attack for the length of the block."""
        words = [str(alice.leases), str(ALICE), str(port)]
        bob = subprocess.Popen(
            [*become(BOB), self.python, "-c", HEAD + script, *words],
            cwd="/", env={"PYTHONPATH": str(self.code)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert bob.stdout is not None
        assert bob.stdout.readline() == b"ready\n", "the attack has failed"
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bob.pid, 9)
            bob.wait()

    def measure(self, script: str, goes: int) -> tuple[float, int]:
        """Return the median seconds of Alice's list, and how many of her tasks have succeeded in all goes."""
        alice = self.alice()
        if "os.unlink(name)" in script:
            os.chown(alice.leases, BOB, BOB)
        try:
            with self.attack(alice, script) if script else contextlib.nullcontext():
                return lists(alice, goes)
        finally:
            alice.end()
            shutil.rmtree(alice.root.parent, ignore_errors=True)

    def measure_page(self, script: str, goes: int) -> tuple[float, int]:
        """Return the longest answer of Alice's page in seconds, and how many answers came."""
        alice = self.alice()
        lists(alice, 1)
        page = Page(alice)
        try:
            with self.attack(alice, script, page.port) if script else contextlib.nullcontext():
                answers = [answer(page) for _ in range(20 * goes)]
            return max(seconds for seconds, _ in answers), sum(came for _, came in answers)
        finally:
            page.close()
            alice.end()
            shutil.rmtree(alice.root.parent, ignore_errors=True)


def answer(page: Page) -> tuple[float, bool]:
    """Return the seconds until her page has answered or closed the connection, and whether it has answered."""
    began, came = time.monotonic(), False
    with contextlib.suppress(OSError):
        came = page.get("/api/tasks?run=1&group=all")[0] == 200
    return time.monotonic() - began, came


def lists(alice: User, goes: int) -> tuple[float, int]:
    """Run her list again and again."""
    times, succeeded = [], 0
    for _ in range(goes):
        began = time.monotonic()
        words = ("run", "jobs.csv", "--new", "--plain", "--devices", "host:1GiB", "--max-load", "1000")
        code = alice.start(*words, "--memory", "10MiB").wait(120)
        times.append(time.monotonic() - began)
        said = alice.call("results", "--json").stdout
        succeeded += sum(task["state"] == "succeeded" for task in json.loads(said)["tasks"]) if code == 0 else 0
    return statistics.median(times), succeeded


def main() -> int:
    """Measure every attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goes", type=int, default=3)
    parser.add_argument("--only", default="", help="attacks whose names contain this")
    args = parser.parse_args()
    if os.geteuid() != 0:
        print("this bench needs root: it is two users")
        return 2
    root, faults = Path(tempfile.mkdtemp(prefix="hostile-")), 0
    try:
        town = Town(root)
        peace, _ = town.measure("", args.goes)
        print(f"in peace: a list of {TASKS} tasks {peace:.2f} s", flush=True)
        for name, script in ATTACKS.items():
            if args.only not in name:
                continue
            seconds, succeeded = town.measure(script, args.goes)
            faults += succeeded < TASKS * args.goes
            print(f"{name}: {seconds:.2f} s, {succeeded} of {TASKS * args.goes} succeeded", flush=True)
        for name, script in {"page in peace": "", **ON_THE_PAGE}.items():
            if args.only not in name:
                continue
            seconds, came = town.measure_page(script, args.goes)
            faults += came < 20 * args.goes
            print(f"{name}: slowest answer {seconds:.2f} s, {came} of {20 * args.goes} came", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
