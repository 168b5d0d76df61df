"""`scheduler doctor` as users call it: without a GPU, with stand-in ones, with broken ones, and with bad places."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import EstimateSource, Placement, Purpose
from scheduler.runtime.settings import READERS
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.units import GIB
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.standin.box import NO_COMPILER, Box

pytestmark = pytest.mark.slow
needs_standin = pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)

MODELS = ["NVIDIA A100-SXM4-40GB"] * 2 + ["NVIDIA GeForce RTX 3090"] * 2
SIZES = ["40GiB", "40GiB", "24GiB", "24GiB"]
HIDING = ("CUDA_", "SLURM_", "NVIDIA_", "VIRTUAL_ENV", "CONDA_")
LINE = re.compile(r"  (ok|!!|--)  (.{14}) (.+)")


class Page:
    """The output of the verb: its text and its JSON."""

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self.text = text
        self.data = data
        self.lines: list[dict[str, Any]] = data["lines"]

    def line(self, what: str) -> dict[str, Any]:
        """Return the first line of that name."""
        return next(line for line in self.lines if line["what"] == what)

    def said(self, what: str) -> str:
        """Mark and words of all lines of that name."""
        return "\n".join(
            f"{one['mark']} {one['says']}  {one['note']}".rstrip() for one in self.lines if one["what"] == what
        )

    @property
    def wrong(self) -> list[str]:
        return [line["what"] for line in self.lines if line["mark"] == "!!"]


class Patient:
    """A machine that `doctor` examines."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.home = Home(root)
        kept = {name: text for name, text in self.home.env.items() if not name.startswith(HIDING)}
        self.home.env = {**kept, **env}

    def page(self, code: int = 0, **env: str) -> Page:
        """Return the page as text and as JSON, after checking that they agree and every problem has a cure."""
        said = {**self.home.env, **env}
        text = self.home.call("doctor", code=code, env={**said, "COLUMNS": "100"}).stdout
        data = json.loads(self.home.call("doctor", "--json", code=code, env=said).stdout)
        page = Page(text, data)
        assert [line["what"] for line in page.lines if line["mark"] == "!!" and not line["cure"]] == []
        assert shown(text) == [(one["mark"], one["what"]) for one in page.lines]
        assert blurred(text).endswith(blurred(data["summary"]) + "\n")
        assert (data["format"], data["ok"]) == (1, code == 0)
        long = (line for line in text.splitlines() if len(line) > 100)
        assert [line for line in long if " " in line[21:].strip()] == []  # a path stays whole
        whole = blurred(" ".join(text.split()))
        for one in page.lines:
            for part in (one["says"], one["note"], one["cure"]):
                assert blurred(" ".join(part.split())) in whole
        return page


def shown(text: str) -> list[tuple[str, str]]:
    """Mark and name of each line of the page."""
    return [(match[1], match[2].rstrip()) for match in map(LINE.match, text.splitlines()) if match]


def blurred(text: str) -> str:
    """Remove the numbers, which change between two calls."""
    return re.sub(r"[\d.,]+", "#", text)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Patient]:
    made = Patient(tmp_path, {})
    yield made
    made.home.end()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as given:
        yield given


@pytest.fixture
def with_gpus(tmp_path: Path, stack: ExitStack) -> Callable[..., tuple[Patient, Box]]:
    def make(**said: Any) -> tuple[Patient, Box]:
        box = stack.enter_context(Box(tmp_path / "box", **{"gpus": 2, **said}))
        made = Patient(tmp_path, box.env)
        stack.callback(made.home.end)
        return made, box

    return make


def reservation(patient: Patient, stack: ExitStack, shim: int = 0, **devices: int) -> None:
    """Make a living lease of this user for a task of another run."""
    patient.home.leases.mkdir(exist_ok=True)
    patient.home.leases.chmod(0o1777)
    registry = FileLeaseRegistry(patient.home.leases, "7-ab", "boot")
    placement = Placement(3, 1, Purpose.RUN, devices, 1.0, EstimateSource.DECLARED)
    with registry.deciding() as session:
        taken = session.take(placement)
    stack.callback(os.close, taken.fd)
    stack.callback(registry.close)
    if shim:
        assert registry.rewrite(placement, shim)


class TestWithoutGpus:
    def test_doctor_reports_no_problem_on_a_machine_without_gpus(self, patient: Patient) -> None:
        page = patient.page()
        assert page.said("driver").startswith("-- there is no NVIDIA driver here")
        assert {line["mark"] for line in page.lines if line["group"] == "GPUs"} == {"--"}
        assert page.data["summary"].endswith("of RAM and no GPU")
        assert not patient.home.state.exists()
        assert not patient.home.leases.exists()

    def test_json_has_every_setting_with_its_source(self, patient: Patient) -> None:
        settings = patient.page(SCHEDULER_BUFFER="1GiB").data["settings"]
        assert {one["name"] for one in settings} == READERS.keys()
        assert [(one["name"], one["value"], one["source"]) for one in settings if one["name"] in ("buffer", "num")] == [
            ("num", 20, "default"),
            ("buffer", GIB, "environment"),
        ]
        assert {one["name"] for one in settings if one["unit"] == "bytes"} == {"buffer", "log_max"}

    def test_invalid_setting_leaves_the_other_checks(self, patient: Patient) -> None:
        page = patient.page(1, SCHEDULER_NUM="none")
        assert page.wrong == ["settings"]
        assert str(patient.home.leases) in page.said("leases")
        assert len(page.lines) > 10

    def test_wrong_pynvml_is_named_with_its_cure(self, patient: Patient) -> None:
        unmanaged = patient.home.root / "unmanaged" / "pynvml"
        unmanaged.mkdir(parents=True)
        (unmanaged / "__init__.py").touch()
        both = f"{unmanaged.parent}{os.pathsep}{patient.home.env['PYTHONPATH']}"
        assert patient.page(PYTHONPATH=both).line("pynvml")["cure"].startswith("pip uninstall pynvml")

    def test_python_outside_of_the_active_environment_needs_attention(self, patient: Patient) -> None:
        assert "not that of the active virtual environment" in patient.page(VIRTUAL_ENV="/opt/env").said(
            "python for -1"
        )
        assert patient.page(1, SCHEDULER_PYTHON="/no/python").wrong == ["python for -1"]

    def test_mps_daemon_of_the_shell_is_named_and_kept_from_tasks(self, patient: Patient) -> None:
        program = patient.home.root / "bin" / "nvidia-cuda-mps-control"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nread forever\n")
        program.chmod(0o755)
        pipes = patient.home.root / "pipes"
        pipes.mkdir()
        path = f"{program.parent}{os.pathsep}{patient.home.env['PATH']}"
        with subprocess.Popen([program], stdin=subprocess.PIPE) as daemon:
            (pipes / "nvidia-cuda-mps-control.pid").write_text(str(daemon.pid))
            page = patient.page(PATH=path, CUDA_MPS_PIPE_DIRECTORY=str(pipes))
            daemon.kill()
        assert f"(its control program is {program})" in page.said("MPS")
        assert f"runs in {pipes} (process {daemon.pid}): tasks join it only with --mps=join" in page.said("MPS")
        assert f"removed from the environment of tasks: CUDA_MPS_PIPE_DIRECTORY={pipes}" in page.said("MPS")


class TestPlaces:
    def test_state_path_that_is_a_file_has_to_be_repaired(self, patient: Patient) -> None:
        patient.home.state.write_text("")
        page = patient.page(1)
        assert page.wrong == ["state"]
        assert page.data["summary"] == "to repair: state; no run can start"

    def test_existing_state_directory_is_not_changed(self, patient: Patient) -> None:
        (patient.home.state / "runs" / "4").mkdir(parents=True)
        before = sorted(patient.home.state.rglob("*"))
        assert "1 run" in patient.page().said("state")
        assert sorted(patient.home.state.rglob("*")) == before

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_read_only_state_directory_has_to_be_repaired(self, patient: Patient) -> None:
        patient.home.state.mkdir(mode=0o500)
        assert patient.page(1).wrong == ["state"]

    @fault(56)
    def test_lease_directory_without_sticky_bit_has_a_cure(self, patient: Patient) -> None:
        patient.home.leases.mkdir()
        patient.home.leases.chmod(0o777)
        page = patient.page(1)
        assert page.wrong == ["leases"]
        assert page.line("leases")["cure"].removeprefix("sudo ") == f"chmod 1777 {patient.home.leases}"

    @fault(51)
    def test_lease_directory_behind_a_link_has_to_be_repaired(self, patient: Patient) -> None:
        (patient.home.root / "real").mkdir()
        patient.home.leases.symlink_to(patient.home.root / "real")
        assert patient.page(1).line("leases")["stops"]

    @fault(55)
    def test_locked_lease_directory_names_the_process(self, patient: Patient) -> None:
        patient.home.leases.mkdir()
        patient.home.leases.chmod(0o1777)
        fd = os.open(patient.home.leases, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            assert f"is locked by process {os.getpid()} of user {os.getuid()}" in patient.page(1).said("leases")
        finally:
            os.close(fd)

    def test_reservations_of_a_living_lease_are_listed(self, patient: Patient, stack: ExitStack) -> None:
        reservation(patient, stack, host=2 * GIB)
        assert "1 task, 2.0GiB of host" in patient.page().said("reservations")


@needs_standin
class TestGpus:
    def test_gpus_of_two_models_with_two_unusable_ones_have_cures(self, with_gpus: Any) -> None:
        patient, box = with_gpus(gpus=4, total=SIZES, name=MODELS)
        box.set(accounting=1)
        box.set(2, compute_mode=2)
        box.set(3, mig=1)
        box.unmanaged(1, "6GiB")
        page = patient.page()
        assert page.wrong == ["GPU 2", "GPU 3"]
        assert page.said("GPU 0") == f"ok A100-SXM4-40GB    40.0GiB  39.7GiB free  {box.uuids[0][:12]}"
        assert page.line("GPU 2")["cure"] == "nvidia-smi -i 2 -c DEFAULT as root allows it"
        assert page.line("GPU 3")["cure"] == "nvidia-smi -i 3 -mig 0 as root turns MIG off"
        assert page.said("accounting").startswith("ok on")
        assert re.match(
            r"ok GPU 1: 6.0GiB used by \w+, 2.0GiB more kept free for it; a run starts nothing", page.said("unmanaged")
        )
        assert page.said("CUDA's order").startswith("ok may differ from nvidia-smi")
        assert page.data["summary"].startswith("to check: GPU 2, GPU 3; a run would use GPU 0-1 and")

    def test_gpus_that_a_variable_excludes_are_marked(self, with_gpus: Any) -> None:
        patient, box = with_gpus(gpus=4)
        box.unmanaged(0, "9GiB")
        for named in ("1,3", ",".join(box.uuids[gpu] for gpu in (1, 3))):
            page = patient.page(CUDA_VISIBLE_DEVICES=named)
            assert page.said("allowed") == "ok GPU 1, 3 of 4, by CUDA_VISIBLE_DEVICES"
            assert page.said("GPU 0").endswith("not allowed for this shell")
            assert page.said("unmanaged") == "ok no unmanaged process uses GPU memory"
            assert "a run would use GPU 1, 3" in page.data["summary"]

    def test_ambiguous_gpu_numbers_have_to_be_repaired(self, with_gpus: Any) -> None:
        patient, _ = with_gpus(gpus=4, total=SIZES, name=MODELS)
        page = patient.page(1, CUDA_VISIBLE_DEVICES="0,2")
        assert page.wrong == ["allowed"]
        assert page.line("allowed")["cure"] == "set CUDA_DEVICE_ORDER=PCI_BUS_ID or name them by UUID"
        assert patient.page(CUDA_VISIBLE_DEVICES="0,2", CUDA_DEVICE_ORDER="PCI_BUS_ID").wrong == []

    def test_variable_that_excludes_all_gpus_is_named(self, with_gpus: Any) -> None:
        patient, _ = with_gpus()
        page = patient.page(CUDA_VISIBLE_DEVICES="")
        assert page.said("allowed") == "-- none, by CUDA_VISIBLE_DEVICES: runs use no GPU"
        assert page.data["summary"].endswith("RAM and no GPU")

    def test_different_cuda_order_lists_the_numbers(self, with_gpus: Any) -> None:
        patient, _ = with_gpus(gpus=3, pci_order=[2, 0, 1])
        assert "in PCI bus order, CUDA's 0 is GPU 2, 1 is GPU 0, 2 is GPU 1" in patient.page().said("CUDA's order")

    def test_memory_of_a_lease_is_not_unmanaged(self, with_gpus: Any, stack: ExitStack) -> None:
        patient, box = with_gpus()
        task = box.unmanaged(0, "5GiB")
        reservation(patient, stack, task.pid, **{box.uuids[0]: 8 * GIB, "host": GIB})
        page = patient.page()
        assert page.said("unmanaged") == "ok no unmanaged process uses GPU memory"
        assert page.said("reservations").endswith("1 task, 8.0GiB of GPU 0, 1.0GiB of host")
        assert page.data["gpus"][0]["reserved_used_bytes"] == 5 * GIB

    @pytest.mark.parametrize("switch", ["hidden", "memory_na", "host_pids"])
    def test_memory_visible_per_device_belongs_to_an_unknown_user(self, with_gpus: Any, switch: str) -> None:
        patient, box = with_gpus()
        box.unmanaged(0, "6GiB")
        box.set(0, **{switch: 1})
        page = patient.page()
        assert page.said("memory use").startswith("-- visible only per device on GPU 0")
        assert "GPU 0: 6.0GiB used by an unknown user" in page.said("unmanaged")

    def test_accounting_that_is_off_has_a_cure(self, with_gpus: Any) -> None:
        patient, box = with_gpus()
        assert "nvidia-smi -am 1 as root" in patient.page().line("accounting")["cure"]
        box.set(0, accounting=1)
        assert "nvidia-smi -i 1 -am 1 as root" in patient.page().line("accounting")["cure"]

    def test_old_driver_is_read(self, with_gpus: Any) -> None:
        patient, _ = with_gpus(driver="450")
        assert patient.page().said("driver").startswith("ok 450")


@needs_standin
class TestTrouble:
    @pytest.mark.parametrize(
        ("code", "says", "cure"),
        [
            (18, "upgraded while the old one is still loaded", "reboot, or reload its modules"),
            (999, "could not be initialised (UNKNOWN, error 999)", "see the kernel log"),
        ],
    )
    def test_driver_that_fails_to_start_has_to_be_repaired(
        self, with_gpus: Any, code: int, says: str, cure: str
    ) -> None:
        patient, box = with_gpus()
        box.set(init_error=code)
        page = patient.page(1)
        assert page.wrong == ["driver"]
        assert says in page.said("driver")
        assert page.line("driver")["cure"].startswith(cure)
        assert page.data["summary"] == "to repair: driver; no run can start"

    def test_driver_that_hangs_is_reported_within_its_deadline(self, with_gpus: Any) -> None:
        patient, box = with_gpus()
        box.set(init_hang=1)
        data = json.loads(patient.home.call("doctor", "--json", code=1).stdout)
        page = Page("", data)
        assert page.said("driver") == "!! the NVIDIA library did not start within 10 s"
        assert page.said("memory").startswith("ok ")

    @pytest.mark.parametrize(
        ("switches", "says"),
        [
            ({"error": 15}, "is lost"),
            ({"error": 999}, "cannot be read"),
            ({"hang": 1}, "does not answer"),
            ({"crash": 11}, "crashes the NVIDIA library"),
        ],
        ids=["lost", "unknown", "hanging", "crashing"],
    )
    def test_broken_gpu_beside_two_others_has_to_be_repaired(
        self, with_gpus: Any, switches: dict[str, int], says: str
    ) -> None:
        patient, box = with_gpus(gpus=3)
        box.set(1, **switches)
        page = patient.page(1)
        assert page.wrong == ["GPU 1"]
        assert says in page.said("GPU 1")
        assert page.data["summary"].startswith("to repair: GPU 1; a run would use GPU 0, 2 and")

    def test_no_run_can_start_if_all_gpus_are_broken(self, with_gpus: Any) -> None:
        patient, box = with_gpus()
        box.set(error=15)
        page = patient.page(1)
        assert page.wrong == ["GPU 0", "GPU 1"]
        assert page.data["summary"] == "to repair: GPU 0, GPU 1; no run can start"

    def test_no_run_can_start_if_all_gpus_are_prohibited(self, with_gpus: Any) -> None:
        patient, box = with_gpus()
        box.set(compute_mode=2)
        assert patient.page(1).data["summary"].endswith("no run can start")

    def test_run_is_refused_where_doctor_says_that_none_can_start(self, with_gpus: Any) -> None:
        patient, box = with_gpus()
        list_of_jobs = patient.home.commands("true")
        for switches in ({"error": 15}, {"error": 0, "compute_mode": 2}, {"compute_mode": 0, "init_error": 18}):
            box.set(**switches)
            assert patient.page(1).data["summary"].endswith("no run can start")
            refused = patient.home.call("run", list_of_jobs, code=1).stderr
            assert refused.startswith("scheduler: ")
            assert len(refused) > 30
