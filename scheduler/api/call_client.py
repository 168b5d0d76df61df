"""The client of an executor's scheduler: a thread that sends calls to it and hands their results to futures."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.api import call_future
from scheduler.api.call_future import CallFailed, CallFuture, NotPassed, RemoteError
from scheduler.api.sent_modules import SentModules
from scheduler.app.queue.call_source import CallEnd, LinePipe
from scheduler.core.model import State
from scheduler.core.tasks.fields import RowForm
from scheduler.inputs.call_rows import CallRows
from scheduler.inputs.python_calls import PythonCall
from scheduler.runtime import processes, task_launcher
from scheduler.runtime.paths import PACKAGE, RunPaths
from scheduler.values import dataclass

_SERVE = "import sys; sys.path.insert(0, {!r}); from scheduler.app.queue.call_server import main; sys.exit(main())"
MOST_DEATHS = 5
"""The number of schedulers in a row that may die without the end of a call between them."""
_LAST_MOMENT = 10.0
"""The most seconds for which the scheduler may run after the last call."""


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call that has not been sent yet."""

    future: CallFuture
    call: PythonCall
    rows: CallRows
    """The object that makes the row for the call."""


class CallClient:
    """A scheduler of calls in another process, and the thread that communicates with it."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        """Prepare a client; `start` is the first line that is sent to its scheduler. The scheduler is started with the
        first call.
        """
        self._start_line = {**start, "owner": os.getpid()}
        self._pid = os.getpid()
        self._lock = threading.RLock()  # an executor may be collected, and so closed, at any moment
        self._new: deque[NewCall] = deque()
        self._cancelled: list[CallFuture] = []
        self._closing = self._stopping = False
        self._trouble = ""
        """The reason why no further call can be made; empty while calls can be made."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        # only the thread uses these:
        self._process: processes.Child | None = None
        self._pipe: LinePipe | None = None
        self._places: RunPaths | None = None
        self._rows = 0
        self._calls: dict[int, CallFuture] = {}
        """The futures of the calls that were sent and have not ended, by the row number of each call."""
        self._rows_of: dict[int, int] = {}
        """The row number of each accepted task, by its id."""
        self._forms: dict[str, int] = {}
        self._sent: dict[int, tuple[RowForm, list[str]]] = {}
        """The rows that were sent but are not accepted yet, by their numbers."""
        self._ready = False
        """True once the scheduler has answered that it accepts calls."""
        self._over = False
        """True once the run has ended normally; such a run is not resumed."""
        self._modules: SentModules | None = None  # other machines need them
        self._deaths = 0
        """The number of schedulers that have died since a call last ended."""
        _CLIENTS.add(self)

    # ---- for callers, from any thread ----

    def add(self, call: NewCall) -> None:
        """Send a call as soon as possible. Raise RuntimeError after `close`, and BrokenExecutor if there is no
        scheduler.
        """
        with self._lock:
            if os.getpid() != self._pid:
                raise RuntimeError("this executor belongs to another process: create one after the fork")
            if self._trouble:
                raise _Broken(self._trouble)
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if _Exiting.now:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            self._new.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scheduler-executor")
                self._thread.start()
            self._ring()

    def cancelled(self, future: CallFuture) -> None:
        """Note that a future was cancelled, so that its task must not start."""
        with self._lock:
            self._cancelled.append(future)
            self._ring()

    def close(self, *, wait: bool, cancel: bool = False, stop: bool = False) -> None:
        """Accept no more calls. With `cancel`, drop the calls that wait; with `stop`, also end the calls that run; with
        `wait`, return when all calls have ended.
        """
        with self._lock:
            if os.getpid() != self._pid:
                return
            self._closing = True
            self._stopping = self._stopping or stop
            dropped = [call.future for call in self._new] + list(self._calls.values()) if cancel or stop else []
            self._ring()
            thread = self._thread
        for future in dropped:
            future.cancel()
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def forget(self) -> None:
        """Close the pipes in a forked copy of this process, in which no thread uses them; while the copy keeps them
        open, the scheduler would not notice the end of the original process.
        """
        self._lock = threading.RLock()
        if self._pipe is not None:
            self._pipe.close()

    # ---- the thread ----

    def _work(self) -> None:
        try:
            why = self._serve()
        except Exception as exc:  # noqa: BLE001  # a future that is never done would block its caller for ever
            why = f"the executor failed: {exc!r}"
        self._end(why)

    def _serve(self) -> str:
        """Communicate with the scheduler until it has ended, and return why it ended. If the scheduler is killed, start
        another one and continue.
        """
        while True:
            self._start()
            while self._turn():
                pass
            code = self._leave()
            if self._over or self._trouble or self._places is None or self._deaths >= MOST_DEATHS:
                number = self._places.number if self._places is not None else 0
                died = f"the scheduler of run {number} was stopped" if self._over else "its scheduler died"
                return self._trouble or (died if self._over else f"the executor cannot go on: {died} (exit {code})")
            self._deaths += 1
            self._ready = False
            self._rows_of.clear()
            self._forms.clear()

    def _start(self) -> None:
        """Start the scheduler without waiting for its first answer."""
        argv = [sys.executable, "-P", "-c", _SERVE.format(str(PACKAGE.parent))]
        self._process = processes.start_child(argv)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdin as stdin, self._process.stdout as stdout:
            self._pipe = LinePipe(os.dup(stdout.fileno()), os.dup(stdin.fileno()))
        resume = self._places.number if self._places is not None else 0
        self._pipe.send({"start": {**self._start_line, "resume": resume, "open": [*self._calls]}})

    def _turn(self) -> bool:
        """Wait until there is something to send or to receive, and do it; return False when the scheduler has ended."""
        pipe = self._pipe
        assert pipe is not None
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(pipe.read, select.POLLIN)
        if pipe.unsent:
            poll.register(pipe.write, select.POLLOUT)
        poll.poll()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        try:
            for line in pipe.lines():
                self._take(line)
        except EOFError:
            return False
        pipe.flush()
        if self._ready and self._places is not None:
            self._send(pipe, self._places)
        return True

    def _send(self, pipe: LinePipe, places: RunPaths) -> None:
        """Send the new calls, the cancellations, and the request to end."""
        with self._lock:
            new, self._new = self._new, deque()
            cancelled, self._cancelled = self._cancelled, []
            closing, stopping = self._closing, self._stopping
            batches = [self._numbered(call) for call in new if not call.future.cancelled()]
        rows: dict[int, list[Any]] = {}
        for row, call in batches:
            try:
                form, cells = self._written(places, row, call)
            except Exception as exc:  # noqa: BLE001  # a full disk, a name that no row can have: it concerns this call
                call_future.fail(
                    self._finish(row), NotPassed(f"{call.future.name} cannot be passed to its task: {exc}")
                )
                continue
            self._sent[row] = form, cells
            rows.setdefault(self._form(pipe, form), []).append([row, cells])
        for number, each in rows.items():
            pipe.send({"rows": each, "form": number})
        tasks = [future.task_id for future in cancelled if future.task_id is not None]
        if stopping:
            tasks = list(self._rows_of)
        if tasks:
            pipe.send({"cancel": tasks})
        if closing and not self._calls:
            pipe.send({"close": True})

    def _numbered(self, call: NewCall) -> tuple[int, NewCall]:
        self._rows += 1
        self._calls[self._rows] = call.future
        return self._rows, call

    def _written(self, places: RunPaths, row: int, new: NewCall) -> tuple[RowForm, list[str]]:
        """Write the arguments of a call to a file, and return its row."""
        said = {
            **new.call.said, "what": "call", "path": sys.path, "file": "", "module": "", "argv": sys.argv,
            "modules": self._modules.archive(places.given) if self._modules is not None else "",
        }  # fmt: skip
        path = places.call(row)
        task_launcher.write_own(str(path), said, new.call.pickled, durable=False)
        _, cells, _, _ = new.rows.row(row, new.call, str(places.launcher), f"{path}@0")
        new.rows.refuse()
        return new.rows.form, cells

    def _form(self, pipe: LinePipe, form: RowForm) -> int:
        """Return the number of a form; send the form first if it was not sent before."""
        text = form.pack()
        if text not in self._forms:
            self._forms[text] = len(self._forms)
            pipe.send({"form": self._forms[text], "columns": text})
        return self._forms[text]

    # ---- messages of the scheduler ----

    def _take(self, line: Mapping[str, Any]) -> None:
        if "run" in line:
            self._places, self._ready = RunPaths(Path(line["root"]), line["run"]), True
            self._modules = self._modules or (SentModules() if line["elsewhere"] else None)
            self._send_again()
        elif "over" in line:
            self._over = True
        elif "trouble" in line:
            self._trouble = line["trouble"]
        elif "accepted" in line:
            for task, row in line["accepted"]:
                self._accepted(task, row)
        elif "refused" in line:
            self._sent.pop(line["refused"], None)
            future = self._finish(line["refused"])
            call_future.fail(future, _failed(f"{future.name} was refused: {line['why']}", State.REFUSED, None))
        elif "started" in line:
            row = self._rows_of.get(line["started"])
            if row is not None:  # else a killed scheduler had reported its end before that was durable
                call_future.start(self._calls[row], line["attempt"])
        elif "ended" in line:
            self._ended(CallEnd.from_dict(line["ended"]))

    def _send_again(self) -> None:
        """Send the rows again that were sent to a killed scheduler but that it did not accept."""
        assert self._pipe is not None
        for row, (form, cells) in self._sent.items():
            self._pipe.send({"rows": [[row, cells]], "form": self._form(self._pipe, form)})

    def _accepted(self, task: int, row: int) -> None:
        future = self._calls[row]
        self._sent.pop(row, None)
        assert self._places is not None
        call_future.accept(future, self._places, task)
        self._rows_of[task] = row
        if future.cancelled():
            self.cancelled(future)  # the task was still unknown when the call was cancelled

    def _finish(self, row: int) -> CallFuture:
        """Return the future of a call that has ended, and forget the call."""
        with self._lock:
            future = self._calls.pop(row)
        self._ring()
        return future

    def _ended(self, end: CallEnd) -> None:
        row = self._rows_of.pop(end.task)
        self._deaths = 0
        places = self._places
        assert places is not None
        future = self._calls[row]
        call_future.end(future, end)
        try:
            if not future.cancelled():
                _hand_over(future, end, places.value(end.task, end.attempt))
        except Exception as exc:  # noqa: BLE001  # what a value of the user's raises as it is read back
            call_future.fail(future, exc)
        finally:
            self._finish(row)
            places.call(row).unlink(missing_ok=True)
            for attempt in range(1, end.attempt + 1):
                Path(places.value(end.task, attempt)).unlink(missing_ok=True)

    # ---- the end ----

    def _leave(self) -> int | None:
        """Close the pipes, which makes a living scheduler cancel its tasks and exit; return its exit code, or None if
        it has not exited in time.
        """
        if self._pipe is not None and self._process is not None:
            self._pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_LAST_MOMENT)
        return None

    def _end(self, why: str) -> None:
        """End the scheduler's process, and fail every call that has no result yet; `why` is the reason."""
        self._leave()
        with self._lock:
            left = [*(call.future for call in self._new), *self._calls.values()]
            self._new.clear()
            self._calls.clear()
            self._trouble = self._trouble or ("" if self._closing and not left else why)
            self._closing = True
        for future in left:
            call_future.fail(future, _failed(self._trouble, "", future.task_id))


def _hand_over(future: CallFuture, end: CallEnd, result: str) -> None:
    """Set the result or the exception of a future from the file that its task wrote at its end."""
    try:
        file = task_launcher.open_own(result)
    except OSError:
        raise _without_result(future, end) from None
    with file:
        said = task_launcher.said_in(file)
        pickled = file.read()
    if said["error"]:
        call_future.fail(future, _told(future, end, said, pickled))
    elif end.state != State.SUCCEEDED:
        raise _without_result(future, end)
    else:
        value, why = _loaded(pickled)
        if why:
            raise _about(end, RemoteError(f"the result of {_name(future, end)} cannot be loaded here: {why}"))
        call_future.succeed(future, value)


def _name(future: CallFuture, end: CallEnd) -> str:
    return f"{future.name} (task {end.task})"


def _loaded(pickled: bytes) -> tuple[Any, str]:
    """Return a value and an empty string, or None and why the value cannot be loaded: a user's object may raise any
    exception while it is loaded.
    """
    try:
        return pickle.loads(pickled), ""
    except BaseException as exc:  # noqa: BLE001  # even SystemExit, which concerns that object alone
        return None, f"{type(exc).__name__}: {exc}"


def _told(future: CallFuture, end: CallEnd, said: Mapping[str, Any], pickled: bytes) -> BaseException:
    """Return the exception that a call raised; the text of its traceback becomes its cause, as in Python's process
    pools.
    """
    from concurrent.futures.process import _RemoteTraceback  # only a failed call needs its modules

    name, why = _name(future, end), "it cannot be pickled"
    exc: object = None
    if pickled:
        exc, why = _loaded(pickled)
    if said["step"] == "load":
        exc = _about(
            end, CallFailed(f"the function or an argument of {name} cannot be loaded in its task: {said['error']}")
        )
    elif said["step"] == "pickle" and (why or isinstance(exc, Exception)):
        exc = NotPassed(f"the result of {name}, of type {said['type']}, cannot be passed back: {said['error']}")
    elif not isinstance(exc, BaseException):
        why = f"{name} raised {said['type']}, which cannot be loaded here ({why}): {said['error']}"
        exc = _about(end, RemoteError(why))
    text = f'\n"""\n{said["traceback"]}"""'
    if end.state != State.FAILED:
        exc.add_note(f"{name} ended as {end.state}: {end.why}")
    exc.__cause__ = _RemoteTraceback(text)  # type: ignore[arg-type]  # it takes a text, unlike its stub says
    return exc


def _without_result(future: CallFuture, end: CallEnd) -> CallFailed:
    how = f": {end.why}" if end.why else ""
    state = "ended without a result" if end.state == State.SUCCEEDED else f"ended as {end.state}"
    log = f"; scheduler logs {end.task} shows what it printed" if end.attempt else ""
    return _about(end, CallFailed(f"{_name(future, end)} {state}{how}{log}"))


def _about(end: CallEnd, failed: CallFailed) -> CallFailed:
    """Return the error of a call, with the state and the id of its task added."""
    failed.state, failed.task = end.state, end.task
    return failed


def _failed(why: str, state: str, task: int | None) -> CallFailed:
    failed = CallFailed(why)
    failed.state, failed.task = state, task
    return failed


class _Broken(CallFailed):
    """The error of a call that cannot be made because the executor has no scheduler."""


# ---- the end of the interpreter, and copies of the process ----

_CLIENTS: weakref.WeakSet[CallClient] = weakref.WeakSet()


class _Exiting:
    now = False


def _at_exit() -> None:
    """Wait until all calls have ended, as Python's process pools do when the interpreter exits."""
    _Exiting.now = True
    for client in list(_CLIENTS):
        client.close(wait=True)


def _after_fork() -> None:
    for client in list(_CLIENTS):
        client.forget()


threading._register_atexit(_at_exit)  # type: ignore[attr-defined]  # before threads are joined; the pools do so too
os.register_at_fork(after_in_child=_after_fork)
