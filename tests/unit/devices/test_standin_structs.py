"""The structures of the stand-in NVML have the layout of NVIDIA's, as its own Python bindings describe them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

from tests.support.standin.box import NO_COMPILER, TRAIN

LAYOUTS: dict[str, tuple[type[ctypes.Structure], str]] = {
    "memory_v1": (pynvml.c_nvmlMemory_t, "total free used"),
    "memory_v2": (pynvml.c_nvmlMemory_v2_t, "version total reserved free used"),
    "process_v2": (pynvml.c_nvmlProcessInfo_v3_t, "pid bytes gpu_instance compute_instance"),
    "pci": (pynvml.nvmlPciInfo_t, "legacy_bus_id domain bus device device_id subsystem_id bus_id"),
    "utilization": (pynvml.c_nvmlUtilization_t, "gpu memory"),
    "sample": (pynvml.c_nvmlProcessUtilizationSample_t, "pid time sm memory encoder decoder"),
    "accounting": (pynvml.c_nvmlAccountingStats_t, "gpu memory peak time start running reserved"),
    "attributes": (
        pynvml.c_nvmlDeviceAttributes,
        "multiprocessors copy_engines decoders encoders jpeg ofa gpu_slices compute_slices mib",
    ),
    "temperature_v1": (pynvml.c_nvmlTemperature_v1_t, "version sensor celsius"),
    "event_data": (pynvml.c_nvmlEventData_t, "device type data gpu_instance compute_instance"),
}
"""Each structure of the stand-in with that of the bindings, and its own names of the fields in order."""
VERSIONS = {"MEMORY_V2": pynvml.nvmlMemory_v2, "TEMPERATURE_V1": pynvml.nvmlTemperature_v1}


def claims() -> list[str]:
    """Return what has to be true of the structures, as expressions of C."""
    found = [f"{name} == {version:#x}u" for name, version in VERSIONS.items()]
    for name, (theirs, fields) in LAYOUTS.items():
        found.append(f"sizeof(struct {name}) == {ctypes.sizeof(theirs)}")
        named = [name for name, *_ in theirs._fields_]
        for mine, other in zip(fields.split(), named, strict=True):
            found.append(f"offsetof(struct {name}, {mine}) == {getattr(theirs, other).offset}")
    return found


@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
def test_structures_of_the_stand_in_have_the_sizes_and_offsets_of_nvidias_bindings(tmp_path: Path) -> None:
    code = tmp_path / "layouts.c"
    asserts = "".join(f'_Static_assert({claim}, "{claim}");\n' for claim in claims())
    code.write_text(f'#include <stddef.h>\n#include "{TRAIN.parent / "nvml.c"}"\n{asserts}')
    done = subprocess.run(["cc", "-fsyntax-only", "-w", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
