"""Leases in pytest and in IPython: the fixture `gpu` of the plug-in, `%gpu` and `%%gpu`."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu_home import GpuHome
from tests.support.killing import ROOT, Home
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TESTS = """\
import os, pytest

@pytest.mark.parametrize("number", range(6))
def test_fixture_names_the_gpu_of_its_lease(gpu, number):
    assert os.environ["SCHEDULER_TASK_ID"] == str(gpu.task_id)
    with open("said", "a") as file:
        file.write(f"{os.environ.get('PYTEST_XDIST_WORKER', '')} {gpu.task_id} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")

def test_code_without_a_gpu_needs_no_lease():
    pass
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.env.pop("CUDA_VISIBLE_DEVICES", None)
    (tmp_path / "test_it.py").write_text(TESTS)
    yield made
    made.end()


def outcome_of(home: Home, *flags: str, code: int = 0) -> str:
    """Run pytest with the plug-in, and return what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gpu_batch_scheduler.pytest_plugin", "test_it.py", *flags]
    env = {name: text for name, text in home.env.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=home.root, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_pytest_finds_the_plug_in_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {
        "gpu_batch_scheduler.pytest_plugin": "gpu_batch_scheduler.pytest_plugin"
    }


class TestPytest:
    def test_all_tests_of_a_process_share_one_lease_which_ends_with_it(self, home: Home) -> None:
        outcome_of(home, "--gpu-memory", "50MiB")
        said = (home.root / "said").read_text().splitlines()
        assert {line.split()[0] for line in said} == {"0"}
        (task,) = wait_until(lambda: [one for one in home.tasks("queue") if one["state"] == "succeeded"], 10)
        assert (task["name"], task["reserved_bytes"]) == ("lease of pytest", 50 << 20)

    @pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
    def test_each_worker_of_xdist_has_a_lease_and_a_gpu_of_its_own(self, tmp_path: Path) -> None:
        gpus = GpuHome(tmp_path, gpus=2, total="24GiB")
        try:
            (tmp_path / "test_it.py").write_text(TESTS)
            (tmp_path / "pytest.ini").write_text("[pytest]\ngpu_memory = 16GiB\n")
            outcome_of(gpus, "-n", "2", "-p", "xdist")
            said = {tuple(line.split()) for line in (tmp_path / "said").read_text().splitlines()}
            assert {worker for worker, _, _ in said} == {"gw0", "gw1"}
            assert len(said) == 2
            assert {uuid for _, _, uuid in said} == set(gpus.box.uuids)
            assert {task["name"] for task in gpus.tasks("queue")} == {"lease of pytest gw0", "lease of pytest gw1"}
        finally:
            gpus.end()

    def test_tests_that_do_not_ask_for_it_need_no_lease(self, home: Home) -> None:
        outcome_of(home, "-k", "without_a_gpu")
        assert not home.state.exists()

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (("--gpu-memory", "20000GiB"), "needs 20000"),
            (("--gpu-memory", "much"), "memory: 'much'"),
            (("--gpu-gpus", "two"), "'two' is not a whole number"),
        ],
    )
    def test_a_lease_that_cannot_be_had_is_one_sentence(self, home: Home, flags: tuple[str, ...], says: str) -> None:
        said = outcome_of(home, *flags, code=1)
        assert says in said
        assert "Traceback" not in said


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
class TestIPython:
    def cells(self, home: Home, *cells: str, code: int = 0) -> str:
        """Run cells in IPython, one after another, and return what it printed."""
        runner = (
            "import sys\nfrom IPython.core.interactiveshell import InteractiveShell\n"
            "shell = InteractiveShell.instance(colors='NoColor', history_manager=None)\n"
            "ok = [shell.run_cell(cell).success for cell in sys.argv[1:]]\nprint(ok)\n"
        )
        (home.root / "runner.py").write_text(runner)
        command = [sys.executable, "runner.py", "%load_ext scheduler", *cells]
        env = {**home.env, "IPYTHONDIR": str(home.root / "ipython")}
        done = subprocess.run(command, cwd=home.root, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def test_a_cell_has_a_lease_and_its_names_and_its_value_are_those_of_the_notebook(self, home: Home) -> None:
        said = self.cells(
            home,
            "x = 20",
            "%%gpu 50MiB\nimport os\ny = x + 1\nprint('task', os.environ['SCHEDULER_TASK_ID'])\ny * 2",
            "print(y, 'SCHEDULER_TASK_ID' in os.environ)",
        )
        assert "task 0\n" in said
        assert "42\n" in said
        assert "21 False\n" in said
        assert said.endswith("[True, True, True, True]\n")
        (task,) = wait_until(lambda: [one for one in home.tasks("queue") if one["state"] == "succeeded"], 10)
        assert task["name"] == "lease of an IPython prompt"

    def test_a_lease_lasts_over_cells_until_it_is_released(self, home: Home) -> None:
        said = self.cells(
            home, "%gpu 50MiB", "%gpu", "%%gpu\nimport os; print('within', os.environ['SCHEDULER_TASK_ID'])",
            "%gpu release", "print('SCHEDULER_TASK_ID' in os.environ)", "%gpu 60MiB gpus=0", "%gpu release",
        )  # fmt: skip
        assert said.count("task 0 holds host RAM\n") == 2
        assert "within 0\n" in said
        assert "False\n" in said
        assert "task 1 holds host RAM\n" in said
        assert "False" not in said.splitlines()[-1]

    def test_an_error_in_a_cell_ends_its_lease_and_is_the_cells_error(self, home: Home) -> None:
        said = self.cells(home, "%%gpu 50MiB\nraise ValueError('no such data')", "print('goes on')")
        assert said.count("ValueError: no such data") == 1
        assert said.endswith("[True, False, True]\n")
        wait_until(lambda: home.states("queue") == ["failed"], 10)

    def test_a_cell_that_cannot_run_waits_for_nothing(self, home: Home) -> None:
        said = self.cells(home, "%%gpu 50MiB\nawait later()", "%%gpu 50MiB\n1 +")
        assert "run %gpu before it and %gpu release after it" in said
        assert "SyntaxError: invalid syntax" in said
        assert not home.state.exists()

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("%gpu release", "no GPU is leased: %gpu 8GiB leases one"),
            ("%gpu much", "memory: 'much'"),
            ("%gpu 1GiB color=red", "'color' is not a field of a lease"),
            ("%gpu 1GiB memory=2GiB", "memory is given twice"),
            ("%gpu 20000GiB wait=no", "needs 20000"),
        ],
    )
    def test_bad_words_are_one_sentence_without_a_traceback(self, home: Home, line: str, says: str) -> None:
        said = self.cells(home, line)
        assert says in said
        assert "Traceback" not in said
        assert "[True, False]\n" in said


class Kernel:
    """The kernel of a notebook, as a notebook's page uses it."""

    def __init__(self, home: Home) -> None:
        from jupyter_client.manager import start_new_kernel  # type: ignore[import-not-found]  # ipykernel has it

        own = {name: str(home.root / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
        self.manager, self._client = start_new_kernel(env={**home.env, **own}, cwd=str(home.root))
        self._stopped = False

    def run(self, cell: str) -> str:
        """Run a cell, and return what the notebook shows below it."""
        shown: list[str] = []

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text") or content.get("data", {}).get("text/plain") or "")
            shown.extend(content.get("traceback", ()))

        self._client.execute_interactive(cell, output_hook=show, timeout=60)
        return "".join(shown)

    def end(self) -> None:
        self._client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.mark.skipif(importlib.util.find_spec("ipykernel") is None, reason="ipykernel is not installed")
def test_a_kernel_leases_for_cells_shows_only_the_cells_own_errors_and_ends_its_lease_with_itself(home: Home) -> None:
    kernel = Kernel(home)
    try:
        kernel.run("%load_ext scheduler\n%config InteractiveShell.colors = 'NoColor'")
        assert kernel.run("%%gpu 50MiB gpus=0\nx = 3\nprint('within')\nx * 2") == "within\n6"
        assert kernel.run("%%gpu 50MiB gpus=0\nx * 2;") == ""
        said = kernel.run("%%gpu 50MiB gpus=0\nraise ValueError('no such data')")
        assert "ValueError: no such data" in said
        assert "notebook.py" not in said
        assert kernel.run("%gpu 60MiB gpus=0") == "task 3 holds host RAM\n"
    finally:
        kernel.end()
    wait_until(lambda: "running" not in home.states("queue"), 10)
    assert {task["name"] for task in home.tasks("queue")} == {"lease of a notebook"}


@pytest.mark.skipif(importlib.util.find_spec("ipykernel") is None, reason="ipykernel is not installed")
def test_an_interrupted_cell_that_waits_withdraws_its_request(home: Home) -> None:
    home.call("submit", "--memory", "50MiB", "--gpus", "0", "--", "sleep", "60", code=0)
    home.call("pause", "queue", code=0)
    kernel = Kernel(home)
    try:
        kernel.run("%load_ext scheduler")
        interrupt = threading.Thread(
            target=lambda: (wait_until(lambda: len(home.tasks("queue")) == 2, 30), kernel.manager.interrupt_kernel())
        )
        interrupt.start()
        assert "KeyboardInterrupt" in kernel.run("%gpu 50MiB gpus=0")
        interrupt.join()
        assert home.states("queue")[1] == "cancelled"
    finally:
        kernel.end()
