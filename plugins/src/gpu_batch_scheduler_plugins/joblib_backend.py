"""joblib's backend `gsched`: each batch of calls of a `Parallel` becomes one call of a `scheduler.Executor`.

from gpu_batch_scheduler_plugins import joblib_backend joblib_backend.register() with
joblib.parallel_config(backend="gsched", n_jobs=-1): ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import joblib
from joblib._parallel_backends import ParallelBackendBase, SequentialBackend

from gpu_batch_scheduler_plugins._core import Executor

NAME = "gsched"


def register() -> None:
    """Register the backend with joblib in this process, under the name `gsched`."""
    joblib.register_parallel_backend(NAME, GschedBackend)


class GschedBackend(ParallelBackendBase):
    """The backend that runs calls as tasks of one run, packed by their memory. `n_jobs=-1`: as many at once as fit."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, **options: Any) -> None:
        """Note the options for the `scheduler.Executor` (memory, gpus, cpus, env, devices, name, state), and the task
        fields in `options`.
        """
        super().__init__(nesting_level=nesting_level)
        self._options = dict(options)
        self._fields: Mapping[str, Any] = self._options.pop("options", {})
        self._executor: Any = None
        self._futures: set[Future[Any]] = set()
        self.parallel: Any = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many calls joblib hands over at first: with -1 twice the number of cores, at least 32."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        return n_jobs if n_jobs is not None and n_jobs > 0 else max(32, 2 * (os.cpu_count() or 1))

    def configure(self, n_jobs: int | None = 1, parallel: Any = None, **_: Any) -> int:
        """Prepare an executor; its scheduler starts with the first call."""
        self.parallel = parallel
        wanted = self.effective_n_jobs(n_jobs)
        limit = n_jobs if n_jobs is not None and n_jobs > 0 else None
        self._executor = Executor(limit, **self._options)
        if self._fields:
            self._executor = self._executor.options(**self._fields)
        return wanted

    def submit(self, func: Any, callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Run a batch of calls in a process of its own; return the future of its results."""
        future: Future[Any] = self._submitted(func)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def _submitted(self, func: Any) -> Future[Any]:
        """Submit a batch of one call as that call itself, so that its memory is learned by the call's own arguments."""
        found: Future[Any]
        items: Any = getattr(func, "items", ())
        if len(items) == 1:
            function, args, kwargs = items[0]
            found = _Listed(self._executor.submit(function, *args, **kwargs))
        else:
            found = self._executor.submit(func)
        return found

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the results of a batch; raise the error if its call failed."""
        return out.result()

    def terminate(self) -> None:
        """End the run once its calls have ended."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End all calls after one of them has failed."""
        if self._executor is not None:
            self._executor.__exit__(KeyboardInterrupt, None, None)
            self._executor = None
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Return the backend for a `Parallel` inside a call. This backend makes the inner calls one after another,
        within the memory of the outer call.
        """
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None


class _Listed(Future[Any]):
    """The future of a batch of one call: its result is a list with one value."""

    def __init__(self, inner: Future[Any]) -> None:
        super().__init__()
        self._inner = inner
        inner.add_done_callback(self._pass_on)

    def cancel(self) -> bool:
        """Cancel the call."""
        return self._inner.cancel()

    def _pass_on(self, inner: Future[Any]) -> None:
        if inner.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
        elif (error := inner.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result([inner.result()])
