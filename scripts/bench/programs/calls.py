"""Trivial calls through one executor: `python calls.py KIND CALLS SINGLE` prints what they take, as JSON.

That is the seconds of all calls together, and the median seconds of single ones.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

WORKERS = 2
CHUNK = 100


def nothing(x: int) -> int:
    """Return the argument."""
    return x


@contextmanager
def opened(kind: str) -> Iterator[Executor]:
    """Yield an executor of a kind."""
    if kind.startswith("scheduler"):
        import scheduler

        made: Executor = scheduler.Executor(WORKERS, devices="host")
    elif kind == "process for each call":
        from multiprocessing import get_context

        made = ProcessPoolExecutor(WORKERS, mp_context=get_context("forkserver"), max_tasks_per_child=1)
    else:
        made = ProcessPoolExecutor(WORKERS)
    with made:
        yield made


def seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def with_futures(kind: str, calls: int, single: int) -> tuple[float, float]:
    """Measure an executor of concurrent.futures."""
    with opened(kind) as executor:
        executor.submit(nothing, 0).result()

        def each() -> None:
            made: list[Future[int]] = [executor.submit(nothing, x) for x in range(calls)]
            assert [future.result() for future in made] == [*range(calls)]

        def chunks() -> None:
            assert list(executor.map(nothing, range(calls), chunksize=CHUNK)) == [*range(calls)]

        single_seconds = [seconds(lambda: executor.submit(nothing, 1).result()) for _ in range(single)]
        return seconds(chunks if kind.endswith("chunks") else each), statistics.median(single_seconds)


def with_ray(calls: int, single: int) -> tuple[float, float]:
    """Measure Ray."""
    import ray  # type: ignore[import-not-found, unused-ignore]  # only an environment of its own has it

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    remote: Any = ray.remote(nothing)
    ray.get(remote.remote(0))

    def each() -> None:
        assert ray.get([remote.remote(x) for x in range(calls)]) == [*range(calls)]

    single_seconds = [seconds(lambda: ray.get(remote.remote(1))) for _ in range(single)]
    found = seconds(each), statistics.median(single_seconds)
    ray.shutdown()
    return found


if __name__ == "__main__":
    kind, calls, single = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    both = with_ray(calls, single) if kind == "ray" else with_futures(kind, calls, single)
    print(json.dumps({"all": both[0], "single": both[1]}))
