"""`scheduler.Executor`: calls of functions as tasks, their results and failures, and what is left when things die."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

import scheduler
from scheduler import CallFailed, ConfigError, Executor, NotPassed, RemoteError, UsageError
from tests.e2e.older_tools.project import Project
from tests.support.faults import fault
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CALLER = """\
import os, sys, time, scheduler
def hold(name):
    open(name, "w").write(str(os.getpid()))
    time.sleep(600)
def said(path):
    while not os.path.exists(path) or not open(path).read():
        time.sleep(0.02)
    return int(open(path).read())
"""


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))
    with Executor(state=str(tmp_path / "state"), devices="host") as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.end()


def double(x: int) -> int:
    """Print the argument and return twice of it."""
    print("doubling", x)
    return 2 * x


def fail(text: str) -> None:
    """Raise an error."""
    raise ValueError(text)


class TestResults:
    def test_a_call_returns_its_value_and_knows_its_task(self, executor: Executor) -> None:
        future = executor.submit(double, 21)
        assert future.result(60) == 42
        assert (future.log(), future.name) == ("doubling 21\n", "double x-21")
        assert future.task_id is not None
        assert future.run == 1
        assert future.peak is not None
        assert future.peak > 1 << 20

    def test_lambdas_and_nested_functions_are_called_with_what_they_enclose(self, executor: Executor) -> None:
        offset = 5

        def add(x: int, *, to: int) -> int:
            return x + to + offset

        assert [executor.submit(add, 1, to=2).result(60), executor.submit(lambda: offset).result(60)] == [8, 5]

    def test_functions_of_a_module_that_no_other_process_can_import_are_passed_themselves(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        (tmp_path / "plug_in.py").write_text("FACTOR = 3\ndef triple(x):\n    return FACTOR * x\n")
        spec = importlib.util.spec_from_file_location("my_plug_in", tmp_path / "plug_in.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["my_plug_in"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert executor.submit(module.triple, 2).result(60) == 6

    def test_functions_typed_at_a_prompt_are_called(self, project: Project) -> None:
        lines = "import scheduler\nclass A:\n    pass\ndef make(x):\n    a = A()\n    a.x = x\n    return a\n"
        lines += "with scheduler.Executor() as ex:\n    a = ex.submit(make, 4).result()\n    print(type(a) is A, a.x)\n"
        project.command = [sys.executable]
        assert project.call("-c", lines, code=0).stdout == "True 4\n"

    def test_map_returns_results_in_order_also_in_chunks(self, executor: Executor) -> None:
        assert list(executor.map(pow, range(5), [2] * 5)) == [0, 1, 4, 9, 16]
        assert list(executor.map(pow, range(5), [2] * 5, chunksize=2)) == [0, 1, 4, 9, 16]

    def test_as_completed_and_wait_take_the_futures(self, executor: Executor) -> None:
        made = [executor.submit(double, x) for x in range(3)]
        assert sorted(future.result() for future in futures.as_completed(made, 60)) == [0, 2, 4]
        assert futures.wait(made).not_done == set()

    def test_an_event_loop_awaits_the_futures(self, executor: Executor) -> None:
        async def both() -> tuple[int, int]:
            loop = asyncio.get_running_loop()
            return await asyncio.wrap_future(executor.submit(double, 1)), await loop.run_in_executor(
                executor, double, 2
            )

        assert asyncio.run(both()) == (2, 4)

    def test_many_threads_share_an_executor(self, executor: Executor) -> None:
        with futures.ThreadPoolExecutor(8) as threads:
            assert list(threads.map(lambda x: executor.submit(double, x).result(60), range(8))) == [*range(0, 16, 2)]

    def test_options_reach_the_task(self, executor: Executor) -> None:
        other = executor.options(env={"MY_WORD": "blue sky"}, memory="300MiB")
        assert other.submit(lambda: os.environ["MY_WORD"]).result(60) == "blue sky"
        assert executor.submit(lambda: os.environ.get("MY_WORD")).result(60) is None
        reserved = other.submit(lambda: os.environ["SCHEDULER_HOST_MEMORY_BYTES"])
        assert reserved.result(60) == str(300 << 20)

    def test_max_workers_limits_the_calls_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))

        def spans() -> tuple[float, float]:
            import time

            began = time.time()
            time.sleep(0.1)
            return began, time.time()

        with Executor(1, state=str(tmp_path / "state"), devices="host") as one:
            times = sorted(future.result(60) for future in [one.submit(spans) for _ in range(3)])
        assert all(before[1] <= after[0] for before, after in pairwise(times))

    def test_the_run_is_listed_with_the_names_and_arguments_of_its_calls(self, tmp_path: Path) -> None:
        with Executor(state=str(tmp_path / "state"), devices="host") as made:
            made.submit(double, 3).result(60)
        (found,) = scheduler.runs(str(tmp_path / "state"))
        assert [(row["name"], row["state"], row["config.x"]) for row in found.tasks] == [
            ("double x-3", "succeeded", "3")
        ]

    def test_files_of_calls_are_removed_once_their_results_are_taken(self, executor: Executor, tmp_path: Path) -> None:
        executor.submit(double, 1).result(60)
        given = tmp_path / "state" / "runs" / "1" / "given"
        assert given.stat().st_mode & 0o777 == 0o700
        wait_until(lambda: not list(given.iterdir()))


class Unloadable(Exception):
    """An exception that can be pickled but not loaded: its class takes two arguments and passes one on."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


class TestFailures:
    def test_an_exception_comes_back_with_its_traceback(self, executor: Executor) -> None:
        exc = executor.submit(fail, "no such layer").exception(60)
        assert isinstance(exc, ValueError)
        assert exc.args == ("no such layer",)
        assert "raise ValueError(text)" in str(exc.__cause__)

    @fault(142)
    def test_a_call_that_is_killed_fails_alone_and_names_its_log(self, executor: Executor) -> None:
        def die() -> None:
            print("so far", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        other, killed = executor.submit(double, 1), executor.submit(die)
        exc = killed.exception(60)
        assert isinstance(exc, CallFailed)
        assert isinstance(exc, futures.BrokenExecutor)
        assert (exc.state, exc.task) == ("failed", killed.task_id)
        assert "ended as failed: signal 9; scheduler logs" in str(exc)
        assert killed.log() == "so far\n"
        assert (other.result(60), executor.submit(double, 4).result(60)) == (2, 8)

    def test_an_argument_that_cannot_be_pickled_is_named(self, executor: Executor) -> None:
        exc = executor.submit(double, threading.Lock()).exception(60)  # type: ignore[arg-type]
        assert isinstance(exc, NotPassed)
        assert isinstance(exc, pickle.PicklingError)
        assert "argument 1 cannot be passed to another process: cannot pickle '_thread.lock' object" in str(exc)

    def test_a_result_that_cannot_be_pickled_is_named_by_its_type(self, executor: Executor) -> None:
        exc = executor.submit(lambda: (x for x in ())).exception(60)
        assert isinstance(exc, NotPassed)
        assert "of type generator, cannot be passed back: TypeError: cannot pickle 'generator' object" in str(exc)

    def test_an_exception_whose_class_cannot_be_loaded_is_told_in_words(self, executor: Executor) -> None:
        def raise_it() -> None:
            raise Unloadable("layer", 3)

        exc = executor.submit(raise_it).exception(60)
        assert isinstance(exc, RemoteError)
        assert "raised Unloadable, which cannot be loaded here (TypeError: " in str(exc)
        assert "layer 3" in str(exc)
        assert "raise Unloadable" in str(exc.__cause__)

    def test_a_call_that_no_device_can_hold_is_refused_with_the_numbers(self, executor: Executor) -> None:
        exc = executor.options(memory="900TiB").submit(double, 1).exception(60)
        assert isinstance(exc, CallFailed)
        assert exc.state == "refused"
        assert "double x-1 was refused: needs 921600.0GiB; the largest device (host) has" in str(exc)
        assert executor.submit(double, 1).result(60) == 2

    def test_a_call_beyond_its_time_limit_fails_with_that_state(self, executor: Executor) -> None:
        exc = executor.options(timeout="1s").submit(signal.pause).exception(60)
        assert isinstance(exc, CallFailed)
        assert exc.state == "timeout"

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"memory": "8"}, "Memory: '8' has no unit"),
            ({"gpus": -1}, "GPUs: "),
            ({"colour": 1}, r"options\(colour=…\): the options of a call are memory"),
        ],
    )
    def test_a_field_that_no_call_can_have_is_refused_at_once(
        self, executor: Executor, fields: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(UsageError, match=words):
            executor.options(**fields)

    def test_without_a_state_directory_the_first_result_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with Executor(state=str(tmp_path / "file" / "state")) as made:
            exc = made.submit(double, 1).exception(60)
            assert "cannot make the state directory" in str(exc)
            with pytest.raises(CallFailed, match="cannot make the state directory"):
                made.submit(double, 1)


class TestCancelling:
    def test_a_waiting_call_is_cancelled_and_never_starts(self, tmp_path: Path) -> None:
        state = str(tmp_path / "state")
        with Executor(1, state=state, devices="host") as made:
            first = made.submit(signal.pause)
            wait_until(first.running)
            second = made.submit(double, 1)
            wait_until(lambda: second.task_id is not None)
            assert second.cancel()
            assert not first.cancel()
            assert second.cancelled()
            scheduler_run = scheduler.runs(state)[0]
            wait_until(lambda: scheduler_run.counts.get("cancelled"))
            assert first.task_id is not None
            subprocess.run(
                [sys.executable, "-m", "scheduler", "cancel", str(first.task_id), "--state", state], check=True
            )
            exc = first.exception(60)
            assert isinstance(exc, CallFailed)
            assert exc.state == "cancelled"

    def test_shutdown_with_cancel_futures_drops_what_waits_and_waits_for_what_runs(self, tmp_path: Path) -> None:
        made = Executor(1, state=str(tmp_path / "state"), devices="host")
        go = tmp_path / "go"

        def until(path: Path) -> str:
            import time

            while not path.exists():
                time.sleep(0.01)
            return "went"

        first = made.submit(until, go)
        wait_until(first.running)
        rest = [made.submit(double, x) for x in range(3)]
        made.shutdown(wait=False, cancel_futures=True)
        assert all(future.cancelled() for future in rest)
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            made.submit(double, 1)
        go.touch()
        assert first.result(60) == "went"
        made.shutdown()

    def test_an_executor_without_calls_starts_nothing(self, tmp_path: Path) -> None:
        with Executor(state=str(tmp_path / "state")):
            pass
        assert not (tmp_path / "state").exists()

    def test_a_forgotten_executor_ends_its_scheduler_after_its_calls(self, tmp_path: Path) -> None:
        made = Executor(state=str(tmp_path / "state"), devices="host")
        future = made.submit(double, 2)
        del made
        gc.collect()
        assert future.result(60) == 4
        wait_until(lambda: not alive_of(tmp_path))


def alive_of(root: Path) -> list[int]:
    """Return the processes of executors and tasks that have a word of this test's directory on their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(root) in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def ended(pid: int) -> bool:
    """Tell whether a process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


class TestWarmStart:
    """Calls are forks of a server that has loaded Python; they are to behave as if an interpreter had started."""

    def test_a_call_starts_no_interpreter_and_is_called_like_one(self, executor: Executor) -> None:
        def own() -> tuple[str, str]:
            return Path("/proc/self/cmdline").read_text(), Path("/proc/self/comm").read_text()

        command, name = executor.submit(own).result(60)
        assert "task_launcher.py\0" not in command
        assert name.strip() == os.path.basename(sys.executable)[:15]

    def test_a_loaded_program_makes_the_calls_of_every_shell_and_shows_at_once_what_they_print(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

        def hold() -> str:
            print("epoch 1", end="")
            wait_until((tmp_path / "go").exists, 30)
            return Path("/proc/self/cmdline").read_text()

        with Executor(state=str(tmp_path / "state"), devices="host") as made:
            future = made.submit(hold)
            wait_until(lambda: future.log() == "epoch 1", 30)
            (tmp_path / "go").touch()
            assert "task_launcher.py\0" not in future.result(60)

    def test_a_preloaded_module_is_imported_once_for_all_calls(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))
        monkeypatch.syspath_prepend(tmp_path)
        marks = tmp_path / "marks"
        (tmp_path / "heavy_model.py").write_text(f"open({str(marks)!r}, 'a').write('x')\n")

        def use() -> str:
            import heavy_model  # type: ignore[import-not-found]  # only the call has it

            return str(heavy_model.__name__)

        with Executor(preload=["heavy_model"], state=str(tmp_path / "state"), devices="host") as made:
            assert {future.result(60) for future in [made.submit(use) for _ in range(3)]} == {"heavy_model"}
        assert marks.read_text() == "x"

    def test_a_preloaded_module_with_a_thread_or_an_error_makes_calls_start_interpreters(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))
        monkeypatch.syspath_prepend(tmp_path)
        threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        for name, text in {"busy": threads, "bad": "1 / 0\n"}.items():
            (tmp_path / f"{name}_model.py").write_text(text)
            with Executor(preload=[f"{name}_model"], state=str(tmp_path / "state"), devices="host") as made:
                assert "task_launcher.py" in made.submit(Path.read_text, Path("/proc/self/cmdline")).result(60)

    def test_a_module_that_is_not_there_is_refused_at_once(self) -> None:
        with pytest.raises(ConfigError, match="preload: there is no module 'no_such_model' on this program's path"):
            Executor(preload=["no_such_model"])
        with pytest.raises(ConfigError, match="give a list of names"):
            Executor(preload="json")

    def test_a_variable_that_python_reads_at_its_start_makes_an_interpreter_start(self, executor: Executor) -> None:
        def own() -> tuple[int, bool]:
            return sys.flags.optimize, "task_launcher.py\0" in Path("/proc/self/cmdline").read_text()

        assert executor.options(env={"PYTHONOPTIMIZE": "1"}).submit(own).result(60) == (1, True)

    def test_a_call_has_no_descriptors_of_its_shim(self, executor: Executor) -> None:
        def own() -> list[str]:
            paths = []
            for fd in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    paths.append(os.readlink(f"/proc/self/fd/{fd}"))
            return paths

        paths = executor.submit(own).result(60)
        assert not [path for path in paths if path.startswith(("socket:", "pipe:", "anon_inode:"))]
        assert sum(path.endswith(".log") for path in paths) == 2

    def test_exit_functions_run_threads_are_joined_and_output_is_flushed(self, executor: Executor) -> None:
        def leave() -> None:
            import atexit
            import time

            atexit.register(print, "exit function")
            threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
            print("call")

        future = executor.submit(leave)
        future.result(60)
        assert sorted(future.log().splitlines()) == ["call", "exit function", "thread"]

    def test_a_call_starts_processes_of_its_own(self, executor: Executor) -> None:
        def start() -> tuple[str, list[int]]:
            import multiprocessing

            said = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, check=True).stdout
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return said, pool.map(abs, [-2])

        assert executor.submit(start).result(60) == ("1\n", [2])

    def test_a_call_can_have_an_executor_of_its_own(self, executor: Executor) -> None:
        def inside() -> int:
            with scheduler.Executor(devices="host") as made:
                return int(made.submit(abs, -3).result())

        assert executor.submit(inside).result(60) == 3

    def test_random_numbers_differ_from_call_to_call(self, executor: Executor) -> None:
        def draw() -> float:
            import random

            return random.random()

        assert len({future.result(60) for future in [executor.submit(draw) for _ in range(3)]}) == 3

    def test_signals_are_those_of_a_python_program(self, executor: Executor) -> None:
        def handlers() -> list[object]:
            names = ("SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD")
            told = [getattr(signal.getsignal(getattr(signal, name)), "name", "function") for name in names]
            return [*told, signal.pthread_sigmask(signal.SIG_BLOCK, [])]

        here = "import signal; print([getattr(signal.getsignal(getattr(signal, n)), 'name', 'function') for n in "
        here += "('SIGINT', 'SIGTERM', 'SIGPIPE', 'SIGCHLD')] + [signal.pthread_sigmask(signal.SIG_BLOCK, [])])"
        plain = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=True).stdout
        assert repr(executor.submit(handlers).result(60)) == plain.strip()


class TestDeaths:
    """Programs, their copies and schedulers are killed."""

    @fault(140)
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_a_killed_caller_leaves_no_call_running(self, project: Project, number: int) -> None:
        project.put(
            main=CALLER + "ex = scheduler.Executor()\nex.submit(hold, 'one')\nex.submit(hold, 'two').result()\n"
        )
        project.command = [sys.executable]
        with project.start("main.py") as caller:
            pids = [wait_until(lambda name=name: read(project.root / name)) for name in ("one", "two")]
            caller.send_signal(number)
            caller.wait(60)
        wait_until(lambda: all(map(ended, pids)))
        project.command = [sys.executable, "-m", "scheduler"]
        wait_until(lambda: project.states("1") == ["cancelled", "cancelled"])

    @fault(140)
    def test_a_copy_of_the_caller_does_not_keep_its_calls_alive(self, project: Project) -> None:
        copy = "import ctypes\npid = ctypes.CDLL(None).fork()\nif not pid:\n    time.sleep(60)\n    os._exit(0)\n"
        copy += "open('copy', 'w').write(str(pid))\n"
        project.put(
            main=CALLER + f"ex = scheduler.Executor()\nex.submit(hold, 'one')\nsaid('one')\n{copy}time.sleep(600)\n"
        )
        project.command = [sys.executable]
        with project.start("main.py") as caller:
            copied = wait_until(lambda: read(project.root / "copy"))
            caller.kill()
            caller.wait(60)
        pid = read(project.root / "one")
        wait_until(lambda: ended(pid))
        assert not ended(copied)
        os.kill(copied, signal.SIGKILL)

    def test_ctrl_c_in_the_block_ends_what_runs(self, project: Project) -> None:
        project.put(
            main=CALLER + "with scheduler.Executor() as ex:\n    ex.submit(hold, 'one')\n    said('one')\n"
            "    print('ready', flush=True)\n    time.sleep(600)\n"
        )
        project.command = [sys.executable]
        with project.start("main.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as caller:
            assert caller.stdout is not None
            caller.stdout.readline()
            caller.send_signal(signal.SIGINT)
            assert caller.wait(60) == -signal.SIGINT
        assert ended(read(project.root / "one"))

    @fault(141)
    def test_calls_go_on_once_each_when_their_scheduler_is_killed(self, tmp_path: Path) -> None:
        go = tmp_path / "go"

        def until(x: int) -> int:
            import time

            with open(f"{go}.{x}", "a") as file:
                file.write("x")
            while not go.exists():
                time.sleep(0.01)
            return 2 * x

        with Executor(state=str(tmp_path / "state"), devices="host") as made:
            first = [made.submit(until, x) for x in range(2)]
            wait_until(lambda: first[0].running() and first[1].running())
            kill_scheduler(made)
            later = made.submit(double, 5)
            go.touch()
            assert [future.result(60) for future in (*first, later)] == [0, 2, 10]
        assert [Path(f"{go}.{x}").read_text() for x in range(2)] == ["x", "x"]
        assert scheduler.runs(str(tmp_path / "state"))[0].counts == {"succeeded": 3}

    def test_a_run_that_its_user_stops_fails_the_calls_with_one_sentence(self, tmp_path: Path) -> None:
        state = str(tmp_path / "state")
        with Executor(1, state=state, devices="host") as made:
            running, waiting = made.submit(signal.pause), made.submit(double, 1)
            wait_until(running.running)
            subprocess.run([sys.executable, "-m", "scheduler", "stop", "r1", "--now", "--state", state], check=True)
            assert isinstance(running.exception(60), CallFailed)
            assert "the scheduler of run 1 was stopped" in str(waiting.exception(60))
            with pytest.raises(CallFailed, match="the scheduler of run 1 was stopped"):
                made.submit(double, 1)


def kill_scheduler(executor: Executor) -> None:
    """Kill the scheduler of an executor."""
    process = executor._client._process
    assert process is not None
    process.kill()


def read(path: Path) -> int:
    """Return the number in a file; 0 where there is none yet."""
    return int(path.read_text() or 0) if path.exists() else 0
