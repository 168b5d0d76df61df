"""`Executor`: calls of Python functions as tasks, each in a process of its own, packed by their learned memory."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from types import TracebackType
from typing import Any

from scheduler.api import call_future
from scheduler.api.call_client import CallClient, NewCall
from scheduler.api.call_future import CallFuture, NotPassed
from scheduler.api.call_words import describe, describe_chunk
from scheduler.app.run.options import RunOptions, check_counts, nodes_of, run_name
from scheduler.core.tasks.fields import BadCell
from scheduler.errors import ConfigError, UsageError
from scheduler.inputs.call_rows import CallRows
from scheduler.inputs.python_calls import PythonCall
from scheduler.inputs.python_tasks import Task
from scheduler.runtime import task_launcher
from scheduler.runtime.python_envs import missing_package
from scheduler.values import replace

FIELDS = (
    "memory", "gpus", "cpus", "env", "host_memory", "priority", "timeout", "grace", "retries", "device", "node",
    "prefer", "exclusive",
)  # fmt: skip
"""The fields of a task that `options` can set."""


class Executor(futures.Executor):
    """An executor of the standard library whose calls are tasks: packed on the GPUs, watched, and learned from.

    Each call runs in a process of its own. Functions and arguments are passed by cloudpickle, so that functions of a
    notebook, nested functions and lambdas can be called too.
    """

    def __init__(  # noqa: PLR0913  # each is a column or a flag, by keyword only
        self,
        max_workers: int | None = None,
        *,
        memory: str | None = None,
        gpus: int | None = None,
        cpus: float | None = None,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
        devices: str = "auto",
        on: str | Sequence[str] = "",
        name: str = "",
        state: str | None = None,
    ) -> None:
        """Prepare an executor; its scheduler starts with the first call.

        `memory` is what a call needs on each GPU ("8GiB"); None: it is learned. `gpus` is how many GPUs a call gets;
        None: one, where there are GPUs. `env` are variables for the calls. `max_workers` limits how many calls run at
        once; None: as many as fit. `preload` are names of modules that are imported once for all calls. `on` names
        the machines that make the calls ("ssh:gpu1,gpu2"); empty: this one, or those of the setting. Raise UsageError
        for values that no task can have, ConfigError for modules that cannot be found.
        """
        if max_workers is not None and max_workers <= 0:
            raise ConfigError(f"max_workers must be greater than 0, not {max_workers}; None: as many calls as fit")
        check_counts(max_workers=max_workers)
        task_launcher.stop_loading()
        self._dumps = _cloudpickle()
        options = RunOptions(
            devices,
            jobs=max_workers,
            name=run_name("name=", name),
            keep_going=True,
            preload=_checked_modules(preload),
            path=[os.path.abspath(entry) for entry in sys.path] if preload else (),
        )
        settings = {"state": state, "on": nodes_of(on)}
        start = {"what": _what(), "options": options.to_dict(), "settings": settings}
        self._client = CallClient(start)
        self._owner = _Owner(self._client)
        said = {"memory": memory, "gpus": gpus, "cpus": cpus, "env": env}
        self._set_fields({key: value for key, value in said.items() if value is not None})

    def _set_fields(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)
        self._rows: dict[tuple[str, ...], CallRows] = {}
        """The objects that make rows, by the names of the arguments; each makes the rows of all calls with
        these names.
        """
        try:
            self._rows_of(()).check_terms()
        except BadCell as exc:
            raise UsageError(f"{exc.column}: {exc}") from exc

    def _rows_of(self, names: tuple[str, ...]) -> CallRows:
        if names not in self._rows:
            self._rows[names] = CallRows(names, self._fields, sys.executable)
        return self._rows[names]

    def options(self, **fields: Any) -> Executor:
        """Return this executor with other fields for the calls that are made with it: memory, gpus, timeout, ….

        It shares the scheduler: `shutdown` of either ends both. Raise UsageError for a field that calls cannot have.
        """
        strange = sorted(fields.keys() - set(FIELDS))
        if strange:
            raise UsageError(f"options({strange[0]}=…): the options of a call are {', '.join(FIELDS)}")
        made = object.__new__(type(self))
        made._dumps, made._client, made._owner = self._dumps, self._client, self._owner
        usual = {field: getattr(Task, field, None) for field in fields}
        made._set_fields(
            {**self._fields, **{key: usual[key] if value is None else value for key, value in fields.items()}}
        )
        return made

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Make a call as a task and return its future. If an argument cannot be passed, the future has an exception."""
        return self._add(fn, (fn, args, kwargs), describe(fn, args, kwargs), each=False)

    def _add(self, fn: Callable[..., Any], what: object, call: PythonCall, *, each: bool) -> CallFuture:
        """Make a call; with `each`, `what` has the arguments of several calls, and the result is a list."""
        future = CallFuture(call.name, self._client.cancelled)
        rows = self._rows_of(tuple(call.varied))
        pass_by_value(getattr(fn, "__module__", None))
        try:
            pickled = self._dumps(what)
        except Exception as exc:  # noqa: BLE001  # objects of the user raise anything
            call_future.fail(
                future, NotPassed(f"{call.name}: {self._which(fn, what)} cannot be passed to another process: {exc}")
            )
            return future
        self._client.add(NewCall(future, replace(call, pickled=pickled, said={"each": each}), rows))
        return future

    def _which(self, fn: Callable[..., Any], what: Any) -> str:
        """Return which part of a call cannot be pickled, in words."""
        _, args, kwargs = what
        named = [("the function", fn)]
        named += [(f"argument {i}", value) for i, value in enumerate(args, 1)]
        named += [(f"the argument {name!r}", value) for name, value in kwargs.items()]
        for name, value in named:
            try:
                self._dumps(value)
            except Exception:  # noqa: BLE001  # as above
                return name
        return "it"

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Return the results of `fn` on the values of the iterables, in order; `chunksize` calls share a task.

        The calls of a task are made one after another, and fail together: a larger `chunksize` suits short calls.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        results = _Chunks(self).map(fn, _chunks(zip(*iterables, strict=False), chunksize), timeout=timeout)
        return itertools.chain.from_iterable(results)

    def _submit_chunk(self, fn: Callable[..., Any], chunk: Sequence[tuple[Any, ...]]) -> CallFuture:
        """Make several calls of a function in one task, one after another; the result of the task is the list of their
        results.
        """
        return self._add(fn, (fn, chunk, {}), describe_chunk(fn, len(chunk)), each=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and with `wait` return when all have ended; `cancel_futures` drops the calls
        that wait.
        """
        self._client.close(wait=wait, cancel=cancel_futures)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Wait for all calls at the end of the `with` block; after Ctrl-C or SystemExit, end them instead."""
        stop = kind is not None and not issubclass(kind, Exception)
        self._client.close(wait=True, stop=stop)
        return None


class _Chunks(futures.Executor):
    """An executor for one `map`, which submits each chunk of calls as one call."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Submit a chunk of calls, which is the only argument."""
        return self._inner._submit_chunk(fn, *args)


class _Owner:
    """An object that an executor and all executors from its `options` share; when the last of them is deleted, the
    client is closed.
    """

    def __init__(self, client: CallClient) -> None:
        weakref.finalize(self, client.close, wait=False).atexit = False


def _chunks(values: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    values = iter(values)
    while chunk := list(itertools.islice(values, size)):
        yield chunk


def _cloudpickle() -> Callable[[object], bytes]:
    try:
        import cloudpickle  # no other part needs it
    except ModuleNotFoundError:
        raise missing_package("cloudpickle") from None
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    return dumps


def _checked_modules(names: Sequence[str]) -> list[str]:
    """Return the names of modules; raise ConfigError for a module that cannot be found."""
    if isinstance(names, str):
        raise ConfigError(f"preload={names!r}: give a list of names, such as [{names!r}]")
    for name in names:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError) as exc:
            raise ConfigError(f"preload: {name!r} cannot be found: {exc}") from exc
        if found is None:
            raise ConfigError(f"preload: there is no module {name!r} on this program's path")
    return [*names]


@functools.lru_cache(1024)
def pass_by_value(name: str | None) -> None:
    """Make cloudpickle pass the code of a module's functions if no other process can import the module by its name.

    Such modules were loaded from the path of their file; pytest and plug-in systems do this.
    """
    module = sys.modules.get(name or "")
    if module is None or name == "__main__":
        return
    import cloudpickle  # a call is being made, so it is there

    top = module.__name__.partition(".")[0]
    with contextlib.suppress(Exception):  # finders of the user raise anything
        if not any(finder.find_spec(top, None) for finder in sys.meta_path if hasattr(finder, "find_spec")):
            cloudpickle.register_pickle_by_value(module)


def _what() -> str:
    """Return the name of the run in lists: the name of the program that created the executor."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return f"executor of {os.path.basename(file) if file else 'a notebook or a prompt'}"
