"""The command line of the older one-shot tool (`schedule`, or `python scheduler.py` with a quoted task)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from scheduler.app.run import exec
from scheduler.app.run.options import RunOptions, this_python
from scheduler.app.run.task_list import one_listing
from scheduler.compat import schedule_gpus, schedule_messages
from scheduler.core.tasks.command import ONE_SHOT
from scheduler.core.tasks.fields import words
from scheduler.errors import InputError, SchedulerError, UsageError, describe_os_error
from scheduler.runtime.settings import Settings, read_settings
from scheduler.ui.terminal.sink import hint
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.app.run.session import RunSession
    from scheduler.core.ports import View

INFO = "/tmp/gpu_scheduler_info"


def parser() -> argparse.ArgumentParser:
    """Build the parser with the flags of the older tool, in the order of that tool."""
    made = argparse.ArgumentParser(
        prog="schedule", epilog='example: schedule "train.py foo --bar 5" --forced_gpu 2 --verbose', allow_abbrev=False
    )
    add = made.add_argument
    add("task", nargs="?", help="the quoted task with its arguments; it starts on a free GPU as soon as there is one")
    add("-gc", "--gpu_count", type=_number, default=1, help="number of GPUs for the task (default 1)")
    add(
        "-i",
        "--init",
        type=_number,
        nargs="+",
        help="number of GPUs, then those that are unavailable: -i 5 3 4; as root for all users",
    )
    add("-v", "--verbose", action="store_true", help="print the process when the task has ended")
    add(
        "-o",
        "--out",
        nargs="?",
        metavar="OUT",
        help="file for its standard output, overwritten (default: the output of this command)",
    )
    add(
        "-e",
        "--err",
        nargs="?",
        metavar="ERR",
        help="file for its standard error, overwritten (default: that of this command)",
    )
    add("-pg", "--prefered_gpu", type=_number, help="take this GPU if it is free, else another")
    add("-fg", "--forced_gpu", type=_numbers, help="wait for this GPU; 1,3 with -gc 2 for these two")
    add("-s", "--status", action="store_true", help="show who has which GPU: user, task, pid, start")
    add(
        "-rg",
        "--release_gpu",
        type=_number,
        nargs="+",
        help="end your own tasks on these GPUs; as root, all tasks",
    )
    add("--export", nargs="?", const=INFO, metavar="FILE", help=f"write who has which GPU as JSON (default {INFO})")
    return made


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part.strip()) for part in text.strip("[] ").split(","))


def main(argv: Sequence[str]) -> int:
    """Initialise, release, show, export and run, in this order, as far as the flags request it; return the task's exit
    code.
    """
    args = parser().parse_args(list(argv))
    try:
        return _obey(args)
    except SchedulerError as exc:
        sys.stderr.write(f"scheduler: {exc}\n")
        return exc.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as exc:
        sys.stderr.write(f"scheduler: {describe_os_error(exc)}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _obey(args: argparse.Namespace) -> int:
    settings = read_settings({})
    if "visible" not in settings.source:
        settings = replace(settings, visible="all")
    gpus = schedule_gpus.look(settings)
    if args.init:
        _init(args.init, gpus, settings)
    if args.release_gpu:
        for sentence in schedule_gpus.release(gpus, args.release_gpu):
            hint(sentence)
    if args.init or args.release_gpu:
        gpus = schedule_gpus.look(settings)
    if args.status:
        schedule_messages.out(schedule_messages.status_lines(schedule_gpus.cards(gpus, settings)))
    if args.export:
        export(args.export, gpus, settings)
    if args.task is None:
        return 0 if args.init or args.release_gpu or args.status or args.export else _nothing()
    return _run(args, gpus, settings)


def _nothing() -> int:
    parser().print_usage(sys.stderr)
    sys.stderr.write('scheduler: there is no task: write it in quotes, like  schedule "train.py foo --bar 5"\n')
    return 2


def _init(said: Sequence[int], gpus: schedule_gpus.ScheduleGpus, settings: Settings) -> None:
    """Read the machine's GPUs, and check that the argument of `-i N G…` agrees with them."""
    count, unavailable = said[0], said[1:]
    there = gpus.numbers
    if count > len(there):
        raise UsageError(f"-i {count}: this shell may use {len(there)} GPUs of this machine: give at most this number")
    strange = sorted(set(unavailable) - set(there))
    if strange:
        raise UsageError(f"-i: there is no GPU {strange[0]} here; there is: {_listed(there)}")
    out = sorted({*unavailable, *there[count:]})
    whose = schedule_gpus.put_out(settings, out, gpus)
    hint(f"out of service: {_listed(out)} {whose}; tasks that run there continue")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"GPU {number}" for number in numbers) or "none"


def export(path: str, gpus: schedule_gpus.ScheduleGpus, settings: Settings) -> None:
    """Write the older tool's file for other programs: the current state, without locking anything."""
    from scheduler.compat.export_file import write_whole

    write_whole(path, schedule_messages.info(schedule_gpus.cards(gpus, settings)))


def _run(args: argparse.Namespace, gpus: schedule_gpus.ScheduleGpus, settings: Settings) -> int:
    may = [number for number in gpus.numbers if number not in schedule_gpus.own_out(settings)]
    _check(args, gpus, may)
    apart = args.err is None and exec.streams_differ()
    said = {
        "GPUs": str(args.gpu_count) if gpus.numbers else "",
        "Exclusive": "yes" if gpus.numbers else "",
        "Prefer": "" if args.prefered_gpu is None else str(args.prefered_gpu),
        "Stdout": _file(args.out),
        "Stderr": "apart" if apart else _file(args.err),
    }
    devices = ",".join(map(str, args.forced_gpu or may))
    listing = one_listing([args.task], {k: text for k, text in said.items() if text}, this_python(settings), ONE_SHOT)
    choices = RunOptions(devices=f"{devices},host" if devices else "auto", keep_going=True)
    try:
        done = exec.run(listing, choices, settings, partial(_view, args))
    except InputError as exc:
        raise UsageError(exc.message) from exc
    if args.verbose and done.began is not None:
        files = (_file(args.out), _file(args.err))
        schedule_messages.out(schedule_messages.verbose_end(words(args.task), files, done.began, done.ended))
    return done.exit_code


def _file(said: str | None) -> str:
    return os.path.abspath(said) if said else ""


def _check(args: argparse.Namespace, gpus: schedule_gpus.ScheduleGpus, may: Sequence[int]) -> None:
    """Raise UsageError at once for a request that could never start."""
    here = f"this machine has {_listed(gpus.numbers)} that this shell may use" if gpus.numbers else "it has no GPU here"
    asked = [*(args.forced_gpu or ()), *([] if args.prefered_gpu is None else [args.prefered_gpu])]
    for number in asked:
        if number not in gpus.numbers:
            raise UsageError(f"GPU {number} is not there: {here}")
    for number in args.forced_gpu or ():
        out = next((gpus.out_of_service.get(b.device.key) for b in gpus.budgets if b.device.index == number), None)
        if out:
            raise UsageError(f"GPU {number} is unavailable: {out}")
    room = len(args.forced_gpu or may)
    if gpus.numbers and not 1 <= args.gpu_count <= room:
        raise UsageError(f"-gc {args.gpu_count}: the task may use {room} GPUs, {here}")
    if not gpus.numbers and args.gpu_count > 1:
        raise UsageError(f"-gc {args.gpu_count}: {here}")


def _view(args: argparse.Namespace, session: RunSession, task: int, inner: View) -> View:
    files, waits = exec.files(session, task), exec.holders(session)
    view = schedule_messages.ClassicView(inner, files, waits, session.brain.state)
    view.indices = {device.key: device.index for device in session.devices.discover()}
    view.forced = ",".join(map(str, args.forced_gpu or ()))
    view.asked = lambda: session.signals.asked
    return view
