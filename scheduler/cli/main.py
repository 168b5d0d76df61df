"""The command: finds the verb, calls it, turns our errors into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module

from scheduler.errors import SchedulerError, of_the_system

VERBS = {
    "run": "run a list of jobs, or commands as they arrive (-, --follow), packed by memory",
    "exec": "one job now, in line with everybody on this machine; its output here, its exit code",
    "grid": "a grid of parameters: commands on standard output, a list, or run",
    "resume": "take a run over after a crash, a reboot or Ctrl-C",
    "retry": "let failed, timed out and cancelled tasks wait again",
    "stop": "end a living run from another terminal",
    "cancel": "end tasks for good, whether they run or wait",
    "set": "change what waiting tasks ask for, or how much of the machine a run may use",
    "hold": "keep waiting tasks from starting",
    "release": "let held tasks wait for their turn again",
    "wait": "until a run or tasks are over; their exit code",
    "logs": "what a task printed; -f goes on",
    "list": "the tasks of a run and where they stand",
    "why": "what a task waits for, or why it ended as it did",
    "status": "this machine: promises of everybody, my runs",
    "top": "a run of any terminal, or the whole machine, live",
    "devices": "what this machine has, and what is promised of it; disable, enable for my runs",
    "doctor": "what the scheduler sees and can do here, and the cure for what is missing",
    "runs": "all my runs, and which machine has them; removes ended ones",
    "profiles": "what is known of each kind's memory: list, show, forget, learn",
    "simulate": "a list on a machine that is not there, by the real decisions, in no time",
    "experiment": "one list in several ways, measured: with MPS and without, sizes of batches",
    "results": "what became of each task: table, CSV, JSON, Markdown",
    "report": "what became of runs, as a page that opens offline: timeline, memory, waits, tasks",
    "completion": "verbs, flags, ids and runs on Tab: for bash, zsh and fish",
}
"""Each is a module of this package, loaded when it is called."""

HIDDEN = {"simple-gpu-scheduler": "simple_gpu_scheduler", "simple-hypersearch": "simple_hypersearch"}
"""The older tools' commands under their own names, and their modules."""

COMMON = ("run", "list", "status", "logs", "results", "cancel", "stop", "resume")
"""What `scheduler` alone tells of."""

ELSEWHERE = {
    **dict.fromkeys(("add", "submit", "enqueue", "sbatch", "qsub", "gbatch"), "exec -d -- CMD, or scheduler run FILE"),
    **dict.fromkeys(("start", "srun", "qrsh", "now"), "exec -- CMD"),
    **dict.fromkeys(("sweep", "search", "hypersearch"), "grid CMD -p NAME VALUE ..."),
    **dict.fromkeys(("queue", "squeue", "jobs", "ls", "qstat", "gqueue"), "list"),
    **dict.fromkeys(("restart", "requeue", "rerun"), "retry ID (failed ones), or scheduler resume (interrupted ones)"),
    **dict.fromkeys(("continue", "recover"), "resume"),
    **dict.fromkeys(("info", "sinfo", "ginfo"), "status"),
    **dict.fromkeys(("kill", "scancel", "qdel", "remove", "rm", "gcancel"), "cancel ID, or scheduler stop for a run"),
    **dict.fromkeys(("follow", "log", "tail", "cat", "output", "show"), "logs ID -f"),
    **dict.fromkeys(("pause", "suspend"), "hold ID, or scheduler set RUN -j 0 for a run"),
    **dict.fromkeys(("unpause", "unhold"), "release ID, or scheduler set RUN -j N for a run"),
    **dict.fromkeys(("edit", "update", "priority", "scontrol", "gjob"), "set ID --priority N"),
    "parallel": "run - (commands on standard input), or scheduler set RUN -j N",
    **dict.fromkeys(("clean", "clear", "purge", "prune"), "runs rm --older-than 30d"),
    **dict.fromkeys(("history", "sacct"), "runs"),
    **dict.fromkeys(("gpus", "nodes", "free"), "devices"),
    **dict.fromkeys(("check", "diagnose", "config"), "doctor"),
    **dict.fromkeys(("shutdown", "quit", "exit"), "stop"),
}
"""What other tools call things."""


def main(argv: list[str]) -> int:
    """Run one command line; the exit code."""
    return guarded(lambda: _dispatch(argv))


def guarded(command: Callable[[], int]) -> int:
    """Run a command, with our errors as one sentence each; the exit code."""
    _settle_streams()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except SchedulerError as exc:
        _complain(str(exc))
        return exc.exit_code
    except OSError as exc:
        if not isinstance(exc, BrokenPipeError):
            _complain(_refused(exc))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be written there is not missed again at exit
        return 1
    except KeyboardInterrupt:
        return 130


def _refused(exc: OSError) -> str:
    """What the kernel refused, as a sentence; who asks where it stands is told if that is nowhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the directory that this was started in is gone: cd to one that is there"
    return of_the_system(exc)


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
        _write(_usage(VERBS))
        return 0
    if verb in ("-V", "--version"):
        from scheduler import __version__

        _write(f"scheduler {__version__}\n")
        return 0
    if not verb:
        from scheduler.cli import greeting

        _write(_usage(COMMON))
        return greeting.main()
    if verb not in VERBS and verb not in HIDDEN:
        cure = f"scheduler {ELSEWHERE[verb]}" if verb in ELSEWHERE else "scheduler --help"
        _complain(f"there is no verb {verb!r}: {cure}")
        return 2
    module = import_module(f"scheduler.cli.{HIDDEN.get(verb, verb)}")
    gc.enable()
    code: int = module.main(argv[1:])
    return code


def _usage(verbs: Iterable[str]) -> str:
    all_ = "scheduler VERB --help tells more" + (", scheduler --help names all verbs" if verbs is COMMON else "")
    lines = [f"usage: scheduler VERB ...   ({all_})", ""]
    lines += [f"  {verb:<10} {VERBS[verb]}" for verb in verbs]
    return "\n".join([*lines, "", "example: scheduler run jobs.csv", ""])


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _complain(text: str) -> None:
    from scheduler.view.words import clean

    try:
        sys.stderr.write(f"scheduler: {clean(text)}\n")
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
