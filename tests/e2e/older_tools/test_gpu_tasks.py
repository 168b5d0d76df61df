"""Python tasks as the older tool's document shows them, by its import names: scripts, folders, logs, exit codes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.runtime import task_launcher
from scheduler.runtime.paths import RunPaths
from tests.e2e.older_tools.contracts import contract
from tests.e2e.older_tools.project import Project
from tests.e2e.older_tools.test_config_manager import SAMPLE
from tests.support.faults import fault
from tests.support.standin.box import NO_COMPILER, TRAIN, Box
from tests.support.waiting import wait_until

PATIENCE = 60.0

HEAD = """\
import os
from gpu_task_scheduler.gpu_task import GPUTask
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler

"""
WAITS = """\
import os, time
from gpu_task_scheduler.gpu_task import GPUTask

class MyGPUTask(GPUTask):
    def main(self):
        print("begins")
        open(os.path.join(self._work_dir, "began"), "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
        open(os.path.join(self._work_dir, "result"), "w").write(str(self._config["a"]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.end()


def task(body: str, *, env: str = "return {}", init: str = "") -> str:
    """Return the text of a module with a task class whose main has this body."""
    begin = f"    def __init__(self, *said):\n        super().__init__(*said)\n        {init}\n" if init else ""
    methods = f"{begin}    def required_env(self):\n        {env}\n    def main(self):\n        {body}\n"
    return f"{HEAD}class MyGPUTask(GPUTask):\n{methods}"


def lines(project: Project) -> list[str]:
    """Return the lines of the scheduler's log, without times and places."""
    text = (project.root / "scheduler.log").read_text()
    return [re.sub(r"^.*? (INFO|ERROR) ", "", line) for line in text.splitlines()]


class TestDocument:
    @contract("S4-12", "S4-09", "S4-20")
    def test_the_documents_example_runs_unchanged(self, project: Project) -> None:
        project.config()
        project.put(config=f"config = {SAMPLE!r}\n", my_gpu_task=task("print(self._config)"))
        project.script()
        assert project.results("worker.log") == {
            f"method-{method},num_packing-{packing},num_zmode-{zmode},": (
                f"{{'num_run': 5, 'num_epoch': 200, 'method': '{method}', 'num_packing': {packing}, "
                f"'num_zmode': {zmode}}}\n"
            )
            for method, packing, zmode in (("GAN", 1, 1), ("ALI", 1, 1), ("WGAN", 3, 1), ("WGAN", 3, 2))
        }

    @contract("S4-14", "S4-21")
    def test_the_log_names_received_finished_and_skipped_tasks(self, project: Project) -> None:
        project.config(gpu=("0",), test=[{"a": [1, 2]}])
        said = project.script().stderr
        script = [
            "gpu0 receives task a-1,",
            "gpu0 finishes task a-1,",
            "gpu0 receives task a-2,",
            "gpu0 finishes task a-2,",
            "gpu0 finished",
        ]
        assert lines(project) == ["run 1: 2 tasks (scheduler list r1)", *script]
        first = (project.root / "scheduler.log").read_text().splitlines()[1]
        assert re.fullmatch(
            r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d gpu_task_scheduler\.py\[line:\d+\] INFO gpu0 receives task a-1,",
            first,
        )
        assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO gpu0 receives task a-1,$", said, re.MULTILINE)
        project.script()
        assert lines(project)[6:] == ["gpu0 skips task a-1,", "gpu0 skips task a-2,", "gpu0 finished"]

    @contract("S4-21")
    def test_the_log_goes_to_the_console_alone_without_a_log_file(self, project: Project) -> None:
        project.config(scheduler_log_file_path=None)
        assert "gpu0 finishes task a-1," in project.script().stderr
        assert not (project.root / "scheduler.log").exists()

    @contract("S4-13")
    def test_a_task_object_has_its_parameters_and_its_folder(self) -> None:
        from scheduler import GPUTask

        one = GPUTask({"a": 1}, "out/a-1,")
        assert (one._config, one._work_dir, one.required_env()) == ({"a": 1}, "out/a-1,", {})
        assert one.main() is None  # type: ignore[func-returns-value]


class TestStart:
    @contract("S4-12")
    def test_start_returns_none_changes_no_configuration_and_runs_once(self, project: Project) -> None:
        project.config()
        project.put(
            main="import copy\nfrom config import config\nfrom my_gpu_task import MyGPUTask\n"
            "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler\n"
            "before = copy.deepcopy(config)\n"
            "one = GPUTaskScheduler(config, MyGPUTask)\n"
            "print(one.start(), one.start(), config == before)\n"
            "config['scheduler_config']['result_root_folder'] = 'more'\n"
            "GPUTaskScheduler(config, MyGPUTask).start()\n"
        )
        done = project.script()
        assert done.stdout == "None None True\n"
        assert project.results() == {"a-1,": "1\n"}
        assert (project.root / "more/a-1,/result").read_text() == "1\n"
        assert done.stderr.count("gpu0 receives task a-1,") == 2

    @contract("S4-22", "S4-D4")
    def test_a_failed_task_is_reported_and_sets_the_exit_code_of_the_script(self, project: Project) -> None:
        project.config(test=[{"a": [1, 2]}])
        project.put(
            my_gpu_task=task("assert self._config['a'] == 1, 'not one'"),
            main="import atexit\natexit.register(print, 'cleaned up')\n" + project_main() + "print('went on')\n",
        )
        done = project.script(code=1)
        assert done.stdout == "went on\ncleaned up\n"
        assert "ERROR gpu0 fails task a-2, (exit 1; log " in done.stderr
        assert "1 succeeded, 1 failed; tasks that have not succeeded run when this is started again" in done.stderr
        assert "AssertionError: not one" in project.results("worker.log")["a-2,"]

    @contract("S4-04")
    def test_a_configuration_without_gpu_is_refused_before_anything_starts(self, project: Project) -> None:
        project.config(gpu=())
        project.put(main="try:\n    import main_\nexcept ValueError as exc:\n    print(exc)\n", main_=project_main())
        assert project.script().stdout == "please specify at least one gpu in scheduler_config\n"
        assert not (project.root / "results").exists()

    @contract("S4-D6", "S4-D7")
    def test_start_needs_no_program_on_the_path(self, project: Project) -> None:
        project.config()
        project.env["PATH"] = "/nowhere"
        project.script()
        assert project.results() == {"a-1,": "1\n"}


def project_main() -> str:
    from tests.e2e.older_tools.project import MAIN

    return MAIN


class TestFolders:
    @contract("S4-13", "S4-15", "S4-D1")
    def test_failed_tasks_run_again_and_finished_ones_do_not(self, project: Project) -> None:
        project.config(test=[{"a": [1, 2]}])
        good = "open(self._work_dir + '/result', 'a').write('x')"
        project.put(my_gpu_task=task(f"{good}; assert self._config['a'] == 1 or os.path.exists('mended')"))
        project.script(code=1)
        (project.root / "mended").touch()
        project.script(code=0)
        project.script(code=0)
        assert project.results() == {"a-1,": "x", "a-2,": "xx"}

    @contract("S4-D1")
    def test_a_folder_of_the_older_tool_counts_as_finished_and_an_empty_one_does_not(self, project: Project) -> None:
        project.config(test=[{"a": [1, 2]}])
        for name in ("a-1,", "a-2,"):
            (project.root / "results" / name).mkdir(parents=True)
        (project.root / "results/a-1,/model.ckpt").touch()
        project.script()
        assert project.results() == {"a-2,": "2\n"}

    @contract("S4-15", "S4-20")
    def test_force_rerun_keeps_every_file_and_begins_the_log_anew(self, project: Project) -> None:
        project.config(force_rerun=True)
        project.script()
        project.script()
        assert project.results() == {"a-1,": "1\n1\n"}
        assert project.results("worker.log") == {"a-1,": "{'a': 1}\n"}

    @contract("S4-16")
    def test_equal_configurations_run_once(self, project: Project) -> None:
        project.config(test=[{"a": [1]}, {"a": [1]}])
        project.script()
        assert project.results() == {"a-1,": "1\n"}
        assert "gpu0 skips task a-1," in lines(project)

    @contract("S4-16")
    def test_the_first_task_of_a_shared_folder_runs(self, project: Project) -> None:
        project.config(test=[{"a": [1], "b": [3, 2]}], ignored_keys_for_folder_name=["b"])
        project.script()
        assert project.results("worker.log") == {"a-1,": "{'a': 1, 'b': 3}\n"}

    @contract("S4-D2")
    def test_a_gpu_listed_four_times_runs_four_tasks_at_once(self, project: Project) -> None:
        project.config(gpu=("0", "0", "0", "0"), test=[{"a": range(4)}])
        four = "any(len(glob.glob('results/*/began')) == 4 or time.sleep(0.01) for _ in range(1000))"
        began = "open(self._work_dir + '/began', 'w').close()"
        body = f"{began}; assert {four}; open(self._work_dir + '/result', 'w').write('4')"
        project.put(my_gpu_task="import glob, time\n" + task(body))
        project.script()
        assert project.results() == {f"a-{number},": "4" for number in range(4)}

    @contract("S4-D3")
    def test_two_schedulers_in_one_folder_run_each_task_once(self, project: Project) -> None:
        project.config(gpu=("0", "0"), test=[{"a": range(4)}])
        project.put(my_gpu_task=WAITS.replace('"w").write', '"a").write'))
        ours, project.command = project.command, [sys.executable]
        with project.start("main.py") as first:
            wait_until(lambda: len(project.results("began")) == 2, PATIENCE)
            with project.start("main.py") as second:
                log = project.root / "scheduler.log"
                wait_until(lambda: log.read_text().count("another scheduler is running it in") >= 2, PATIENCE)
                (project.root / "go").touch()
                assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)
        project.command = ours
        assert project.results() == {f"a-{number},": f"{number}" for number in range(4)}

    @contract("S4-D9")
    def test_tasks_whose_folders_only_cutting_made_equal_all_run(self, project: Project) -> None:
        project.config(test=[{"a": ["x" * 40 + "1", "x" * 40 + "2"]}])
        project.script()
        assert sorted(project.results().values()) == ["x" * 40 + "1\n", "x" * 40 + "2\n"]

    @contract("S4-D8")
    def test_a_name_that_no_file_system_takes_fails_alone(self, project: Project) -> None:
        project.config(test=[{"a": ["x" * 300, "y"]}], config_string_value_maxlen=400)
        project.script(code=1)
        assert project.results() == {"a-y,": "y\n"}


class TestTasks:
    @contract("S4-17")
    def test_required_env_may_write_into_the_folder_and_override_what_was_set(self, project: Project) -> None:
        project.config()
        env = "open(self._work_dir + '/settings', 'w').close(); return {'MINE': 'x', 'CUDA_VISIBLE_DEVICES': '9'}"
        project.put(
            my_gpu_task=task("print(os.environ['MINE'], os.environ['CUDA_VISIBLE_DEVICES'], flush=True)", env=env)
        )
        project.script()
        assert project.results("worker.log") == {"a-1,": "x 9\n"}
        assert project.results("settings") == {"a-1,": ""}

    @contract("S4-17")
    def test_the_variables_are_there_before_the_process_begins(self, project: Project) -> None:
        project.config()
        env = "return {'PYTHONHASHSEED': '0'}"
        project.put(my_gpu_task=task("import sys; print(sys.flags.hash_randomization)", env=env))
        project.script()
        assert project.results("worker.log") == {"a-1,": "0\n"}

    @contract("S4-23", "S4-14")
    def test_a_task_gets_its_gpus_as_they_were_written(self, project: Project) -> None:
        project.config(gpu=(["3", "5"],))
        body = "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'], 'MPLBACKEND' in os.environ)"
        project.put(my_gpu_task=task(body))
        project.script()
        assert project.results("worker.log") == {"a-1,": "3,5 PCI_BUS_ID False\n"}
        assert "gpu3,5 receives task a-1," in lines(project)

    @contract("S4-14")
    def test_an_entry_of_gpu_runs_one_task_at_a_time(self, project: Project) -> None:
        project.config(gpu=("0", "1"), test=[{"a": range(6)}])
        body = "held = os.environ['CUDA_VISIBLE_DEVICES']; os.mkdir(held); time.sleep(0.2); os.rmdir(held); print(held)"
        project.put(my_gpu_task="import time\n" + task(body))
        project.script()
        assert set(project.results("worker.log").values()) == {"0\n", "1\n"}

    @contract("S4-19")
    def test_the_module_of_a_task_keeps_its_name_and_finds_its_neighbours(self, project: Project) -> None:
        project.config()
        (project.root / "scripts/deep").mkdir(parents=True)
        text = task("import sys, beside; print(__name__, sys.path[-1] == os.getcwd(), beside.WORD)")
        (project.root / "scripts/deep/tasks.py").write_text(text)
        project.put(beside="WORD = 'beside'\n", main=project_main().replace("my_gpu_task", "scripts.deep.tasks"))
        project.script()
        assert project.results("worker.log") == {"a-1,": "scripts.deep.tasks True beside\n"}

    @contract("S4-19")
    def test_figures_need_no_display(self, project: Project) -> None:
        project.config()
        (project.root / "matplotlib").mkdir()
        (project.root / "matplotlib/__init__.py").write_text("def use(name):\n    print('backend', name)\n")
        project.script()
        assert project.results("worker.log") == {"a-1,": "backend Agg\n{'a': 1}\n"}

    @contract("S4-20")
    def test_output_of_a_task_is_in_its_folder_and_in_the_runs_log_at_once(self, project: Project) -> None:
        project.config()
        project.put(my_gpu_task=WAITS)
        with Going(project):
            wait_until(lambda: project.results("worker.log") == {"a-1,": "begins\n"}, PATIENCE)
            assert (project.state / "runs/1/tasks/0/1.log").read_text() == "begins\n"

    @contract("S4-20")
    def test_the_runs_log_has_the_end_of_output_on_another_file_system(self, project: Project) -> None:
        elsewhere = Path("/dev/shm") / project.mark.replace("=", "-")
        if not elsewhere.parent.is_dir() or elsewhere.parent.stat().st_dev == project.root.stat().st_dev:
            pytest.skip("there is no second file system here")
        project.config(result_root_folder=str(elsewhere))
        try:
            project.script()
            assert (elsewhere / "a-1,/worker.log").read_text() == "{'a': 1}\n"
        finally:
            shutil.rmtree(elsewhere)
        said = (project.state / "runs/1/tasks/0/1.log").read_text()
        assert said == f"the output is in {elsewhere}/a-1,/worker.log\n{{'a': 1}}\n"

    @contract("S4-20")
    def test_no_log_is_in_the_folder_of_a_task_without_a_log_file(self, project: Project) -> None:
        project.config(log_file=None)
        project.script()
        assert project.results("worker.log") == {}

    @contract("S4-D8")
    @pytest.mark.parametrize(
        "broken",
        [
            task("pass", init="assert self._config['a'] == 1"),
            task("pass", env="assert self._config['a'] == 1; return {}"),
            task("pass", env="return {} if self._config['a'] == 1 else ['MINE']"),
            task("os._exit(0 if self._config['a'] == 1 else 3)"),
            task("os.kill(os.getpid(), 9) if self._config['a'] > 1 else 0"),
        ],
    )
    def test_a_broken_task_does_not_affect_the_others(self, project: Project, broken: str) -> None:
        project.config(test=[{"a": [2, 1]}])
        project.put(my_gpu_task=broken)
        project.script(code=1)
        assert [row["state"] for row in project.tasks()] == ["failed", "succeeded"]

    @contract("S4-D8")
    def test_a_configuration_that_cannot_be_pickled_is_refused_with_its_name(self, project: Project) -> None:
        project.config()
        project.put(config="config = {'scheduler_config': {'gpu': ['0']}, 'test_config': [{'a': [lambda: 1]}]}\n")
        ours, project.command = project.command, [sys.executable]
        with project.start("main.py", stderr=-1) as process:
            said = process.communicate(timeout=PATIENCE)[1]
        project.command = ours
        assert process.returncode == 1
        assert re.search(
            r"ConfigError: the configuration a-.* cannot be passed to another process: the value of 'a': ", said
        )
        assert not (project.root / "results").exists()


class Going:
    """A script that runs during the block, and ends after it once a file `go` exists."""

    def __init__(self, project: Project, code: int = 0) -> None:
        self.project, self.code = project, code

    def __enter__(self) -> Going:
        ours, self.project.command = self.project.command, [sys.executable]
        self.process = self.project.start("main.py")
        self.project.command = ours
        wait_until(lambda: self.project.results("began"), PATIENCE)
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        (self.project.root / "go").touch()
        code = self.process.wait(PATIENCE)
        assert kind is not None or code == self.code


NESTED = "def make():\n    class Mine(GPUTask):\n        pass\n    return Mine\nMine = make()\n"
TYPED = "class Mine(GPUTask):\n    pass\ndel __file__\n"


class TestScripts:
    GUARDED = HEAD + (
        "class Mine(GPUTask):\n    def main(self):\n        print(type(self).__name__)\n\n"
        "if __name__ == '__main__':\n"
        "    GPUTaskScheduler({'scheduler_config': {'gpu': ['0']}, 'test_config': [{'a': [1, 2, 3]}]}, Mine).start()\n"
    )

    @contract("S4-D5")
    @pytest.mark.parametrize("guarded", [True, False])
    def test_a_task_class_of_the_script_itself_runs_once_for_each_configuration(
        self, project: Project, guarded: bool
    ) -> None:
        text = self.GUARDED if guarded else self.GUARDED.replace("if __name__ == '__main__':\n    ", "")
        project.put(main=text + "print('after')\n")
        done = project.script()
        assert done.stdout == "after\n"
        ends = "after\nMine\n" if guarded else "Mine\n"  # what stands below the guard is loaded in a task, too
        assert project.results("worker.log") == {f"a-{number},": ends for number in (1, 2, 3)}
        assert len(list((project.state / "runs").iterdir())) == 1

    @contract("S4-D5")
    @pytest.mark.parametrize(
        ("script", "words"),
        [
            (NESTED, "is defined inside make"),
            (TYPED, "was defined in a notebook or at a prompt"),
            ("Mine = GPUTask({}, '')\n", "is not a class: give the class itself"),
        ],
    )
    def test_a_class_that_no_other_process_finds_is_refused_with_the_reason(
        self, project: Project, script: str, words: str
    ) -> None:
        start = "GPUTaskScheduler({'scheduler_config': {'gpu': ['0']}}, Mine).start()"
        project.put(main=f"{HEAD}{script}try:\n    {start}\nexcept ValueError as exc:\n    print(exc)\n")
        assert words in project.script().stdout

    @contract("S4-D13")
    def test_the_scheduler_imports_no_module_that_only_the_task_imports(self, project: Project) -> None:
        project.config()
        body = "import heavy; print(heavy.PID != os.getppid())"
        project.put(
            my_gpu_task=task(body),
            heavy="import os\nPID = os.getpid()\n",
            main=project_main() + "import sys\nprint('heavy' in sys.modules)\n",
        )
        assert project.script().stdout == "False\n"
        assert project.results("worker.log") == {"a-1,": "True\n"}

    def test_a_process_that_is_forked_after_a_failure_keeps_its_own_exit_code(self, project: Project) -> None:
        project.config()
        project.put(
            my_gpu_task=task("raise ValueError"),
            main=project_main() + "import os, sys\npid = os.fork()\nif not pid: sys.exit(0)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
        )
        assert project.script(code=1).stdout == "0\n"


class TestRuns:
    @contract("S4-D11")
    def test_a_scheduler_that_is_killed_is_resumed_like_every_run(self, project: Project) -> None:
        project.config(test=[{"a": [1, 2]}])
        project.put(my_gpu_task=WAITS)
        with Going(project, -signal.SIGKILL) as script:
            script.process.kill()
            script.process.wait(PATIENCE)
        project.call("resume", code=0)
        assert project.results() == {"a-1,": "1", "a-2,": "2"}
        assert project.states() == ["succeeded"] * 2

    @contract("S4-D1")
    def test_tasks_that_ctrl_c_stopped_run_again(self, project: Project) -> None:
        project.config(test=[{"a": [1, 2]}])
        project.put(my_gpu_task=WAITS)
        with Going(project, 130) as script:
            script.process.send_signal(signal.SIGINT)
            wait_until(lambda: "nothing more is started" in project.log(), PATIENCE)
            script.process.send_signal(signal.SIGINT)
            script.process.wait(PATIENCE)
        assert project.results() == {}
        assert lines(project)[-2].startswith("gpu0 stops task a-1, (")
        project.script()
        assert project.results() == {"a-1,": "1", "a-2,": "2"}

    @contract("S4-18")
    def test_the_input_of_a_task_is_a_private_file(self, project: Project) -> None:
        project.config(test=[{"a": [1, 2]}])
        project.script()
        given = sorted((project.state / "runs/1/given").iterdir())
        assert [path.name for path in given] == ["calls"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in given} == {0o600}

    @contract("S4-D12")
    def test_auto_packs_by_memory_that_is_learned_for_later_runs(self, project: Project) -> None:
        project.config(gpu="auto", test=[{"a": [1, 2]}], force_rerun=True)
        project.script()
        project.script()
        assert {row["source"] for row in project.tasks("2")} == {"profile"}
        assert {row["device"] for row in project.tasks("2")} == {"host"}

    @contract("S4-D12")
    @pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
    def test_auto_takes_the_gpus_of_the_machine(self, project: Project) -> None:
        project.config(gpu="auto", test=[{"a": [1, 2]}])
        take = f"import sys; sys.path.insert(0, {str(TRAIN.parent)!r}); import client; cuda = client.Cuda()"
        hold = "cuda.allocate(0, 2 << 30); open(self._work_dir + '/began', 'w').close()"
        wait = "import time; [time.sleep(0.01) for _ in iter(lambda: os.path.exists('go'), True)]"
        project.put(my_gpu_task=task(f"{take}; {hold}; {wait}"))
        with Box(project.root / "box", gpus=1) as box:
            project.env |= box.env
            with Going(project):
                wait_until(lambda: project.tasks()[0]["peak_bytes"] == 2 << 30, PATIENCE, pause=0.05)
        assert {row["device"] for row in project.tasks()} == {"GPU 0"}
        assert "gpu0 receives task a-1," in lines(project)

    def test_a_task_has_one_key_in_every_run(self, project: Project) -> None:
        project.config(force_rerun=True)
        project.script()
        project.script()
        assert project.tasks("1")[0]["key"] == project.tasks("2")[0]["key"]
        assert project.tasks("1")[0]["config.a"] == "1"


class TestLauncher:
    def test_the_launcher_is_where_commands_name_it(self) -> None:
        from scheduler.core.tasks.command import LAUNCHER

        assert str(RunPaths(Path("/r"), 1).launcher).endswith(LAUNCHER)

    @fault(67)
    @pytest.mark.parametrize("mode", [0o620, 0o602])
    def test_the_launcher_refuses_a_file_that_others_can_write(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "given"
        task_launcher.write_own(str(path), {}, b"")
        path.chmod(mode)
        with pytest.raises(PermissionError, match="it must be a plain file of yours that no other user can write"):
            task_launcher.open_own(str(path))

    @fault(67)
    def test_the_launcher_follows_no_link(self, tmp_path: Path) -> None:
        task_launcher.write_own(str(tmp_path / "given"), {}, b"")
        (tmp_path / "link").symlink_to(tmp_path / "given")
        with pytest.raises(OSError, match="link"):
            task_launcher.open_own(str(tmp_path / "link"))

    def test_a_marker_that_is_half_written_is_not_the_end(self, tmp_path: Path) -> None:
        (tmp_path / task_launcher.MARKER).write_text('{"state": "fin')
        assert task_launcher.state_of(str(tmp_path)) == task_launcher.STARTED
        (tmp_path / task_launcher.MARKER).write_text(json.dumps({"state": "finished"}))
        assert task_launcher.state_of(str(tmp_path)) == task_launcher.FINISHED
