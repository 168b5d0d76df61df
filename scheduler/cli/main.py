"""The entry point: finds the verb, calls it, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

from scheduler.errors import SchedulerError, describe_os_error

GROUPS = {
    "start": {
        "run": "Run a list of tasks, several per GPU, packed by measured memory",
        "submit": "Add tasks to your standing queue on this machine and return",
        "exec": "Run one task now and pass on its output and exit code",
        "lease": "Run a command in this terminal with GPUs of its own, or your shell",
        "grid": "Expand a parameter grid: print the commands, write a list, or run them",
        "resume": "Take over a run after a crash, a reboot or Ctrl-C",
        "retry": "Queue failed, timed-out and cancelled tasks again",
    },
    "look": {
        "list": "List your unfinished and recently ended tasks, or the tasks of a run",
        "status": "Show this machine's devices, all reservations and your runs",
        "top": "Watch a run or the whole machine live, in the terminal or a browser",
        "why": "Explain why a task waits, or why it ended as it did",
        "logs": "Print the output of a task; -f follows it",
        "results": "Show the result of each task as a table, CSV, JSON or Markdown",
        "report": "Write an HTML report of runs: timeline, memory, waiting times, tasks",
    },
    "change": {
        "pause": "Start no more tasks of a run, for a time or until unpause",
        "unpause": "Let the tasks of a paused run start again",
        "set": "Change the fields of waiting tasks, or the limits of a run",
        "hold": "Keep waiting tasks from starting",
        "release": "Let held tasks start again",
        "cancel": "Cancel running or waiting tasks for good",
        "stop": "Stop a run from another terminal",
        "wait": "Wait until a run or tasks have ended; return their exit code",
    },
    "machine": {
        "devices": "List devices; disable, enable or reserve them; prepare a shared machine",
        "doctor": "Check what works on this machine, and how to fix what does not",
        "profiles": "List, show, forget, learn, export or import the memory profiles of task classes",
        "runs": "List your runs on all machines; remove ended ones",
    },
    "more": {
        "simulate": "Simulate a list or a trace on a machine that need not exist",
        "experiment": "Measure one list in several ways: with and without MPS, batch sizes",
        "mcp": "Let an agent submit tasks and read results, over the Model Context Protocol",
        "completion": "Print the script for Tab completion in bash, zsh or fish",
    },
}
"""The verbs by group, in the order of `--help`; each verb is a module of this package, which is loaded when the verb is
called.
"""
VERBS = {verb: summary for group in GROUPS.values() for verb, summary in group.items()}

HIDDEN = {"simple-gpu-scheduler": "simple_gpu_scheduler", "simple-hypersearch": "simple_hypersearch"}
"""Commands of older tools that keep their names; each has the module that implements it."""

COMMON = ("run", "list", "status", "logs", "results", "cancel", "stop", "resume")
"""The verbs that Tab offers first."""

NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't start new thread")
"""Parts of error messages that mean a lack of memory; they come from the dynamic linker, the kernel and the start of
threads.
"""
NEAR = 4 << 20
"""The bytes that the allocator requests at once. A process that is closer than this to its memory limit counts as
having reached it.
"""
TOO_LITTLE = (
    "not enough memory for this command: raise ulimit -v and ulimit -d, or end another program; "
    "scheduler resume continues a run that was accepted"
)

_TOO_LITTLE = f"scheduler: {TOO_LITTLE}\n".encode()
"""TOO_LITTLE as bytes, encoded at import, because a process without memory could not encode it later."""

EXAMPLE = "example: scheduler run jobs.csv"

ELSEWHERE = {
    **dict.fromkeys(("add", "enqueue", "sbatch", "qsub", "gbatch"), "submit -- CMD, or scheduler submit FILE"),
    **dict.fromkeys(("start", "srun", "qrsh", "now"), "exec -- CMD"),
    **dict.fromkeys(("sweep", "search", "hypersearch"), "grid CMD -p NAME VALUE ..."),
    **dict.fromkeys(("queue", "squeue", "jobs", "ls", "qstat", "gqueue"), "list"),
    **dict.fromkeys(("restart", "requeue", "rerun"), "retry ID (failed ones), or scheduler resume (interrupted ones)"),
    **dict.fromkeys(("continue", "recover"), "resume"),
    **dict.fromkeys(("info", "sinfo", "ginfo"), "status"),
    **dict.fromkeys(("kill", "scancel", "qdel", "remove", "rm", "gcancel"), "cancel ID, or scheduler stop for a run"),
    **dict.fromkeys(("follow", "log", "tail", "cat", "output", "show"), "logs ID -f"),
    "suspend": "hold ID, or scheduler pause RUN for a run",
    "unhold": "release ID, or scheduler unpause RUN for a run",
    **dict.fromkeys(("edit", "update", "priority", "scontrol", "gjob"), "set ID --priority N"),
    "parallel": "run - (commands on standard input), or scheduler set RUN -j N",
    **dict.fromkeys(("clean", "clear", "purge", "prune"), "runs rm --older-than 30d"),
    **dict.fromkeys(("history", "sacct"), "runs"),
    **dict.fromkeys(("gpus", "nodes", "free"), "devices"),
    **dict.fromkeys(("check", "diagnose", "config"), "doctor"),
    **dict.fromkeys(("shutdown", "quit", "exit"), "stop"),
}
"""Verbs of other tools, each with the command to use instead."""


def main(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    return guarded(lambda: _dispatch(argv))


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit code; print an error of this project as one sentence, without a traceback."""
    try:
        _settle_streams()
        code = command()
        sys.stdout.flush()
        return code
    except SchedulerError as exc:
        from_database = type(exc.__cause__).__module__ == "sqlite3"  # it says "disk I/O error" if memory runs out
        _complain(TOO_LITTLE if from_database and _lacks_memory(None) else str(exc))
        return exc.exit_code
    except OSError as exc:
        if not isinstance(exc, BrokenPipeError):
            _complain(_refused(exc))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the flush at exit does not fail again
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as exc:
        if not _lacks_memory(exc):
            raise
        _complain(TOO_LITTLE)
        return 1


def _lacks_memory(exc: BaseException | None) -> bool:
    """Tell whether an error, or one of its causes, means that no memory was left; Python raises several types of error
    for this.
    """
    while exc is not None:
        if isinstance(exc, MemoryError | SystemError) or any(words in str(exc) for words in NO_MEMORY):
            return True
        exc = exc.__cause__ or exc.__context__
    try:
        return _is_at_a_limit()
    except (MemoryError, ImportError):
        return True


def _is_at_a_limit() -> bool:
    """Tell whether this process has nearly reached a memory limit of its shell, which can cause an error of any
    type.
    """
    import resource  # only here: no command that works needs it

    with open("/proc/self/statm", encoding="ascii") as file:
        pages = [int(word) for word in file.read().split()]
    for which, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        limit = resource.getrlimit(which)[0]
        if limit != resource.RLIM_INFINITY and used * resource.getpagesize() + NEAR > limit:
            return True
    return False


def _refused(exc: OSError) -> str:
    """Return a sentence for an error that the kernel reported; a removed working directory has a sentence of
    its own.
    """
    if exc.errno == errno.ENOMEM:
        return TOO_LITTLE
    if exc.errno == errno.EMFILE:
        import resource  # only here: no other command needs it

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"the limit of {limit} open files is too low: raise it with ulimit -n"
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current directory was removed: cd to one that exists"
    return describe_os_error(exc)


def _settle_streams() -> None:
    """Open /dev/null for each closed standard stream, and make the open streams print `?` for characters that cannot be
    encoded.

    Without /dev/null, the next file that this process opens would get the number of the closed stream.
    """
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
        _write(_help())
        return 0
    if verb in ("-V", "--version"):
        from scheduler import __version__

        _write(f"scheduler {__version__}\n")
        return 0
    if not verb:
        from scheduler.cli import greeting

        return greeting.main()
    if verb not in VERBS and verb not in HIDDEN:
        cure = f"use scheduler {ELSEWHERE[verb]}" if verb in ELSEWHERE else "scheduler --help lists the verbs"
        _complain(f"there is no verb {verb!r}: {cure}")
        return 2
    module = import_module(_module(verb, argv[1:]))
    gc.enable()
    code: int = module.main(argv[1:])
    return code


def _module(verb: str, words: Sequence[str]) -> str:
    """Return the module that implements a verb. For the help of `run`, return a module that does not load the code of a
    run, which saves 30 ms.
    """
    if verb in HIDDEN:
        return f"scheduler.compat.{HIDDEN[verb]}"
    flags = words[: words.index("--")] if "--" in words else words
    asks = verb == "run" and not {"-h", "--help", "--help-all"}.isdisjoint(flags)
    return "scheduler.cli.run_flags" if asks else f"scheduler.cli.{verb}"


def _help() -> str:
    """Return the help that lists all verbs by group."""
    lines = ["usage: scheduler VERB ...   (scheduler VERB --help describes a verb and its flags)"]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:", *_verb_lines(verbs)]
    return "\n".join([*lines, "", EXAMPLE, ""])


def _verb_lines(verbs: Iterable[str]) -> list[str]:
    return [f"  {verb:<10} {VERBS[verb]}" for verb in verbs]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _complain(text: str) -> None:
    try:
        from scheduler.ui.text import clean

        text = clean(text).replace("\n", "\\n")
    except Exception:  # noqa: BLE001 - no memory to load the module, not even to list its folder: the kernel's error
        text = TOO_LITTLE
    try:
        sys.stderr.write(f"scheduler: {text}\n")
    except OSError:  # the reader of standard error is gone; the exit code remains
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    except Exception:  # noqa: BLE001 - no memory to make the line
        os.write(2, _TOO_LITTLE)


def console() -> None:
    """Run the installed command and end the process.

    To save time, the garbage collector is off while modules load (3 ms), and the interpreter is not cleaned up at the
    end (5 ms).
    """
    gc.disable()
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
