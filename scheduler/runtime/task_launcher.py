"""The launcher of one Python task in a process of its own: its folder, its class or function, its result.

    python launcher.py GIVEN [words that only describe the task]

GIVEN is FILE@PLACE. FILE has the calls of a whole run: first a line of JSON and a pickle that all calls share, then a
line of JSON and a pickle for each call. PLACE is the position at which those of this call begin. The file is only read
if this user owns it and no other user can write it, since the writer of a pickle controls its reader. This module uses
the standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import json
import os
import pickle
import stat
import sys
import traceback
from types import ModuleType
from typing import Any, BinaryIO

MARKER = ".gpu_task_scheduler"
"""The file in a result folder that shows whether the work is in progress or done; it is locked while a task works
there."""
FINISHED, STARTED, FAILED = "finished", "started", "failed"
MAIN = "__mp_main__"
"""The name under which a script is loaded that was run as `__main__`: its own `__main__` guard then prevents it from
starting again."""
AGAIN = "SCHEDULER_LAUNCHED"
"""The variable that is set while this process executes itself again: the descriptor of the locked marker, or
nothing."""
TAIL = 64 * 1024
MANIFEST = "modules.json"
"""The name of the file in an archive of modules that has the digests of the other files, by their paths."""


class SchedulerReached(BaseException):
    """Raised when a module that is being loaded starts a scheduler: only the part of the module above that call has
    been loaded.
    """


class ModuleLoading:
    """The state of this process: `now` is True while a task's module is being loaded. See `stop_loading`."""

    now = False


def stop_loading() -> None:
    """End the loading of a module; every call that starts a scheduler calls this first."""
    if ModuleLoading.now:
        raise SchedulerReached


# Files


def open_own(path: str) -> BinaryIO:
    """Open a file that only this user can have written. If it is not such a file, raise OSError or PermissionError with
    the reason.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        os.close(fd)
        raise PermissionError(f"{path} is not read: it must be a plain file of yours that no other user can write")
    return os.fdopen(fd, "rb")


def write_own(path: str, said: dict[str, Any], pickled: bytes, *, durable: bool = True) -> None:
    """Write a file for `open_own`, readable by its owner only, completely or not at all.

    Unless `durable` is set, the file may be empty after a power failure.
    """
    fd = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(said).encode() + b"\n" + pickled)
        if durable:
            file.flush()
            os.fsync(fd)
    os.replace(f"{path}.part", path)


class CallWriter:
    """The file of a run's calls while it is written; the file gets its final name once all calls are on disk."""

    def __init__(self, path: str, said: dict[str, Any], shared: bytes = b"") -> None:
        """Create the file and write what all calls share: `said` for the launcher, and a pickled dictionary (empty:
        none).
        """
        self._path = path
        self._part = f"{path}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self._part, flags, 0o600), "wb")
        self._at = 0
        self._write(json.dumps({**said, "shared": len(shared)}).encode() + b"\n" + shared)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)

    def add(self, said: dict[str, Any], pickled: bytes) -> str:
        """Write a call and return its GIVEN; `said` and the pickled dictionary or value belong to this call only."""
        place = f"{self._path}@{self._at}"
        self._write(json.dumps(said).encode() + b"\n" + pickled)
        return place

    def close(self, *, complete: bool) -> None:
        """Give the file its final name, durably; if `complete` is False, remove the file."""
        with self._file:
            self._file.flush()
            if complete:
                os.fsync(self._file.fileno())  # else a power cut leaves an empty file of that name
        if complete:
            os.replace(self._part, self._path)
        else:
            with contextlib.suppress(FileNotFoundError):  # if the list is interrupted, the run is removed first
                os.unlink(self._part)


class Call:
    """One call in a file of calls: its description, and its values, which can be loaded once its module is loaded."""

    def __init__(self, given: str) -> None:
        """Find the call in its file. If that is impossible, raise OSError, PermissionError or ValueError with the
        reason.
        """
        path, _, place = given.rpartition("@")
        self.folder = os.path.dirname(path)
        self._file = open_own(path)
        try:
            common = said_in(self._file)
            self._shared = self._file.tell() if common.pop("shared", 0) else -1
            self._file.seek(int(place))
            self.said = {**common, **said_in(self._file)}
            self._own = self._file.tell()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file of a call whose value is not needed."""
        self._file.close()

    def load(self) -> Any:
        """Return the call's value; a dictionary has the shared values too."""
        with self._file as file:
            file.seek(self._own)
            own = pickle.load(file)
            if self._shared < 0:
                return own
            file.seek(self._shared)
            return {**pickle.load(file), **own}


def said_in(file: BinaryIO) -> dict[str, Any]:
    """Return the next line of a file of calls. Raise ValueError if it is not a JSON object."""
    said: dict[str, Any] = json.loads(file.readline())
    return said


def state_of(work_dir: str) -> str:
    """Return the state of a result folder's task; empty if the folder does not exist or is empty.

    A folder with results but without a marker was finished by another program.
    """
    try:
        with open(os.path.join(work_dir, MARKER), "rb") as file:
            return _state(file.read())
    except OSError:
        pass
    try:
        return FINISHED if os.listdir(work_dir) else ""
    except OSError:
        return ""


def _state(text: bytes) -> str:
    try:
        return str(json.loads(text)["state"])
    except (ValueError, KeyError, TypeError):
        return STARTED


class ResultFolder:
    """The result folder of a task while the task works there."""

    def __init__(self, path: str, fd: int = -1) -> None:
        self.path = path
        self._fd = fd

    def enter(self, *, force: bool) -> str:
        """Create and lock the folder; return why there is nothing to do in it, or an empty string."""
        before = state_of(self.path)
        os.makedirs(self.path, exist_ok=True)
        if before == FINISHED and not force:
            return f"{self.path} holds its results already"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(os.path.join(self.path, MARKER), flags, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if force else fcntl.LOCK_NB))
        except BlockingIOError:
            return f"another scheduler is running it in {self.path}"
        except OSError:
            pass  # a file system without locks: other users of the folder go unnoticed
        if _state(os.pread(self._fd, 4096, 0) or b"{}") == FINISHED and not force:
            return f"{self.path} holds its results already"  # it was finished a moment ago
        self.note(STARTED)
        return ""

    def note(self, state: str) -> None:
        """Write the state of the work to the marker."""
        if self._fd < 0:
            return
        said = {"state": state, "run": os.environ.get("SCHEDULER_RUN", ""), "task": os.environ.get("SCHEDULER_TASK_ID")}
        text = json.dumps(said).encode() + b"\n"
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def keep(self) -> str:
        """Return the string by which this process finds the folder after it has executed itself again; the folder stays
        locked until then.
        """
        if self._fd >= 0:
            os.set_inheritable(self._fd, True)
        return str(self._fd)


def share_log(path: str) -> int:
    """Write the output to this file and to the log, as one file with two names if possible.

    Otherwise the output goes to this file alone; return the descriptor of the log, so that the caller can copy the end
    of the file to the log. Return -1 if nothing has to be copied.
    """
    temporary = f"{path}.{os.getpid()}"
    log = os.readlink("/proc/self/fd/1")
    try:
        os.link(log, temporary)
        os.replace(temporary, path)
    except OSError:
        return _write_there(path)
    return -1


def _write_there(path: str) -> int:
    log = os.dup(1)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
    os.write(log, f"the output is in {os.path.abspath(path)}\n".encode("utf-8", "surrogateescape"))
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    return log


def copy_end(path: str, log: int) -> None:
    """Copy the end of a file to the log."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        os.write(log, file.read())


# Modules


def load(said: dict[str, Any]) -> ModuleType:
    """Return the module of a task, loaded from its file under its own name; the working directory comes last on the
    path.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    sys.path += [entry for entry in [os.getcwd(), *said["path"]] if entry not in sys.path]
    name, file = said["module"], said["file"]
    if not file:
        return importlib.import_module(name)
    ModuleLoading.now = True
    try:
        return _from_file(name, file, said["package"])
    finally:
        ModuleLoading.now = False


def _from_file(name: str, file: str, package: str) -> ModuleType:
    if package:
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    if package:
        module.__package__ = package
    sys.modules[name] = module
    if name == MAIN:
        sys.modules["__main__"] = module
    with contextlib.suppress(SchedulerReached):
        spec.loader.exec_module(module)
    return module


def find(module: ModuleType, qualname: str) -> Any:
    """Return the object with this name in the module."""
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def no_display() -> None:
    """Make matplotlib, if it is installed, draw into files."""
    with contextlib.suppress(ImportError):
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")


# Tasks


def run_task(call: Call) -> int:
    """Run a task's class: its folder, its variables, its `main`; return the exit code."""
    said = call.said
    again = os.environ.pop(AGAIN, "")
    marker, _, log = again.partition(":")
    folder = ResultFolder(said["work_dir"], int(marker or -1))
    why = "" if again else folder.enter(force=said["force"])
    if why:
        sys.stdout.write(f"skipped: {why}\n")
        leave_result({"skipped": why})
        return 0
    log_file = said["log_file"] and os.path.join(said["work_dir"], said["log_file"])
    copy_to = int(log or -1) if again or not log_file else share_log(log_file)
    state = FAILED
    try:
        state = _work(call, folder, -1 if again else copy_to, again=bool(again))
        return int(state != FINISHED)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        folder.note(state)
        if copy_to >= 0:
            copy_end(log_file, copy_to)


def _work(call: Call, folder: ResultFolder, log: int, *, again: bool) -> str:
    """Run the class's `main`; return the state of the work, finished or failed."""
    said = call.said
    try:
        module = load(said)
        no_display()
        worker = find(module, said["name"])(call.load(), said["work_dir"])
        env = {} if again else variables(worker.required_env())
        if env:
            execute_again(env, folder, log)
        worker.main()
    except SystemExit as exc:
        if exc.code not in (None, 0):
            raise
    except Exception:  # noqa: BLE001  # a task's own: its traceback goes into its log, where nothing of it is ours
        traceback.print_exc()
        return FAILED
    return FINISHED


def variables(said: object) -> dict[str, str]:
    """Return the result of `required_env` as variables."""
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise TypeError(f"required_env() must return a dictionary of environment variables, not {said!r}")
    return {str(name): str(value) for name, value in said.items()}


def execute_again(env: dict[str, str], folder: ResultFolder, log: int) -> None:
    """Execute this program again with these variables, since many are only read when a process starts."""
    sys.stdout.flush()
    sys.stderr.flush()
    if log >= 0:
        os.set_inheritable(log, True)
    os.environ.update(env)
    os.environ[AGAIN] = f"{folder.keep()}:{log}"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def digest(content: bytes) -> str:
    """Return the digest of a module."""
    from hashlib import blake2b  # only calls on other machines need it

    return blake2b(content, digest_size=16).hexdigest()


def module_path(archive: str, path: list[str]) -> list[str]:
    """Return the module search path of a call. The archive that was sent comes first, unless this machine has all of
    its modules too.

    The first call on a machine checks this, and notes the result in a file next to the archive.
    """
    noted = f"{archive}.here"
    if not os.path.exists(noted):
        with open(f"{noted}.{os.getpid()}", "w", encoding="ascii") as file:
            file.write("1" if _are_here(archive) else "0")
        os.replace(file.name, noted)
    with open(noted, encoding="ascii") as file:
        return path if file.read() == "1" else [archive, *path]


def _are_here(archive: str) -> bool:
    """Tell whether the files of an archive are on this machine at their paths, with the same content."""
    import zipimport  # part of every interpreter

    manifest = json.loads(zipimport.zipimporter(archive).get_data(MANIFEST))
    return all(_digest_of(path) == known for path, known in manifest.items())


def _digest_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return digest(file.read())
    except OSError:
        return ""


def value_path() -> str:
    """Return the file for what a function returns: it lies next to the attempt's result, which the run has named."""
    return f"{os.environ['SCHEDULER_RESULT']}.value"


def run_function(call: Call) -> int:
    """Run a function, and write what it returns to a file of the attempt. Return the exit code."""
    result = value_path()
    try:
        module = load(call.said)
        value = find(module, call.said["name"])(call.load())
        write_own(result, {"error": ""}, pickle.dumps(value))
    except Exception as exc:  # noqa: BLE001  # a task's own: it is saved as data, and printed in the log
        traceback.print_exc()
        write_own(result, {"error": "".join(traceback.format_exception_only(exc)).strip()}, b"")
        return 1
    return 0


def run_call(call: Call) -> int:
    """Run a call of an executor, and write its value or its exception to a file of the attempt. Return the exit code.

    The function and its arguments are pickled with cloudpickle, which the caller's environment has.
    """
    result = value_path()
    sys.path[:] = call.said["path"]
    if call.said["modules"]:
        sys.path[:] = module_path(os.path.join(call.folder, call.said["modules"]), sys.path)
    step, kind = "load", ""
    try:
        function, args, kwargs = call.load()
        step = "call"
        value = [function(*each) for each in args] if call.said["each"] else function(*args, **kwargs)
        step, kind = "pickle", type(value).__qualname__
        write_own(result, {"error": ""}, _pickled(value), durable=False)
    except BaseException as exc:  # noqa: BLE001  # whatever it raises is the caller's, as in the pools of Python
        told = traceback.format_exc()
        sys.stderr.write(told)
        error = "".join(traceback.format_exception_only(exc)).strip()
        said = {"error": error, "traceback": told, "step": step, "type": kind or type(exc).__qualname__}
        write_own(result, said, _pickled_exception(exc), durable=False)
        return 1
    return 0


def _pickled(value: object) -> bytes:
    import cloudpickle  # only calls of an executor need it, and they have it

    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def _pickled_exception(exc: BaseException) -> bytes:
    """Return an exception without its frames; nothing if it cannot be pickled."""
    try:
        return _pickled(exc.with_traceback(None))
    except Exception:  # noqa: BLE001  # objects of the user raise anything
        return b""


def leave_result(said: dict[str, Any]) -> None:
    """Write the result of the task for the scheduler, if a scheduler has started this process."""
    path = os.environ.get("SCHEDULER_RESULT")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(said, file)


def main(argv: list[str]) -> int:
    """Run the task that a file describes; return the exit code."""
    try:
        call = Call(argv[1])
    except (OSError, ValueError, IndexError) as exc:
        why = "there is no call to read" if isinstance(exc, IndexError) else exc
        sys.stderr.write(
            f"{why}: the first argument names a call in a file that a run has written into its folder `given`\n"
        )
        return 2
    sys.argv[:] = call.said.get("argv") or [call.said["file"] or call.said["module"]]
    return RUNNERS[call.said["what"]](call)


RUNNERS = {"function": run_function, "call": run_call, "task": run_task}


if __name__ == "__main__":
    sys.modules["scheduler.runtime.task_launcher"] = sys.modules[
        "__main__"
    ]  # for code that starts a scheduler while it is loaded
    sys.exit(main(sys.argv))
