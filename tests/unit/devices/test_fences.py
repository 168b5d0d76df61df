"""Limits on GPU memory: PyTorch's options, its files, and a stand-in for the kernel's groups."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.core.model import EstimateSource, Placement, Purpose
from scheduler.devices import dmem_fence, torch_fence
from scheduler.runtime.shim import limit_group

GIB = 1 << 30
GPU, OTHER = "GPU-aaaa", "GPU-bbbb"
BUSES = {GPU: "00000000:3B:00.0", OTHER: "00000000:5E:00.0"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.2500"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native,"},
         {"PYTORCH_CUDA_ALLOC_CONF": "backend:native,per_process_memory_fraction:0.2500"}),
        ({"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:4]"},
         {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:4],per_process_memory_fraction:0.2500"}),
        ({"PYTORCH_ALLOC_CONF": "per_process_memory_fraction: 0.9"},
         {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.2500"}),
        ({"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:2"},
         {"PYTORCH_ALLOC_CONF": "a:1,per_process_memory_fraction:0.2500",
          "PYTORCH_CUDA_ALLOC_CONF": "b:2,per_process_memory_fraction:0.2500"}),
    ],
    ids=["none", "deprecated name", "list", "higher limit", "both"],
)  # fmt: skip
def test_limit_joins_the_options_of_the_user(environ: dict[str, str], expected: dict[str, str]) -> None:
    assert torch_fence.merged(environ, 0.25) == expected


def python(root: Path, *, knows: bool | None) -> Path:
    """Make a virtual environment's interpreter, with or without the files of a PyTorch."""
    program = root / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.touch()
    if knows is not None:
        folder = root / "lib" / "python3.12" / "site-packages" / "torch" / "lib"
        folder.mkdir(parents=True)
        (folder / "libc10_cuda.so").write_bytes(b"per_process_memory_fraction" if knows else b"expandable_segments")
    return program


@pytest.mark.parametrize("knows", [True, False, None])
def test_pytorch_is_judged_by_the_files_beside_the_interpreter(tmp_path: Path, knows: bool | None) -> None:
    program = python(tmp_path, knows=knows)
    assert torch_fence.takes_limit(str(program), {"HOME": str(tmp_path / "none")}) is bool(knows)


def test_interpreter_of_a_script_is_the_one_in_its_first_line(tmp_path: Path) -> None:
    program = python(tmp_path, knows=True)
    program.chmod(0o755)
    for name, line in (("torchrun", f"#!{program}"), ("accelerate", "#!/usr/bin/env -S python -u")):
        script = program.with_name(name)
        script.write_text(f"{line}\nimport sys\n")
        script.chmod(0o755)
        assert torch_fence.find_program(name, str(program.parent)) == str(program)


def tree(root: Path, *, controllers: str = "cpu dmem", switched: str = "dmem", regions: str = "") -> Path:
    """Make a stand-in for a mounted cgroup v2, and this process's own group in it."""
    own = root / "user" / "run"
    own.mkdir(parents=True)
    (root / "cgroup.controllers").write_text(controllers)
    (root / "dmem.capacity").write_text(regions)
    (own / "cgroup.controllers").write_text(controllers)
    (own / "cgroup.subtree_control").write_text(switched)
    return own


REGIONS = "drm/0000:5e:00.0/vram0 85899345920\ndrm/0000:3b:00.0/stolen 1048576\ndrm/0000:3b:00.0/vram0 85899345920\n"


def test_gpus_are_regions_by_their_place_on_the_bus(tmp_path: Path) -> None:
    tree(tmp_path, regions=REGIONS)
    assert dmem_fence.regions(BUSES, [tmp_path]) == {GPU: "drm/0000:3b:00.0/vram0", OTHER: "drm/0000:5e:00.0/vram0"}


def test_limits_of_an_attempt_are_written_into_its_group(tmp_path: Path) -> None:
    fence = dmem_fence.DmemFence({GPU: "drm/0000:3b:00.0/vram0", OTHER: "drm/0000:5e:00.0/vram0"})
    placement = Placement(1, 1, Purpose.RUN, {GPU: 4 * GIB}, 1, EstimateSource.DECLARED)
    said = fence.limit(placement, ("python",), {})
    assert said.limits == (f"drm/0000:3b:00.0/vram0 {4 * GIB}", "drm/0000:5e:00.0/vram0 0")
    written = []
    (tmp_path / "dmem.max").touch()
    for line in said.limits:  # the file of the kernel takes one region with each write
        limit_group(str(tmp_path), [line])
        written.append((tmp_path / "dmem.max").read_text().splitlines()[0])
    assert written == list(said.limits)


def test_kernel_that_can_limit_needs_nothing(tmp_path: Path) -> None:
    own = tree(tmp_path, regions=REGIONS)
    assert dmem_fence.why_not(BUSES, [tmp_path], str(own)) == ""


def test_controller_is_switched_on_where_it_is_delegated(tmp_path: Path) -> None:
    own = tree(tmp_path, regions=REGIONS, switched="cpu")
    assert dmem_fence.why_not(BUSES, [tmp_path], str(own)) == ""
    assert (own / "cgroup.subtree_control").read_text().startswith("+dmem")


def test_reasons_against_the_limit_of_the_kernel_are_named(tmp_path: Path) -> None:
    old = tree(tmp_path / "old", controllers="cpu memory")
    assert "has no such controller: dmem needs Linux 6.14" in dmem_fence.why_not(BUSES, [tmp_path / "old"], str(old))
    alone = tree(tmp_path / "alone", regions=REGIONS.splitlines()[0])
    said = dmem_fence.why_not(BUSES, [tmp_path / "alone"], str(alone))
    assert f"the driver has not registered the memory of {GPU} with the kernel" in said
    closed = tree(tmp_path / "closed", regions=REGIONS)
    (closed / "cgroup.controllers").write_text("cpu")
    assert "is not delegated to" in dmem_fence.why_not(BUSES, [tmp_path / "closed"], str(closed))
    fixed = tree(tmp_path / "fixed", regions=REGIONS, switched="")
    (fixed / "cgroup.subtree_control").unlink()
    (fixed / "cgroup.subtree_control").mkdir()
    assert "cannot be written" in dmem_fence.why_not(BUSES, [tmp_path / "fixed"], str(fixed))


PARSES = """\
import sys, torch
for options in sys.argv[1:]:
    try:
        torch._C._accelerator_setAllocatorSettings(options)
        print("taken", torch._C._accelerator_getAllocatorSettings())
    except (RuntimeError, ValueError) as error:
        print("refused")
"""


def torch_python() -> str:
    """Return a Python with PyTorch: the one that TORCH_PYTHON names, else this one if it has PyTorch; else nothing."""
    return os.environ.get("TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")


@pytest.mark.slow
@pytest.mark.skipif(not torch_python(), reason="PyTorch is not installed, and TORCH_PYTHON names no Python with it")
def test_parser_of_an_installed_pytorch_takes_the_merged_options() -> None:
    mine = {torch_fence.NEW: "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2]"}
    options = torch_fence.merged(mine, 0.25)[torch_fence.NEW]
    broken = [options.removesuffix(":0.2500"), options.replace("True", "maybe"), options.replace("mb:64", "mb:few")]
    said = subprocess.run([torch_python(), "-c", PARSES, options, *broken], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [f"taken {options}", *["refused"] * 3]
