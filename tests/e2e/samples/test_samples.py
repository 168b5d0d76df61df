"""The sample workload: it trains, continues where it was stopped, and needs its intended memory."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.inputs.csv_reader import CsvFile
from tests.e2e.older_tools.contracts import contract

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "scheduler_files"
# with a learning rate that shows within a few steps
SCRIPTS = {
    "train_linear.py": "--lr=0.02",
    "train_mlp.py": "--lr=0.1",
    "train_autoencoder.py": "--lr=0.1",
    "train_embedding.py": "--lr=0.0005",
}
LOSS = re.compile(r"^epoch \d+/\d+ loss (\d+\.\d+)", re.MULTILINE)
MIB = 1 << 20
# VmHWM and not ru_maxrss, which a process inherits from the one that started it
TELL_PEAK = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


@pytest.fixture(params=["numpy", "plain Python"])
def matrices(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the scripts find numpy, or a module of that name that cannot be imported."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in [name for name in os.environ if name.startswith(("SCHEDULER_", "CUDA_"))]:
        monkeypatch.delenv(name)
    if request.param == "numpy":
        pytest.importorskip("numpy")
    else:
        (tmp_path / "blocked").mkdir()
        (tmp_path / "blocked" / "numpy.py").write_text("raise ImportError('blocked')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "blocked"))
    return str(request.param)


def command(script: str, epochs: int, *flags: str) -> list[str]:
    quick = ["--samples=1024", "--steps=15", SCRIPTS[script], *flags]
    return [str(SAMPLES / script), *quick, f"--epochs={epochs}", "--id=7"]


def trained(folder: Path, script: str, epochs: int, *flags: str, **variables: object) -> str:
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return output_of(command(script, epochs, *flags), folder, environment)


def output_of(arguments: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(loss) for loss in LOSS.findall(output)]


def peak_bytes(folder: Path, script: str, samples: int) -> int:
    few = command(script, 1, f"--samples={samples}", "--steps=1")
    return int(output_of(["-c", TELL_PEAK, *few], folder).split()[-2]) * 1024


def rows() -> Iterator[dict[str, str]]:
    with (SAMPLES / "commands.csv").open(newline="") as file:
        yield from csv.DictReader(file)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_loss_falls_with_and_without_numpy(script: str, matrices: str, tmp_path: Path) -> None:
    output = trained(tmp_path, script, 4)
    assert f"training with {matrices}" in output
    assert len(losses(output)) == 4
    assert losses(output)[-1] < 0.9 * losses(output)[0]


@pytest.mark.parametrize(
    ("script", "matrices"),
    [("train_mlp.py", "numpy"), *((script, "plain Python") for script in SCRIPTS)],
    indirect=["matrices"],
)
def test_training_in_two_parts_ends_where_training_at_once_does(script: str, matrices: str, tmp_path: Path) -> None:
    first = trained(tmp_path, script, 1, SCHEDULER_TASK_DIR=tmp_path / "parts")
    second = trained(tmp_path, script, 2, SCHEDULER_TASK_DIR=tmp_path / "parts")
    at_once = trained(tmp_path, script, 2, SCHEDULER_TASK_DIR=tmp_path / "at once")
    assert losses(first) + losses(second) == losses(at_once)


@pytest.mark.parametrize("matrices", ["plain Python"], indirect=True)
class TestCheckpoint:
    def test_a_checkpoint_is_one_small_file_named_by_the_id(self, matrices: str, tmp_path: Path) -> None:
        trained(tmp_path, "train_mlp.py", 2)
        (checkpoint,) = (tmp_path / "checkpoints").iterdir()
        assert checkpoint.name == "7.json"
        assert json.loads(checkpoint.read_text())["epochs"] == 2
        assert checkpoint.stat().st_size < MIB

    def test_a_complete_checkpoint_leaves_nothing_to_train(self, matrices: str, tmp_path: Path) -> None:
        trained(tmp_path, "train_mlp.py", 2)
        assert trained(tmp_path, "train_mlp.py", 2) == "already trained 2 of 2 epochs: nothing to do\n"

    def test_a_checkpoint_of_another_model_is_not_continued(self, matrices: str, tmp_path: Path) -> None:
        trained(tmp_path, "train_mlp.py", 2)
        output = trained(tmp_path, "train_linear.py", 1)
        assert "starting anew" in output
        assert len(losses(output)) == 1

    def test_a_checkpoint_of_a_killed_training_is_continued(self, matrices: str, tmp_path: Path) -> None:
        endless = [sys.executable, *command("train_mlp.py", 100_000)]
        with subprocess.Popen(endless, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert any(line.startswith("epoch 2/") for line in process.stdout)
            process.terminate()
        assert process.returncode == -15
        reached = json.loads((tmp_path / "checkpoints" / "7.json").read_text())["epochs"]
        assert len(losses(trained(tmp_path, "train_mlp.py", reached + 1))) == 1

    def test_a_sample_writes_its_result_where_the_scheduler_asks_for_it(self, matrices: str, tmp_path: Path) -> None:
        output = trained(tmp_path, "train_linear.py", 2, SCHEDULER_RESULT=tmp_path / "result")
        result = json.loads((tmp_path / "result").read_text())
        assert result == {"loss": pytest.approx(losses(output)[-1], abs=1e-4), "epochs": 2}


def test_the_dataset_is_held_in_memory_with_and_without_numpy(matrices: str, tmp_path: Path) -> None:
    dataset = 400_000 * 64 * 4
    assert dataset < peak_bytes(tmp_path, "train_linear.py", samples=400_000) < dataset + 60 * MIB


def test_a_validation_needs_more_than_the_dataset(matrices: str, tmp_path: Path) -> None:
    dataset = 400_000 * 96 * 4
    assert peak_bytes(tmp_path, "train_autoencoder.py", samples=400_000) > 1.3 * dataset


@pytest.mark.parametrize("script", ["train_mlp.py", "train_autoencoder.py"])
def test_a_sample_prints_its_validation_loss(script: str, matrices: str, tmp_path: Path) -> None:
    found = re.findall(r"^epoch \d/3 loss \d+\.\d+ val_loss (\d+\.\d+)$", trained(tmp_path, script, 3), re.MULTILINE)
    assert len(found) == 3
    assert script == "train_autoencoder.py" or float(found[-1]) < float(found[0])


def test_the_sweep_varies_two_parameters_of_one_script() -> None:
    with (SAMPLES / "sweep.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len({(row["lr"], row["width"]) for row in table}) == 10
    assert len({row["Command"] for row in table}) == 1


@contract("S3-29")
def test_the_list_has_forty_rows_of_exactly_the_five_columns() -> None:
    table = list(rows())
    assert len(table) == 40
    assert all(
        list(row) == ["Directory", "Executable", "Filename", "Epochs", "Priority"] and all(row.values())
        for row in table
    )


@contract("S3-29")
def test_the_list_is_accepted_as_it_is() -> None:
    file = CsvFile(SAMPLES / "commands.csv", cwd=str(ROOT))
    assert len(list(file.rows())) == 40
    assert not any("did you mean" in warning for warning in file.warnings)


def test_the_sample_list_mixes_scripts_priorities_and_epochs() -> None:
    table = list(rows())
    assert {row["Filename"].split()[0] for row in table} == SCRIPTS.keys()
    assert {row["Directory"] for row in table} == {"scheduler_files"}
    assert {row["Executable"] for row in table} == {"-1", "python"}
    assert {row["Priority"] for row in table} == {"1", "2", "4", "5"}
    assert len({(row["Executable"], row["Filename"]) for row in table}) == 4, "four kinds: four probes are enough"
    assert len({row["Epochs"] for row in table}) >= 10
    assert any(row["Priority"] == "1" for row in table[30:])


def test_the_wheel_takes_every_sample_file_along() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    taken = {Path(name).name for name in wheel["only-include"] if name.startswith("scheduler_files/")}
    assert taken == {"commands.csv", "sweep.csv", *(path.name for path in SAMPLES.glob("*.py"))}
