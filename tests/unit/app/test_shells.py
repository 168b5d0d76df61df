"""The parts of a run's first shell that still apply to its devices after a takeover from another shell."""

from __future__ import annotations

import pytest

from scheduler.app.run.shell_context import ShellContext
from scheduler.runtime.python_envs import Python
from scheduler.store.run.shell_state import ShellState

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3"}


@pytest.mark.parametrize(
    ("first", "now", "said"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, {"CUDA_VISIBLE_DEVICES": "0"}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}),
        (
            {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            {"CUDA_VISIBLE_DEVICES": "1"},
            {"CUDA_VISIBLE_DEVICES": "1"},
        ),
        ({"CUDA_VISIBLE_DEVICES": "0"}, SLURM, SLURM),
        ({"CUDA_VISIBLE_DEVICES": "0", **SLURM}, {}, {}),
        ({"NVIDIA_VISIBLE_DEVICES": "0"}, {}, {}),
        ({"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "5"}, {"OMP_NUM_THREADS": "3"}),
    ],
)
def test_gpu_variables_come_from_this_shell_or_else_from_the_first_one(
    first: dict[str, str], now: dict[str, str], said: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", *SLURM)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, text in now.items():
        monkeypatch.setenv(name, text)
    assert ShellContext(ShellState(first, 0o022, {}), Python("/python"), "/").for_devices() == said
