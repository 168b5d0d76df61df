"""The command: finds the verb, calls it, turns our errors into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from importlib import import_module

from scheduler.errors import SchedulerError, of_the_system

VERBS = {
    "run": "run a CSV of jobs, packed by memory",
    "resume": "take a run over after a crash, a reboot or Ctrl-C",
    "stop": "end a living run from another terminal",
    "list": "the tasks of a run and where they stand",
    "status": "this machine: promises of everybody, my runs",
    "doctor": "what the scheduler sees and can do here, and the cure for what is missing",
    "runs": "all my runs, and which machine has them; removes ended ones",
    "profiles": "what is known of each kind's memory: list, show, forget, learn",
    "simulate": "a list on a machine that is not there, by the real decisions, in no time",
    "results": "what became of each task: table, CSV, JSON, Markdown",
}
"""Each is a module of this package, loaded when it is called."""

ELSEWHERE = {
    "add": "run FILE",
    "queue": "list",
    "squeue": "list",
    "jobs": "list",
    "ls": "list",
    "restart": "resume",
    "continue": "resume",
    "info": "status",
    "kill": "stop",
    "submit": "run FILE",
    "sbatch": "run FILE",
}
"""What other tools call things."""


def main(argv: list[str]) -> int:
    """Run one command line; the exit code."""
    _settle_streams()
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except SchedulerError as exc:
        _complain(str(exc))
        return exc.exit_code
    except OSError as exc:
        if not isinstance(exc, BrokenPipeError):
            _complain(of_the_system(exc))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be written there is not missed again at exit
        return 1
    except KeyboardInterrupt:
        return 130


def _settle_streams() -> None:
    """What is closed becomes nowhere, so that no file of ours gets its number; what cannot be encoded becomes `?`."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _dispatch(argv: list[str]) -> int:
    verb = argv[0] if argv else ""
    if verb in ("-h", "--help", "help"):
        _write(_usage())
        return 0
    if verb in ("-V", "--version"):
        from scheduler import __version__

        _write(f"scheduler {__version__}\n")
        return 0
    if not verb:
        from scheduler.cli import greeting

        _write(_usage())
        return greeting.main()
    if verb not in VERBS:
        cure = f"scheduler {ELSEWHERE[verb]}" if verb in ELSEWHERE else "scheduler --help"
        _complain(f"there is no verb {verb!r}: {cure}")
        return 2
    module = import_module(f"scheduler.cli.{verb}")
    gc.enable()
    code: int = module.main(argv[1:])
    return code


def _usage() -> str:
    lines = ["usage: scheduler VERB ...   (scheduler VERB --help tells more)", ""]
    lines += [f"  {verb:<9} {what}" for verb, what in VERBS.items()]
    return "\n".join([*lines, "", "example: scheduler run jobs.csv", ""])


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _complain(text: str) -> None:
    try:
        sys.stderr.write(f"scheduler: {text}\n")
    except OSError:  # nobody reads it any more: the exit code tells
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def console() -> None:
    """Entry point of the installed commands.

    Loading makes no garbage, and looking for it takes 3 ms; taking the interpreter apart takes 5, when all is closed.
    """
    gc.disable()
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
