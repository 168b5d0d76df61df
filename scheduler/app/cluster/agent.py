"""The agent's process on a node: `python -m scheduler.app.cluster.agent`, started over a link; no command for users."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scheduler.app.cluster.content import differences
from scheduler.app.observe.run_facts import places
from scheduler.app.run.devices import find_devices
from scheduler.app.run.run_loop import PRELOADING, load_modules, open_leases
from scheduler.cluster.agent import Agent, NodeRun
from scheduler.cluster.fence import NodeFence
from scheduler.cluster.forms import FACTS, NodeFacts
from scheduler.cluster.frames import BadFrame, Channel, Message
from scheduler.cluster.link import code_digest
from scheduler.core.queue import quota
from scheduler.devices.pool import DevicePool, Watchers
from scheduler.errors import SchedulerError, StateError, describe_os_error
from scheduler.execution.engine import PATIENCE as START_OF_SERVER
from scheduler.execution.engine import LocalEngine
from scheduler.execution.fork_server import ForkServer
from scheduler.runtime.paths import NETWORK_FILE_SYSTEMS, RUN_CODE, RunPaths, StatePaths, file_system, make_private
from scheduler.runtime.processes import signal_one
from scheduler.runtime.settings import READERS, Settings, read_settings
from scheduler.runtime.shim import boot_id, hostname, machine_id, start_time
from scheduler.store.machine import site_config
from scheduler.store.result_file import has_lines
from scheduler.store.run import run_code
from scheduler.store.run.removal import claims
from scheduler.store.run.run_code import RunCode
from scheduler.store.run.shell_state import is_of_one_machine
from scheduler.values import replace

FIRST_WORD = 30.0
"""Seconds within which the head must send its first message."""
NODES_OWN = ("state", "leases", "notify", "features")
"""The settings for which each node uses its own values."""
PATIENCE = 8.0
"""Seconds within which an earlier agent of the run must end after it was asked to end; after half of this time, it is
killed."""
BREATH = 0.5
"""Seconds between two checks by an agent that only waits for the shims to end."""
FENCE = "fence"
"""The name of the file that contains the time until which the attempts of a run may live on this node."""
START = 3.0
"""The longest time in seconds from the order to start a shim to the claim that this shim writes."""


class TakenOver(StateError):
    """The takeover of the run by a later scheduler."""


def main() -> int:
    """Serve one head; return the exit code."""
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not look like a message
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(0, out)
    try:
        _serve(channel)
    except TakenOver as exc:
        _refuse(channel, str(exc), "replaced")
    except SchedulerError as exc:
        _refuse(channel, str(exc))
    except OSError as exc:
        _refuse(channel, describe_os_error(exc))
    except BadFrame:
        return 2
    return 0


def _refuse(channel: Channel, sentence: str, how: str = "refused") -> None:
    channel.send({how: sentence})
    _flush(channel)


def _flush(channel: Channel) -> None:
    end = time.monotonic() + 1.0
    while channel.unsent and not channel.ended and time.monotonic() < end:
        time.sleep(0.01)
        channel.push()


def _serve(channel: Channel) -> None:
    hello = _next(channel, "hello", FIRST_WORD)
    if hello is None:
        return
    if hello["code"] != code_digest():
        raise StateError("it has another version of scheduler: install the version of this machine there")
    settings, environ = _settings(hello["settings"]), _environment(hello["environ"])
    python = hello["python"]
    if python and not os.access(python, os.X_OK):
        raise StateError(f"there is no interpreter {python} there: install it, or choose another with --python")
    home = _own_state(settings)
    pool = find_devices(hello["devices"], settings, environ)
    open_leases(settings, "").close()  # refused now, rather than once tasks are to start
    channel.send({"here": FACTS.to_dict(_facts(pool, settings))})
    join = _next(channel, "join", 0.0, lambda said: channel.send({"lacks": differences(said)}))
    if join is None:
        return
    guest = RunPaths(home.guest(join["token"]), 0)
    lock = _become_only_agent(guest, join["epoch"])
    signal.signal(signal.SIGTERM, lambda *_: channel.end())  # SIGTERM comes from a newer agent of the run
    try:
        over = Agent(channel, _guest(guest, join, settings, environ, pool)).run()
        _flush(channel)
    finally:
        os.close(lock)
    if not over:
        _stay(guest)


def _own_state(settings: Settings) -> StatePaths:
    """Return this node's state directory; raise StateError if other machines may share its locks."""
    home = places(settings)
    kind = file_system(home.root)
    if kind in NETWORK_FILE_SYSTEMS:
        cure = "name one on a local disk there, with the setting state or SCHEDULER_STATE"
        raise StateError(f"its state directory {home.root} is on a network file system ({kind}): {cure}")
    return home


def _stay(guest: RunPaths) -> None:
    """Wait until the run's shims on this node have ended; the caller has released the lock of the run. Slurm would kill
    the shims if this process, the first one of its step, ended earlier.
    """
    seen = time.monotonic()  # a shim that is being started has no claim yet
    while time.monotonic() - seen < START:
        time.sleep(BREATH)
        if any(shim for _, _, _, shim in claims(guest)):
            seen = time.monotonic()


def _next(channel: Channel, name: str, patience: float, compare: Callable[[Any], None] | None = None) -> Any:
    """Return the content of the next message with this name; None at the end of input, or after `patience` seconds.

    With a patience of 0, wait for ever. Meanwhile, `compare` answers messages about what a list needs.
    """
    end = time.monotonic() + patience
    while not channel.ended and (not patience or time.monotonic() < end):
        select.select([channel], [], [], 0.5)
        messages: list[Message] = channel.receive()
        for place, message in enumerate(messages):
            if name in message:
                channel.keep(messages[place + 1 :])
                return message[name]
            if compare is not None and "compare" in message:
                compare(message["compare"])
    return None


def _settings(said: Mapping[str, Any]) -> Settings:
    """Return the head's settings, with this node's own values for the settings in NODES_OWN."""
    own = read_settings({})
    kept: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return replace(own, **{name: kept[name] for name in READERS if name in kept and name not in NODES_OWN})


def _environment(said: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the run's tasks on this node."""
    ours = {name: text for name, text in os.environ.items() if is_of_one_machine(name)}
    theirs = {name: text for name, text in said.items() if not is_of_one_machine(name)}
    return {**os.environ, **theirs, **ours}


def _facts(pool: DevicePool, settings: Settings) -> NodeFacts:
    caps = site_config.read(os.environ, os.getuid()).caps
    return NodeFacts(
        hostname(), machine_id(), boot_id(), os.getuid(), pool.usual, pool.driver, pool.reads,
        quota.capped(pool.snapshot(), caps, os.getuid()), tuple(pool.notes), dict(pool.limits),
        tuple(filter(None, settings.features.split(","))),
    )  # fmt: skip


def _become_only_agent(guest: RunPaths, epoch: int) -> int:
    """Lock the run on this node. An earlier agent that still has the lock, because it has not noticed that its link
    broke, is ended.

    Raise StateError if a scheduler with a higher epoch has had an agent on this node, and so has taken the run over.
    """
    make_private(guest.root)
    fd = os.open(guest.root / "agent", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    end = time.monotonic() + PATIENCE
    asked = 0.0
    while True:
        locked = _locks(fd)
        pid, start, highest = _latest(fd)
        if highest > epoch:
            raise TakenOver("the run was taken over by another scheduler: this one starts nothing more")
        if locked:
            break
        now = time.monotonic()
        if now >= end:
            raise StateError(f"another agent of this run lives there and does not end (process {pid})")
        if pid and now - asked >= PATIENCE / 2:
            number, asked = signal.SIGKILL if asked else signal.SIGTERM, now
            with contextlib.suppress(ProcessLookupError):
                signal_one(pid, start, number)
        time.sleep(0.02)
    os.pwrite(fd, f"{os.getpid()} {start_time(os.getpid())} {epoch}".encode().ljust(64), 0)
    return fd


def _locks(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _latest(fd: int) -> tuple[int, int, int]:
    """Return the pid, the start time and the epoch of the agent that locked the run last; zeros if there was none."""
    said = os.pread(fd, 64, 0).split()
    return (int(said[0]), int(said[1]), int(said[2])) if len(said) == 3 else (0, 0, 0)


def _guest(
    paths: RunPaths, join: Mapping[str, Any], settings: Settings, environ: Mapping[str, str], pool: DevicePool
) -> NodeRun:
    """Join the parts of a run on this node, as `run_loop` does for a run of this machine."""
    engine = _engine(paths, join, settings, environ)
    host = pool.host.watcher(paths.code)
    gpus = pool.moved_gpus(paths.code)
    leases = open_leases(settings, join["token"])
    fence = NodeFence(str(paths.root / FENCE), settings.node_fence) if settings.node_fence else None

    def close() -> None:
        for part in (engine, host, leases, pool):
            part.close()
        if fence is not None:
            fence.close()

    def remove() -> None:
        close()
        _remove(paths)

    load_modules()
    return NodeRun(
        pool, engine, leases, Watchers([host, *gpus]), [host, *gpus], paths, str(paths.root), join["root"], close,
        remove, differences, has_lines, fence,
    )  # fmt: skip


def _engine(paths: RunPaths, join: Mapping[str, Any], settings: Settings, environ: Mapping[str, str]) -> LocalEngine:
    known = paths.root / "code.json"
    if not known.exists():
        known.write_text(json.dumps(run_code.copy(paths.code, RUN_CODE)))
    code = RunCode(paths.code, json.loads(known.read_text()))
    server = ForkServer(paths.shim, environ, {"umask": join["umask"]}, paths.server)
    patience = START_OF_SERVER
    if join["warm"]:
        server.warm, server.lasting = {**join["warm"], "program": str(paths.launcher)}, False
        patience = PRELOADING
    engine = LocalEngine(paths.tasks, server, join["token"], patience=patience, log_max=settings.log_max)
    engine.mend_code(code.mend)
    if settings.cgroup == "never":
        engine.ungroup()
    engine.warm()
    return engine


def _remove(paths: RunPaths) -> None:
    """Remove the files of an ended run on this node, apart from files that its tasks keep."""
    for folder in paths.tasks.glob("*"):
        for file in (*folder.glob("*.log"), *folder.glob("*.err"), *folder.glob(".*")):
            with contextlib.suppress(OSError):
                file.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()
    for path in (paths.code, paths.given):
        shutil.rmtree(path, ignore_errors=True)
    for path in (paths.root / "code.json", paths.server, paths.root / "agent", paths.root / FENCE):
        path.unlink(missing_ok=True)
    for folder in (paths.tasks, paths.root, Path(paths.root).parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


if __name__ == "__main__":
    sys.exit(main())
