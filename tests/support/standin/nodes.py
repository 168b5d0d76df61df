"""Machines for a run on several nodes: namespaces with a host name, processes, GPUs, state and leases of their own.

An `ssh` on PATH reaches them. It is a stand-in of the program alone: what it carries, and what it starts in the
namespace, is real. All nodes see the files of the machine, as a shared file system; the head's state is hidden.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import killing
from tests.support.gpu_home import HOLD, OF_THE_SHELL
from tests.support.standin.box import Box
from tests.support.waiting import wait_until

MISSING = "namespaces cannot be made here"
_SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2 node=$STANDIN_NODES/$2
[ -d "$node" ] || { echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255; }
[ -e "$node/cut" ] && { sleep 2; echo "ssh: connect to host $host port 22: Connection timed out" >&2; exit 255; }
kill -0 "$(cat "$node/pid" 2>/dev/null)" 2>/dev/null ||
    { echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255; }
relay='echo $$ >>"$0"; echo $$ >"$1"; exec cat'
sh -c "$relay" "$node/links" "$node/in.$$" |
    { sh "$node/enter" "$3"; kill "$(cat "$node/in.$$")" 2>/dev/null; } |
    sh -c "$relay" "$node/links" /dev/null
"""
"""The program `ssh`: its relays are stopped where the link is cut."""
_BOOT = """\
hostname {name}
mount --bind {folder}/machine-id /etc/machine-id
mount --bind {folder}/boot-id /proc/sys/kernel/random/boot_id
mount -t tmpfs none {hidden}
touch {folder}/up
exec sleep infinity
"""
_OTHER = """\
hostname other
mount --bind {root}/machine-id /etc/machine-id
mount --bind {root}/boot-id /proc/sys/kernel/random/boot_id
exec "$@"
"""
_ONCE = """\
cd "$(dirname "$0")"
exec 9>>"lives/$SCHEDULER_TASK_ID"
flock -n 9 || echo "twice $SCHEDULER_TASK_ID $(hostname)" >>told
echo "begin $SCHEDULER_TASK_ID $(hostname)" >>told
echo "output of $SCHEDULER_TASK_ID"
sleep "$1"
printf '{"given": %s}' "$SCHEDULER_TASK_ID" >"$SCHEDULER_RESULT"
echo "end $SCHEDULER_TASK_ID $(hostname)" >>told
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def can_be_made() -> bool:
    """Tell whether this machine lets us make namespaces."""
    if os.getuid() or not shutil.which("unshare") or not os.path.exists("/etc/machine-id"):
        return False
    return not subprocess.run(["unshare", "-mup", "--fork", "true"], capture_output=True, check=False).returncode


class Node:
    """One machine."""

    def __init__(self, folder: Path, name: str, hidden: Path, mark: str, **machine: Any) -> None:
        self.name, self.folder, self._hidden = name, folder, hidden
        folder.mkdir(parents=True)
        (folder / "machine-id").write_text(uuid.uuid4().hex)
        self.box = Box(folder / "gpus", salt=name, **machine)
        self.state, self.leases = folder / "state", folder / "leases"
        said = {
            "PATH": f"{Path(sys.executable).parent}:{_PATH}", "HOME": str(folder), "SCHEDULER_STATE": str(self.state),
            "SCHEDULER_LEASES": str(self.leases), "SCHEDULER_MACHINE_FILE": str(folder / "machine.toml"),
            "PYTHONPATH": str(killing.ROOT), **self.box.env,
        }  # fmt: skip
        self.env = said
        """The variables of a shell on the machine."""
        words = [f"{name}={text}" for name, text in said.items()]
        inside = shlex.join(["env", "-i", mark, *words, "sh", "-c"])
        (folder / "enter").write_text(f'exec nsenter -t "$(cat {folder}/pid)" -m -u -p -- {inside} "$1"\n')
        self._unshare: subprocess.Popen[bytes] | None = None
        self.boot()

    def boot(self) -> None:
        """Start the machine; `wait` waits until it is up."""
        (self.folder / "up").unlink(missing_ok=True)
        (self.folder / "boot-id").write_text(str(uuid.uuid4()))
        script = _BOOT.format(name=self.name, folder=self.folder, hidden=self._hidden)
        flags = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._unshare = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", script], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self) -> None:
        """Wait until the machine can be reached."""
        assert self._unshare is not None
        wait_until((self.folder / "up").exists, 10)
        (init,) = killing.children(self._unshare.pid)
        (self.folder / "pid").write_text(str(init))

    @property
    def init(self) -> int:
        """The first process of the machine, by its number outside."""
        return int((self.folder / "pid").read_text())

    def power_off(self) -> None:
        """End the machine at once, with all its processes."""
        killing.kill(self.init)
        (self.folder / "pid").unlink()
        assert self._unshare is not None
        self._unshare.wait(10)

    def processes(self, word: str = "") -> list[int]:
        """Return the processes of the machine that have a word on their command line, by their numbers outside."""
        space = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for pid in killing.processes():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == space and word in killing.command_line(pid):
                    found.append(pid)
        return [pid for pid in found if killing.is_alive(pid)]

    def agents(self) -> list[int]:
        """Return the agents on the machine."""
        return [
            pid for pid in self.processes("scheduler.app.cluster.agent") if "sh" not in killing.command_line(pid)[:4]
        ]

    def epoch(self) -> int:
        """Return the epoch of the scheduler whose agent was here last; 0 if none was."""
        said = [path.read_text().split() for path in self.state.glob("guests/*/agent")]
        return max((int(words[2]) for words in said if words), default=0)

    def put(self, path: Path, text: str) -> None:
        """Let a file have other content on this machine than elsewhere."""
        own = self.folder / f"own-{path.name}"
        own.write_text(text)
        subprocess.run(["nsenter", "-t", str(self.init), "-m", "mount", "--bind", own, path], check=True)

    def start(self, *arguments: str, cwd: Path) -> killing.Started:
        """Start the command line on this machine, as a user who is logged in there."""
        words = shlex.join([sys.executable, "-m", "scheduler", *arguments])
        return killing.Started(
            ["sh", str(self.folder / "enter"), f"cd {shlex.quote(str(cwd))} && exec {words}"], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def freeze(self, *, thaw: bool = False) -> None:
        """Stop everything on the machine, or let it go on."""
        for pid in self.processes():
            if pid != self.init:
                killing.kill(pid, signal.SIGCONT if thaw else signal.SIGSTOP)

    def cut(self) -> None:
        """Cut its links: nothing is carried any more, and no new link can be made."""
        (self.folder / "cut").touch()
        self._relays(signal.SIGSTOP)

    def mend(self) -> None:
        """Let its links carry again."""
        (self.folder / "cut").unlink(missing_ok=True)
        self._relays(signal.SIGCONT)

    def _relays(self, number: int) -> None:
        for line in (self.folder / "links").read_text().splitlines() if (self.folder / "links").exists() else ():
            if killing.command_line(int(line)).strip() == "cat":
                killing.kill(int(line), number)

    def close(self) -> None:
        """End the machine."""
        self.mend()
        self.box.close()
        if self._unshare is not None and self._unshare.poll() is None:
            if (self.folder / "pid").exists():
                killing.kill(self.init)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._unshare.wait(10)
            self._unshare.kill()  # a zombie of it may wait for a parent outside that never looks
            self._unshare.wait(10)


class Lab(killing.Home):
    """A head without GPUs, and nodes that it reaches by `ssh`."""

    def __init__(self, root: Path, *names: str, **machine: Any) -> None:
        super().__init__(root)
        self.env = {name: text for name, text in self.env.items() if not name.startswith(OF_THE_SHELL)}
        self.folder = root / "nodes"
        self.state.mkdir(mode=0o700)
        (root / "hold.py").write_text(HOLD)
        program = root / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(_SSH)
        program.chmod(0o755)
        self.env |= {"PATH": f"{program.parent}:{self.env['PATH']}", "STANDIN_NODES": str(self.folder)}
        self.nodes = {name: Node(self.folder / name, name, self.state, self.mark, **machine) for name in names}
        for node in self.nodes.values():
            node.wait()
        self.on = ("--on", f"ssh:{','.join(names)}")

    def move_head(self) -> None:
        """Let later commands run on another machine, which has a copy of the head's state."""
        subprocess.run(["cp", "-a", self.state, self.root / "copy"], check=True)
        (self.root / "machine-id").write_text(uuid.uuid4().hex)
        (self.root / "boot-id").write_text(str(uuid.uuid4()))
        self.command = ["unshare", "--mount", "--uts", "sh", "-c", _OTHER.format(root=self.root), "sh", *self.command]
        self.state = self.root / "copy"
        self.env["SCHEDULER_STATE"] = str(self.state)

    def once(self, tasks: int, seconds: float = 0.3) -> None:
        """Write a list of tasks that note on which machine they begin and end, and leave a result."""
        (self.root / "lives").mkdir(exist_ok=True)
        script = self.root / "once.sh"
        script.write_text(_ONCE)
        self.commands(*[f"sh {script} {seconds}" for _ in range(tasks)])

    def told(self, word: str) -> list[str]:
        """Return what the tasks noted so far with a word: each a task and its machine."""
        path = self.root / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        return [f"{task} {node}" for said, task, node in map(str.split, lines) if said == word]

    def check_once(self, tasks: int) -> None:
        """Check that every task has begun and ended once, and that its result and its output are at the head."""
        assert not self.told("twice")
        for word in ("begin", "end"):
            assert sorted(int(line.split()[0]) for line in self.told(word)) == [*range(tasks)]
        rows = self.tasks()
        assert [row["state"] for row in rows] == ["succeeded"] * tasks
        assert [row["result.given"] for row in rows] == [*range(tasks)]
        for row in rows:
            assert Path(row["log"]).read_text() == f"output of {row['id']}\n"

    @contextlib.contextmanager
    def going(self, *words: str, code: int | None = 0) -> Iterator[killing.Started]:
        """Run a command during the block; wait for its end, without a traceback."""
        with open(self.root / "said", "a") as said, self.start(*words, stdout=said, stderr=said) as process:
            yield process
            assert process.wait(60) == code or code is None, (self.root / "said").read_text()
        self.check()

    def check(self) -> None:
        """Check that no process printed a traceback."""
        said = (self.root / "said").read_text() + self.log()
        assert "Traceback" not in said, said

    def end(self) -> None:
        """End the machines, then what is left of the head."""
        for node in self.nodes.values():
            node.close()
        super().end()
