"""The cost of watching a run: `python scripts/bench/watching.py [--running 50] [--seconds 40]`.

Tasks that write a metric a second run at once, on the host. Printed: the share of a core that its own processes
use (the scheduler, its fork server and its samplers, without shims and tasks) with the live view, with plain lines, and
with plain lines while the tasks write nothing. The live view and metrics may cost 3 % of a core more than the last.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from functools import partial
from pathlib import Path

from measuring import environ, scheduler

BOUND = 0.03
WARM = 15.0
"""Seconds after the last start before the measurement begins: short-lived estimates have settled."""
TICK = os.sysconf("SC_CLK_TCK")
WRITES = 'n=0; while :; do n=$((n+1)); echo "epoch $n/9999 val_loss=0.$((9999-n)) val_acc=0.$n"; sleep 1; done'
STEPS = {
    "live view, a metric a second": (True, WRITES),
    "plain lines, a metric a second": (False, WRITES),
    "plain lines, tasks write nothing": (False, "while :; do sleep 1; done"),
}


def own_seconds(pid: int) -> float:
    """Return the processor seconds of a scheduler and of its children, without their children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return sum(_seconds(one) for one in (str(pid), *children))


def _seconds(pid: str) -> float:
    try:
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(said[11]) + int(said[12])) / TICK


def share(folder: Path, running: int, seconds: float, command: str, *, view: bool) -> float:
    """Return the share of a core that a run uses while all its tasks run."""
    folder.mkdir()
    (folder / "task.sh").write_text(command + "\n", encoding="utf-8")
    rows = "".join(f"sh task.sh {number}\n" for number in range(running))
    (folder / "jobs.csv").write_text("Command\n" + rows, encoding="utf-8")
    env = environ(folder, TERM="xterm-256color")
    argv = [scheduler(), "run", "jobs.csv", "--devices", "host", "--slots", str(running), "--cpus", "0.01"]
    reader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    out = terminal if view else subprocess.DEVNULL
    run = subprocess.Popen(
        argv, cwd=folder, env=env, stdin=out, stdout=out, stderr=out, start_new_session=True,
        preexec_fn=partial(fcntl.ioctl, terminal, termios.TIOCSCTTY, 0) if view else None,  # noqa: PLW1509 - one call
    )  # fmt: skip
    written = bytearray()
    threading.Thread(target=_drain, args=(reader, written), daemon=True).start()
    try:
        while _running(folder) < running:
            time.sleep(0.5)
        time.sleep(WARM)
        drawn, before, began = len(written), own_seconds(run.pid), time.monotonic()
        time.sleep(seconds)
        used = (own_seconds(run.pid) - before) / (time.monotonic() - began)
        if view and len(written) - drawn < 100 * seconds:
            raise RuntimeError(f"the live view drew only {len(written) - drawn} bytes")
        return used
    finally:
        subprocess.run([scheduler(), "stop", "--now"], cwd=folder, env=env, check=False, capture_output=True)
        run.wait(60)
        os.close(terminal)


def _running(folder: Path) -> int:
    return sum(1 for _ in folder.glob("state/runs/1/tasks/*/1.log"))


def _drain(reader: int, written: bytearray) -> None:
    try:
        while data := os.read(reader, 65536):
            written += data
    except OSError:
        return


def main() -> int:
    """Print a line for each way to watch; 1 where the live view and metrics cost more than they may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=40.0)
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="watching-", ignore_cleanup_errors=True) as name:
        for number, (what, (view, command)) in enumerate(STEPS.items()):
            found[what] = share(Path(name) / str(number), args.running, args.seconds, command, view=view)
            print(f"{found[what]:6.2%} of a core: {what}, {args.running} running", flush=True)
    most, _, least = found.values()
    print(f"{most - least:6.2%} of a core: the live view and the metrics (at most {BOUND:.0%})")
    return 0 if most - least <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
