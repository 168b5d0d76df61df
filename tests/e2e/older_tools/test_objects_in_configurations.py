"""Configurations of Python tasks that hold more than texts and numbers: arrays, frames, iterators, odd objects."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.runtime import task_launcher
from tests.e2e.older_tools.contracts import contract
from tests.e2e.older_tools.project import MAIN, Project
from tests.e2e.older_tools.test_gpu_tasks import HEAD, lines

pytestmark = pytest.mark.slow

ADDS = f"""{HEAD}
class MyGPUTask(GPUTask):
    def main(self):
        with open(os.path.join(self._work_dir, "result"), "a") as file:
            file.write(" ".join(f"{{key}}={{self._config[key]}}" for key in sorted(self._config)))
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    made.put(my_gpu_task=ADDS, main=MAIN)
    yield made
    made.end()


def configure(project: Project, *, head: str = "", shared: str = "{}", test: str = "[{}]", gpu: str = "['0']") -> None:
    """Write config.py from expressions."""
    project.put(
        config=f"{head}\nconfig = {{'scheduler_config': {{'gpu': {gpu}}}, 'global_config': {shared}, "
        f"'test_config': {test}}}\n"
    )


@contract("S4-05", "S4-06")
def test_arrays_and_frames_reach_the_task_from_both_configurations(project: Project) -> None:
    configure(
        project,
        head="import numpy as np\nimport pandas as pd",
        shared="{'m': [np.array([1, 2])], 'frame': pd.DataFrame({'x': [1]}).to_numpy(), 'both': np.array([5])}",
        test="[{'a': np.arange(2), 'both': [np.array([6, 7])]}]",
    )
    project.script()
    assert project.results() == {
        "a-0,both-67,": "a=0 both=[6 7] frame=[[1]] m=[array([1, 2])]",
        "a-1,both-67,": "a=1 both=[6 7] frame=[[1]] m=[array([1, 2])]",
    }


@contract("S4-05")
def test_iterators_and_generators_lose_no_task(project: Project) -> None:
    configure(project, test="[{'a': map(str, range(2)), 'b': (x * x for x in (2, 3))}]")
    project.script()
    assert project.results() == {f"a-{a},b-{b},": f"a={a} b={b}" for a in (0, 1) for b in (4, 9)}


@contract("S4-05")
def test_two_schedulers_of_one_configuration_see_equal_values_of_an_iterator(project: Project) -> None:
    configure(project, test="({'a': map(int, '12')} for _ in 'x')")
    project.put(main=MAIN + "\nGPUTaskScheduler(config, MyGPUTask).start()\n")
    project.script()
    assert sum("gpu0 skips task" in line for line in lines(project)) == 2
    assert project.results() == {"a-1,": "a=1", "a-2,": "a=2"}


@contract("S4-04")
def test_tuples_of_gpus_are_taken(project: Project) -> None:
    configure(project, gpu="('3', ('4', 5))", test="[{'a': [1, 2]}]")
    project.script()
    assert {"gpu3 finished", "gpu4,5 finished"} <= {*lines(project)}
    assert len(project.results()) == 2


ODD = """
class Odd:
    def __init__(self, value):
        self.value = value
    def __eq__(self, other):
        raise TypeError("not to be compared")
    __hash__ = None
    def __bool__(self):
        raise TypeError("neither true nor false")
    def __repr__(self):
        return f"odd{self.value}"
"""


@contract("S4-06")
def test_objects_that_cannot_be_compared_are_passed_on(project: Project) -> None:
    project.put(odd=ODD)
    configure(
        project,
        head="from odd import Odd",
        shared="{'b': Odd(1), 'c': Odd(2)}",
        test="[{'a': [Odd(3)], 'b': [Odd(4)]}]",
    )
    project.script()
    assert project.results() == {"a-odd3,b-odd4,": "a=odd3 b=odd4 c=odd2"}


def test_objects_without_an_equal_text_are_one_task_class_in_every_run(project: Project) -> None:
    project.put(odd=ODD.replace("__repr__", "other"))
    configure(
        project, head="from odd import Odd", shared="{'b': Odd(1), 'names': {'x', 'y', 'z'}}", test="[{'a': [1, 2]}]"
    )
    again = "from config import config\nconfig['scheduler_config']['force_rerun'] = True\n"
    project.put(main=MAIN.replace("from config import config\n", again))
    project.put(my_gpu_task=HEAD + "class MyGPUTask(GPUTask):\n    pass\n")
    project.script()
    project.script()
    first, second = ([row["key"] for row in project.tasks(run)] for run in ("1", "2"))
    assert first == second
    assert len({*first}) == 2


TENSOR = """
class Truth:
    def __bool__(self):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

class Tensor:
    def __init__(self, *values):
        self.values = values
    def __eq__(self, other):
        return Truth()
    __ne__ = __lt__ = __eq__
    def __hash__(self):
        return id(self)
    def __len__(self):
        return len(self.values)
    def __iter__(self):
        return (Tensor(value) for value in self.values)
    def __bool__(self):
        return bool(Truth())
    def __repr__(self):
        return f"tensor({', '.join(map(str, self.values))})"
"""
"""The protocol of a torch tensor: comparing gives no truth, iterating gives tensors, equal ones have other hashes."""


@contract("S4-05", "S4-06")
@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "torch"])
def test_tensors_reach_the_task_from_both_configurations(project: Project, real: bool) -> None:
    if real:
        pytest.importorskip("torch", reason="torch is not installed here; the stand-in has its protocol")
    project.put(
        tensors="from torch import tensor" if real else f"{TENSOR}\ndef tensor(values):\n    return Tensor(*values)"
    )
    configure(
        project,
        head="from tensors import tensor",
        shared="{'w': tensor([1, 2]), 'm': [tensor([3, 4])], 'both': tensor([5, 6])}",
        test="[{'a': [tensor([7, 8]), tensor([9, 9])], 'both': [tensor([0, 1])]}]",
    )
    twice = MAIN + "\nGPUTaskScheduler(config, MyGPUTask).start()\n"
    project.put(
        main=twice, my_gpu_task=ADDS.replace("{self._config[key]}", "{str(self._config[key]).replace(' ', '')}")
    )
    project.script()
    assert sum("gpu0 skips task" in line for line in lines(project)) == 2
    assert {*project.results().values()} == {
        f"a=tensor({a}) both=tensor({both}) m=[tensor({m})] w=tensor({w})"
        for a, both, m, w in (_tensor_texts(real, "7,8"), _tensor_texts(real, "9,9"))
    }


def _tensor_texts(real: bool, a: str) -> list[str]:
    return [f"[{text}]" if real else text for text in (a, "0,1", "3,4", "1,2")]


@contract("S4-12")
def test_a_configuration_that_is_edited_during_the_run_changes_no_task(project: Project) -> None:
    configure(project, shared="{'m': [1]}", test="[{'a': [1, 2, 3]}]")
    edits = (
        ADDS
        + """
        with open("config.py", "a") as file:
            file.write("config['global_config']['m'].append(2)\\n")
"""
    )
    thread = (
        "import os, threading, time\nfrom config import config\n"
        "def edit():\n"
        "    while not os.path.exists('results/a-1,/result'):\n        time.sleep(0.01)\n"
        "    config['global_config']['m'].append(3)\n    config['test_config'][0]['a'][:] = [9]\n"
        "threading.Thread(target=edit, daemon=True).start()\n"
    )
    project.put(my_gpu_task=edits, main=thread + MAIN)
    project.script()
    assert project.results() == {f"a-{a},": f"a={a} m=[1]" for a in (1, 2, 3)}


def test_combinations_of_a_million_are_made_one_by_one(project: Project) -> None:
    project.put(
        count="""
from gpu_task_scheduler.config_manager import ConfigManager

def peak():  # not ru_maxrss, which a process inherits from the one that started it
    with open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0])

axes = {name: list(range(100)) for name in "abc"}
made = ConfigManager({"scheduler_config": {"gpu": ["0"]}, "test_config": [axes]})
assert made.get_num_left_config() == 10**6
before = peak()
for _ in range(10**4):
    assert made.get_next_config()["config"] is not None
print(made.get_num_left_config(), (peak() - before) // 1024)
"""
    )
    left, mib = map(int, project.script("count.py").stdout.split())
    assert left == 990_000
    assert mib < 40, "a million combinations are never in memory together"


@pytest.mark.parametrize("when", ["__str__", "__reduce__"], ids=["as the folders are named", "as the run is accepted"])
def test_ctrl_c_before_the_first_task_ends_the_program_and_leaves_no_run(project: Project, when: str) -> None:
    stops = "os.kill(os.getpid(), signal.SIGINT) or time.sleep(9)"
    head = f"import os, signal, time\nclass Late:\n    def {when}(self):\n        {stops}\n"
    configure(project, head=head, test="[{'a': [*range(20), Late()]}]")
    done = project.script(code=130)
    assert "interrupted before any task was started: nothing of this list was kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((project.state / "runs").glob("*")) == []
    assert project.results() == {}


def test_ctrl_c_between_two_rows_ends_the_program_without_a_traceback(project: Project) -> None:
    configure(project, test="[{'a': list(range(30))}]")
    project.put(
        main="""
import os, signal, time
from scheduler.app.run import start

kept = []

def batches(rows, num):  # the rows live on after the list was given up, as in a traceback
    kept.append(rows)
    next(rows)
    os.kill(os.getpid(), signal.SIGINT) or time.sleep(9)

start.batches = batches
"""
        + MAIN
    )
    done = project.script(code=130)
    assert "nothing of this list was kept" in done.stderr
    assert "Traceback" not in done.stderr


@contract("S4-18")
def test_calls_lie_in_one_file_and_each_has_its_own_input(project: Project) -> None:
    configure(project, test="[{'a': list(range(300))}]", gpu="['0', '1', '2', '3', '4', '5', '6', '7']")
    project.put(
        main=MAIN.replace(
            "scheduler.start()",
            "import scheduler as s\nfrom scheduler.app.run import run_loop\n"
            "run_loop.run_to_end = lambda *said, **how: (_ for _ in ()).throw(SystemExit(7))\nscheduler.start()",
        )
    )
    project.script(code=7)
    assert [path.name for path in (project.state / "runs/1/given").iterdir()] == ["calls"]
    given = [shlex.split(row["command"])[2] for row in project.tasks("1")]
    assert len(given) == 300
    names = []
    for one in given:
        with closing(task_launcher.Call(one)) as call:
            names.append(call.said["work_dir"].rpartition("a-")[2])
    assert names == [f"{a}," for a in range(300)]


@contract("S4-18")
def test_a_hundred_thousand_combinations_are_accepted_in_little_memory(project: Project) -> None:
    configure(project, test="[{'a': list(range(400)), 'b': list(range(250))}]", gpu="['0']")
    project.put(
        main=MAIN.replace(
            "scheduler.start()",
            "import time\nfrom scheduler.app.run import run_loop\n"
            "began = time.process_time()\n"
            "def end(*said, **how):\n"
            "    status = open('/proc/self/status').read()\n"
            "    peak = int(status.split('VmHWM:')[1].split()[0]) >> 10\n"
            "    print('used', round(time.process_time() - began, 1), peak)\n"
            "    raise SystemExit(7)\n"
            "run_loop.run_to_end = end\nscheduler.start()",
        )
    )
    _, seconds, peak = next(
        line for line in project.script(code=7).stdout.splitlines() if line.startswith("used ")
    ).split()
    assert float(seconds) < 30
    assert int(peak) < 105


BAD = {
    "raises": (
        "[{'a': (1 // (2 - n) for n in range(5))}]",
        "'a' failed after 2 values with ZeroDivisionError: integer division or modulo by zero",
    ),
    "endless": (
        "[{'a': __import__('itertools').count()}]",
        "'a' gives more than 1000000 values: write a list of the values that you want",
    ),
    "no text": (
        "[{'a': [type('Mute', (), {'__str__': lambda self: 1 // 0})()]}]",
        "a value of 'a' has no text: str() raised ZeroDivisionError: integer division or modulo by zero",
    ),
    "read only": (
        "[__import__('types').MappingProxyType({'a': iter('ab')})]",
        "the values of 'a' can be read only once: write a list of them",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_values_that_cannot_be_read_are_refused_before_anything_starts(project: Project, bad: str) -> None:
    test, sentence = BAD[bad]
    configure(project, test=test)
    project.put(main="try:\n    import main_\nexcept ValueError as exc:\n    print(exc)\n", main_=MAIN)
    assert project.script().stdout == f"test_config: {sentence}\n"
    assert not (project.root / "results").exists()


def test_a_configuration_that_is_edited_while_it_runs_changes_nothing(project: Project) -> None:
    configure(project, shared="{'b': 1}", test="[{'a': [1, 2]}]")
    edits = "\nimport threading, time\ndef edit():\n    while not os.path.exists('results'): time.sleep(0.01)\n"
    edits += (
        "    config['global_config']['b'] = 2; config['test_config'][0]['a'].append(3); config['test_config'].clear()\n"
    )
    project.put(
        main="import os\n"
        + MAIN.replace("scheduler.start()", f"{edits}threading.Thread(target=edit).start()\nscheduler.start()")
    )
    project.script()
    assert project.results() == {"a-1,": "a=1 b=1", "a-2,": "a=2 b=1"}
