"""The variables that tell a task its GPUs, and the user's variables that are kept from it."""

from __future__ import annotations

from scheduler.devices.task_env import gpu_environment

MPS = {
    "CUDA_MPS_PIPE_DIRECTORY": None,
    "CUDA_MPS_LOG_DIRECTORY": None,
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": None,
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None,
}
USERS = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,1", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}


def told(*uuids: str, visible: str = "uuid", indices: tuple[int, ...] = (), **environ: str) -> dict[str, str | None]:
    return gpu_environment(uuids, visible, indices, {**USERS, **environ})


def test_task_gets_uuids_no_preallocation_and_no_mps() -> None:
    assert told("GPU-b", "GPU-a") == {
        **MPS,
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def test_task_gets_numbers_with_visible_index() -> None:
    assert told("GPU-b", "GPU-a", visible="index", indices=(3, 0))["CUDA_VISIBLE_DEVICES"] == "3,0"


def test_preallocation_variables_of_the_user_stay() -> None:
    mine = told("GPU-a", TF_FORCE_GPU_ALLOW_GROWTH="false", XLA_PYTHON_CLIENT_PREALLOCATE="")
    assert mine == {**MPS, "CUDA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_task_without_gpus_sees_none() -> None:
    assert told() == {**MPS, "CUDA_VISIBLE_DEVICES": ""}
