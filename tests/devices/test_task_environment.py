"""What a task is told of its GPUs, and what of the user's shell is kept from it."""

from __future__ import annotations

from scheduler.devices.task_environment import gpu_environment

MPS = {
    "CUDA_MPS_PIPE_DIRECTORY": None,
    "CUDA_MPS_LOG_DIRECTORY": None,
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": None,
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None,
}
USERS = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,1", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}


def told(*uuids: str, visible: str = "uuid", indices: tuple[int, ...] = (), **environ: str) -> dict[str, str | None]:
    return gpu_environment(uuids, visible, indices, {**USERS, **environ})


def test_its_gpus_by_uuid_and_no_preallocation_and_nothing_of_mps() -> None:
    assert told("GPU-b", "GPU-a") == {
        **MPS,
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def test_by_numbers_where_a_script_takes_them_for_one() -> None:
    assert told("GPU-b", "GPU-a", visible="index", indices=(3, 0))["CUDA_VISIBLE_DEVICES"] == "3,0"


def test_what_the_user_says_of_preallocation_stays() -> None:
    mine = told("GPU-a", TF_FORCE_GPU_ALLOW_GROWTH="false", XLA_PYTHON_CLIENT_PREALLOCATE="")
    assert mine == {**MPS, "CUDA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_without_gpus_it_finds_none() -> None:
    assert told() == {**MPS, "CUDA_VISIBLE_DEVICES": ""}
