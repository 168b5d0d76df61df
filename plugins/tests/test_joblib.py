"""joblib's backend: results in order, generators, errors, options, and calls that are learned by their arguments."""

from __future__ import annotations

import pytest

from plugins.tests.plugin_home import PluginHome

pytest.importorskip("joblib")
pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.slow

BEGIN = """\
import os, time
import joblib
from math import sqrt
from joblib import Parallel, delayed
from gpu_batch_scheduler_plugins import joblib_backend
joblib_backend.register()

def work(number, width=2):
    if number == 99:
        raise ValueError("no luck with 99")
    return number * width
"""


def test_first_example_of_joblib_has_its_results_in_order(home: PluginHome) -> None:
    said = home.program(
        f"""{BEGIN}
with joblib.parallel_backend("gsched"):
    print(Parallel(n_jobs=2)(delayed(sqrt)(i ** 2) for i in range(6)))
"""
    )
    assert said == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n"


def test_each_call_is_a_task_that_shows_its_arguments(home: PluginHome) -> None:
    home.program(
        f"""{BEGIN}
with joblib.parallel_config(backend="gsched", n_jobs=-1, name="mine", gpus=0, options={{"priority": 4}}):
    assert Parallel()(delayed(work)(i, width=3) for i in (5, 6)) == [15, 18]
"""
    )
    tasks = home.tasks("mine")
    assert [(task["priority"], task["config.number"], task["config.width"]) for task in tasks] == [
        (4, "5", "3"), (4, "6", "3"),
    ]  # fmt: skip


def test_batch_of_several_calls_is_one_task(home: PluginHome) -> None:
    home.program(
        f"""{BEGIN}
with joblib.parallel_config(backend="gsched", n_jobs=2, name="batched"):
    print(list(Parallel(batch_size=3, pre_dispatch="all", return_as="generator")(delayed(work)(i) for i in range(6))))
"""
    )
    assert len(home.tasks("batched")) == 2


def test_error_of_a_call_is_raised_and_the_others_are_ended(home: PluginHome) -> None:
    said = home.program(
        f"""{BEGIN}
with joblib.parallel_config(backend="gsched", n_jobs=-1, name="broken"):
    try:
        Parallel()([delayed(work)(99), delayed(time.sleep)(60)])
    except ValueError as exc:
        print(exc)
    print(Parallel()(delayed(work)(i) for i in (1, 2)))
"""
    )
    assert said == "no luck with 99\n[2, 4]\n"


def test_option_that_no_call_has_is_refused_with_a_sentence(home: PluginHome) -> None:
    text = f"{BEGIN}\nwith joblib.parallel_config(backend='gsched', memory='8'):\n    Parallel()([delayed(sqrt)(4)])"
    (home.root / "bad.py").write_text(text)
    assert "Memory: '8' has no unit" in home.python("bad.py", code=1).stderr
