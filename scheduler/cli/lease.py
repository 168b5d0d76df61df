"""`scheduler lease -- CMD`: run a command in this terminal with devices of its own, once its turn comes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from scheduler.app.queue.leases import given_devices, lease_fields, patience_of
from scheduler.cli import flags, submit
from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.tasks.launchers import LauncherCalls
from scheduler.errors import UsageError
from scheduler.runtime.settings import YES, Settings
from scheduler.store.queue.queue_link import USUAL, checked_name

LEFT_OUT = (
    "ThreadPercentage", "Stdout", "Stderr", "After", "Begin", "Hold", "Retries", "RetryOn", "Resumable",
)  # fmt: skip
"""The fields that do not apply to a command that runs in this terminal."""


def parser() -> Parser:
    """Build the parser of `lease`."""
    what = (
        "Run a command in this terminal with GPUs and memory of its own, as soon as its turn among all users comes. It "
        "keeps the terminal, its signals and its exit code; without a command it is your shell."
    )
    made = Parser("lease", what, "scheduler lease --memory 8GiB -- bash", more_words="write the command after --")
    made.common()
    made.add_argument(
        "--wait",
        default="yes",
        metavar="TIME",
        help="how long to wait for the lease: yes (default: as long as it takes), no, or a time such as 10m; exit code "
        "75 if it is not granted in time",
    )
    made.add_argument("--json", action="store_true", help="print the granted lease as a line of JSON on standard error")
    made.add_argument("--queue", default=USUAL, metavar="NAME", help=f"name of the queue (default {USUAL})")
    flags.add_launcher_args(made)
    fields = made.add_argument_group("task fields")
    flags.add_task_fields(fields, leave_out=LEFT_OUT)
    return made


def main(argv: list[str]) -> int:
    """Wait for the lease, run the command, and return its exit code."""
    argv, words = flags.split_at_command(argv)
    args = parser().parse_args(argv)
    settings = settings_from(args, "launcher_args")
    given = flags.checked_fields(flags.task_fields(args))
    command = _command(words)
    patience = patience_of("--wait", args.wait)
    fields = lease_fields(given_devices(given), f"lease of {os.path.basename(command[0])}")
    return _run(command, fields, settings, checked_name(args.queue), patience, as_json=args.json)


def _command(words: Sequence[str] | None) -> Sequence[str]:
    """Return the command, after a check that its program exists; if none is given, return the user's shell."""
    if words is None:
        return [os.environ.get("SHELL") or "/bin/sh"]
    if not words:
        raise UsageError("no command was given after --: write it like  scheduler lease -- bash")
    if shutil.which(words[0]) is None:
        raise UsageError(f"{words[0]!r} is not a program: give a path, or a name that is on PATH")
    return words


def _run(
    command: Sequence[str],
    fields: Mapping[str, str],
    settings: Settings,
    queue: str,
    patience: float,
    *,
    as_json: bool,
) -> int:
    from scheduler.app.queue.lease_client import LeaseClient, LeaseRequest
    from scheduler.core.tasks.fields import BY_COLUMN
    from scheduler.execution.foreground import ForegroundCommand

    grace = float(BY_COLUMN["grace"].read(fields.get("Grace") or BY_COLUMN["grace"].default))
    client = LeaseClient(LeaseRequest(command, fields, grace, queue, settings, submit.chosen_python(settings)))
    submit.print_hints(client.hints)
    told = client.wait(patience, _tell)
    gpus = [int(word) for word in told.get("SCHEDULER_GPU_INDICES", "").split(",") if word]
    if as_json:
        facts = {"format": 1, "run": client.run, "queue": queue, "tasks": [client.task], "gpus": gpus}
        sys.stderr.write(json.dumps(facts) + "\n")
    else:
        where = f"GPU {', '.join(map(str, gpus))}" if gpus else "host RAM"
        _tell(f"task {client.task} holds {where} for {command[0]}")
    words = tuple(command)
    if settings.launcher_args == YES and (port := told.get("MASTER_PORT")):
        words = LauncherCalls(words).adapted(port, len(gpus))
    try:
        front = ForegroundCommand(words, {**os.environ, **told}, client.connection.fileno(), grace)
    except OSError as exc:
        client.release(126)
        raise UsageError(f"{command[0]!r} cannot be started: {exc.strerror}") from exc
    code = front.wait()
    client.release(code)
    return code


def _tell(sentence: str) -> None:
    sys.stderr.write(f"scheduler: {sentence}\n")
    sys.stderr.flush()
