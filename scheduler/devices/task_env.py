"""The environment variables that show a task its GPUs, and the user's variables that the task does not get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UUID, INDEX, ALL = "uuid", "index", "all"
"""The ways to name GPUs in CUDA_VISIBLE_DEVICES. INDEX is for scripts that read the variable as a number. ALL removes
the variable, for scripts that choose their GPU by SCHEDULER_GPU_INDICES or GPU and number GPUs as nvidia-smi does.
"""
INSTANCE = "MIG-"
"""The prefix of the UUID of a MIG instance. CUDA shows an instance only to a task whose CUDA_VISIBLE_DEVICES has its
UUID.
"""
_NO_PREALLOCATION = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Variables that prevent preallocation: without them, TensorFlow and JAX allocate nearly all memory of a device."""
MPS_VARIABLES = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)
"""Variables that lead to an MPS daemon of the user instead of the scheduler's; they are removed from the environment of
tasks.
"""


def gpu_environment(
    uuids: Sequence[str], visible: str, indices: Sequence[int], environ: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the variables of a task outside of MPS on these GPUs, which the task sees in the given order; None removes
    a variable.

    With an empty `uuids`, the task runs on the host alone and sees no GPU. `visible` is UUID or INDEX; `indices` are
    CUDA's numbers in the order of bus ids (`allocation.cuda_numbers`), which are not always NVML's. Variables about
    preallocation that the user has set in `environ` are left unchanged.
    """
    variables: dict[str, str | None] = dict.fromkeys(MPS_VARIABLES)
    if not uuids:
        return {**variables, "CUDA_VISIBLE_DEVICES": ""}
    names = [str(index) for index in indices] if visible == INDEX else uuids
    variables["CUDA_VISIBLE_DEVICES"] = None if visible == ALL else ",".join(names)
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    variables.update({name: text for name, text in _NO_PREALLOCATION.items() if name not in environ})
    return variables
