"""Discovery, doctor, devices, a list, and injected failures against an NVML that was not written for these tests.

`./scripts/test --nvml LIBRARY` names it: NVIDIA's mock (NVIDIA/k8s-test-infra, pkg/gpu/mocknvml, built with `make`), or
the library of a driver. Machine profiles are the files `configs/*.yaml` beside it, or in MOCK_NVML_PROFILES. Failures
need NVIDIA's `nvml-mock-ctl` beside the library or on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import Home
from tests.support.waiting import wait_until

LIBRARY = Path(os.environ.get("MOCK_NVML") or "/nonexistent")
PROFILES = sorted(Path(os.environ.get("MOCK_NVML_PROFILES") or LIBRARY.parent / "configs").glob("*.yaml"))
CONTROL = shutil.which("nvml-mock-ctl", path=f"{LIBRARY.parent}{os.pathsep}{os.environ['PATH']}")
PATIENCE = 30.0
HOLD = "sh -c 'while [ ! -e go ]; do sleep 0.05; done'"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY.is_file(), reason="MOCK_NVML names no NVML library: ./scripts/test --nvml LIBRARY"),
]
breakable = pytest.mark.skipif(not (CONTROL and PROFILES), reason="failures need nvml-mock-ctl and a machine profile")


class OtherNvml(Home):
    """A home whose commands load the library that was named, with one machine profile of a mock."""

    def __init__(self, root: Path, profile: Path | None) -> None:
        super().__init__(root)
        folder = root / "nvml"
        folder.mkdir()
        (folder / "libnvidia-ml.so.1").symlink_to(LIBRARY.resolve())
        self.env |= {"LD_LIBRARY_PATH": str(folder), "MOCK_NVML_OVERRIDES": str(root / "overrides.yaml")}
        self.env |= {"MOCK_NVML_OVERRIDES_TTL": "100ms"}
        if profile is not None:
            self.env["MOCK_NVML_CONFIG"] = str(profile)
        (root / "said").touch()

    def set(self, verb: str, *words: str, gpu: int | str = 1) -> None:
        """Have the mock's GPU fail, or report other values, from now on."""
        assert CONTROL is not None
        command = [CONTROL, verb, "--gpu", str(gpu), *words]
        subprocess.run(command, env=self.env, cwd=self.root, check=True, capture_output=True)

    def doctor(self) -> dict[str, Any]:
        """Return what doctor says as JSON."""
        return dict(json.loads(self.call("doctor", "--json").stdout))

    def findings(self, words: str) -> list[str]:
        """Return the sentences of doctor that contain these words."""
        lines = [f"{one['what']}: {one['says']} {one['note']}" for one in self.doctor()["lines"]]
        return [line for line in lines if words in line]

    def gpus(self) -> list[dict[str, Any]]:
        """Return the GPUs that `devices` lists."""
        devices = json.loads(self.call("devices", "--json", code=0).stdout)["devices"]
        return [device for device in devices if device["device"] != "host"]

    def used(self) -> list[str]:
        """Return the device of each task."""
        tasks = json.loads(self.call("list", "r1", "--json", code=0).stdout)["tasks"]
        return [task["device"] for task in tasks]


@pytest.fixture(params=PROFILES or [None], ids=lambda path: path.stem.rpartition("-")[2] if path else "as it is")
def machine(request: Any, tmp_path: Path) -> Iterator[OtherNvml]:
    home = OtherNvml(tmp_path, request.param)
    yield home
    print(home.log())
    home.end()


@pytest.fixture
def first(tmp_path: Path) -> Iterator[OtherNvml]:
    home = OtherNvml(tmp_path, PROFILES[0])
    yield home
    print(home.log())
    home.end()


def test_doctor_and_devices_show_every_gpu_by_a_uuid_of_its_own(machine: OtherNvml) -> None:
    found = machine.doctor()["gpus"]
    assert found
    assert len({gpu["uuid"] for gpu in found}) == len(found)
    assert all(gpu["total_bytes"] > 0 for gpu in found if not gpu["instance"])
    listed = {device["key"] for device in machine.gpus()}
    assert listed == {gpu["uuid"] for gpu in found if gpu["usable"]}
    rows = [line for line in machine.call("doctor").stdout.splitlines() if "GPU-" in line]
    assert len({row.split()[-1] for row in rows}) == len(rows), "the UUIDs shown are told apart"


def test_list_runs_on_the_gpus_with_the_uuids_that_tasks_see(machine: OtherNvml) -> None:
    keys = {device["device"]: device["key"] for device in machine.gpus()}
    machine.commands(*["sh -c 'echo sees $CUDA_VISIBLE_DEVICES; sleep 0.2'"] * 4)
    machine.call("run", "jobs.csv", code=0)
    assert machine.states() == ["succeeded"] * 4
    told = [machine.call("logs", f"r1.{task}", code=0).stdout for task in (1, 2, 3, 4)]
    for device, text in zip(machine.used(), told, strict=True):
        assert f"sees {keys[device]}" in text


@breakable
@pytest.mark.parametrize("mode", ["lost", "fallen_off_bus"])
def test_gpu_lost_before_a_run_is_named_and_left_out(first: OtherNvml, mode: str) -> None:
    first.set("fail", "--mode", mode)
    assert first.findings("is lost")
    first.commands(*["sleep 0.1"] * 3)
    first.call("run", "jobs.csv", code=0)
    assert first.states() == ["succeeded"] * 3
    assert "GPU 1" not in first.used()


@breakable
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--mode", "lost"], "GPU 1 is lost"),
        (["--mode", "fallen_off_bus", "--after-calls", "5"], "GPU 1 is lost"),
        (["--mode", "ecc_uncorrectable", "--xid", "48"], "GPU 1 reported XID 48 (an uncorrectable memory error)"),
    ],
    ids=["lost", "fallen off the bus", "XID"],
)
def test_gpu_that_fails_during_a_run_is_drained_and_the_list_ends_well(
    first: OtherNvml, words: list[str], sentence: str
) -> None:
    first.write("jobs.csv", "Command,Device", [HOLD, "1"], [HOLD, "0"], ["true", ""], ["true", ""])
    with open(first.root / "said", "a") as said, first.start("run", "jobs.csv", stderr=said) as run:
        wait_until(lambda: "GPU 1" in first.log(), PATIENCE)
        first.set("fail", *words)
        wait_until(lambda: sentence in first.log(), PATIENCE)
        assert [device["device"] for device in first.gpus() if device["drained"]] in ([], ["GPU 1"])
        (first.root / "go").touch()
        assert run.wait(PATIENCE) == 0
    assert first.states() == ["succeeded"] * 4
    assert "GPU 0 is" not in first.log()
    assert "Traceback" not in (first.root / "said").read_text()


@breakable
def test_doctor_tells_memory_errors_and_lowered_clocks(first: OtherNvml) -> None:
    first.set("fail", "--mode", "ecc_uncorrectable")
    first.set("throttle", "thermal", gpu=0)
    assert first.findings("GPU 1: 3 uncorrectable memory errors")
    assert first.findings("GPU 0: its clocks are lowered at the moment (thermal slowdown by hardware)")
    first.set("fail", "--mode", "healthy")
    first.set("throttle", "none", gpu=0)
    assert not first.findings("uncorrectable memory errors")
    assert not first.findings("clocks are lowered")


@breakable
def test_use_of_a_listed_process_is_measured_for_its_task(first: OtherNvml) -> None:
    used = 3000
    (first.root / "task.py").write_text(
        "import os, subprocess, time\n"
        "gpu = os.environ['SCHEDULER_GPU_INDICES']\n"
        f"said = 'processes=[{{pid: %d, type: C, used_memory_mib: {used}}}]' % os.getpid()\n"
        f"more = ['memory.used_bytes={used << 20}', 'memory.free_bytes={20 << 30}']\n"
        f"subprocess.run([{CONTROL!r}, 'set', '--gpu', gpu, said, *more], check=True)\n"
        "time.sleep(2)\n"
        f"subprocess.run([{CONTROL!r}, 'reset', '--gpu', gpu], check=True)\n"
        "time.sleep(0.5)\n"
    )
    first.commands(f"{sys.executable} -S task.py")
    first.call("run", "jobs.csv", code=0)
    (task,) = first.tasks()
    assert task["peak_bytes"] == used << 20
