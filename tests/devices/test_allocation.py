"""Which GPUs the surroundings allow: CUDA's, Slurm's and a container's variables, and device cgroups."""

from __future__ import annotations

import pytest

from scheduler.devices.allocation import Allowed, Seen, allowed, cuda_numbers, within
from scheduler.errors import DeviceError
from scheduler.units import GIB

A100, TITAN = "NVIDIA A100-SXM4-40GB", "NVIDIA TITAN RTX"
BUSES = [0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD]


def seen(index: int, model: str = A100, **said: object) -> Seen:
    """One GPU; its UUID begins with its index, its bus ids rise with it."""
    facts = {"bus_id": f"00000000:{BUSES[index]:02X}:00.0", "total": 40 * GIB, **said}
    return Seen(index, f"GPU-{index}{index}aa-bb", model, **facts)  # type: ignore[arg-type]  # facts of a GPU


def node(number: int = 8, **said: object) -> list[Seen]:
    """A machine of equal GPUs."""
    return [seen(index, **said) for index in range(number)]  # type: ignore[arg-type]  # facts of a GPU


MIXED = [seen(0, TITAN), seen(1), seen(2), seen(3, TITAN)]
"""Two models: without CUDA_DEVICE_ORDER, CUDA would count the A100s first."""
BACKWARDS = [seen(n, bus_id=f"0000:{bus:02X}:00.0") for n, bus in enumerate([0xBD, 0x90, 0x0F, 0x07])]
"""NVML counts from the other end than PCI."""


def indices(found: Allowed) -> list[int]:
    return [gpu.index for gpu in found.gpus]


def left(gpus: list[Seen], rules: str = "", **environ: str) -> list[int]:
    """The indices that are allowed."""
    return indices(allowed(gpus, environ, rules))


class TestCudaVisibleDevices:
    @pytest.mark.parametrize(
        ("said", "which"),
        [
            ("2,5", [2, 5]),
            ("5,2", [5, 2]),
            (" 2 , 5 ", [2, 5]),
            ("GPU-22aa-bb,GPU-55aa-bb", [2, 5]),
            ("GPU-2,GPU-5", [2, 5]),
            ("", []),
            ("-1", []),
            ("NoDevFiles", []),
            ("none", []),
            ("0,2,-1,1", [0, 2]),
            ("0,8,1", [0]),
            ("0,0,1", [0]),
            ("GPU-1,GPU-11aa,GPU-2", [1]),
            ("GPU-1,GPU-99,GPU-2", [1]),
            ("GPU-1,2", [1]),
            ("1,GPU-2", [1]),
            ("1,,2", [1]),
            ("GPU-", []),
            ("1st,2nd", [1, 2]),
            ("0-3", [0]),
            ("x", []),
        ],
    )
    def test_it_is_read_as_cuda_reads_it(self, said: str, which: list[int]) -> None:
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": said})
        assert indices(found) == which
        assert found.source == "CUDA_VISIBLE_DEVICES"

    def test_unset_means_all(self) -> None:
        assert allowed(node(3), {}) == Allowed(tuple(node(3)))

    def test_where_it_names_all_of_them_nothing_limits(self) -> None:
        assert allowed(node(2), {"CUDA_VISIBLE_DEVICES": "1,0"}) == Allowed((seen(1), seen(0)))

    def test_numbers_go_by_the_bus_not_by_nvml(self) -> None:
        assert left(BACKWARDS, CUDA_VISIBLE_DEVICES="0,1") == [3, 2]

    def test_uuids_go_by_neither(self) -> None:
        assert left(BACKWARDS, CUDA_VISIBLE_DEVICES="GPU-0,GPU-3") == [0, 3]

    @pytest.mark.parametrize("bus_ids", [["0000:9:00.0", "0000:10:00.0"], ["00000000:FF:00.0", "0001:01:00.0"]])
    def test_a_bus_is_a_hexadecimal_number(self, bus_ids: list[str]) -> None:
        assert left([seen(n, bus_id=bus) for n, bus in enumerate(bus_ids)], CUDA_VISIBLE_DEVICES="0") == [0]

    @pytest.mark.parametrize("said", ["", "-1", "0,2,-1", "NoDevFiles", "2,5"])
    def test_an_end_on_purpose_is_not_remarked_upon(self, said: str) -> None:
        assert allowed(node(), {"CUDA_VISIBLE_DEVICES": said}).notes == ()

    @pytest.mark.parametrize(
        ("said", "note"),
        [
            (
                "0,9,1",
                "CUDA_VISIBLE_DEVICES=0,9,1 ends before '9', which names no GPU here: CUDA goes no further either",
            ),
            ("3,3", "CUDA_VISIBLE_DEVICES=3,3 ends before '3', which comes twice: CUDA goes no further either"),
        ],
    )
    def test_an_end_by_mistake_is(self, said: str, note: str) -> None:
        assert allowed(node(), {"CUDA_VISIBLE_DEVICES": said}).notes == (note,)

    @pytest.mark.parametrize("said", ["MIG-8d4b", "MIG-GPU-2/1/0", "GPU-2,MIG-8d4b"])
    def test_a_mig_instance_is_left_out_with_a_note(self, said: str) -> None:
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": said})
        assert indices(found) == ([2] if said.startswith("GPU-") else [])
        assert said.rpartition(",")[2] in found.notes[0]

    def test_without_gpus_there_is_nothing_to_say(self) -> None:
        assert allowed([], {"CUDA_VISIBLE_DEVICES": "0"}) == Allowed(())


class TestDifferentModels:
    def test_a_number_is_refused_with_the_cure(self) -> None:
        with pytest.raises(DeviceError) as refused:
            allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0"})
        assert str(refused.value) == (
            "CUDA_VISIBLE_DEVICES=0 could mean one GPU or another: this machine has different models "
            f"(GPU 0 {TITAN}, GPU 1 {A100}, GPU 2 {A100}, GPU 3 {TITAN}), and without CUDA_DEVICE_ORDER "
            "CUDA counts the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID or name them by UUID"
        )

    def test_nor_is_it_clear_where_the_order_is_said_to_be_the_default(self) -> None:
        with pytest.raises(DeviceError):
            allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})

    def test_the_order_of_the_bus_settles_it(self) -> None:
        assert left(MIXED, CUDA_VISIBLE_DEVICES="0,3", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0, 3]

    def test_uuids_never_were_in_doubt(self) -> None:
        assert left(MIXED, CUDA_VISIBLE_DEVICES="GPU-3,GPU-1") == [3, 1]

    def test_neither_are_all_or_none(self) -> None:
        assert left(MIXED, CUDA_VISIBLE_DEVICES="3,2,1,0") == [0, 1, 2, 3]
        assert left(MIXED, CUDA_VISIBLE_DEVICES="") == []
        assert left(MIXED) == [0, 1, 2, 3]

    @pytest.mark.parametrize("name", ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"])
    def test_slurm_knows_what_its_numbers_mean(self, name: str) -> None:
        found = allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0,1", name: "1,3"})
        assert indices(found) == [1, 3]
        assert found.source == f"CUDA_VISIBLE_DEVICES and {name}"

    @pytest.mark.parametrize("numbers", ["1", "1,2,3", "1,9", ""])
    def test_but_not_where_it_names_another_count(self, numbers: str) -> None:
        with pytest.raises(DeviceError):
            allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": numbers})


class TestSlurm:
    def test_the_step_goes_before_the_job(self) -> None:
        found = allowed(node(), {"SLURM_JOB_GPUS": "1,2,3", "SLURM_STEP_GPUS": "2"})
        assert (indices(found), found.source) == ([2], "SLURM_STEP_GPUS")

    def test_the_job_alone(self) -> None:
        assert left(node(), SLURM_JOB_GPUS="6,7") == [6, 7]

    def test_cuda_s_own_variable_goes_before_both(self) -> None:
        assert left(node(), SLURM_JOB_GPUS="1,2", CUDA_VISIBLE_DEVICES="5") == [5]

    def test_its_numbers_are_those_of_the_device_files(self) -> None:
        gpus = [seen(index, minor=7 - index) for index in range(8)]
        assert left(gpus, SLURM_JOB_GPUS="0,1") == [6, 7]

    def test_in_a_cgroup_nvml_counts_from_nought_and_lists_no_others(self) -> None:
        """The job has /dev/nvidia2 and 5: nvidia-smi calls them 0 and 1."""
        assert allowed(node(2), {"SLURM_JOB_GPUS": "2,5"}) == Allowed(tuple(node(2)))

    def test_what_makes_no_sense_says_nothing(self) -> None:
        assert left(node(2), SLURM_JOB_GPUS="gpu:a100:1") == [0, 1]


class TestContainers:
    @pytest.mark.parametrize(
        ("said", "which"),
        [
            ("all", [0, 1, 2, 3]),
            ("void", [0, 1, 2, 3]),
            ("", [0, 1, 2, 3]),
            ("none", []),
            ("1,3", [1, 3]),
            ("GPU-11aa-bb", [1]),
            ("GPU-3,0", [0, 3]),
            ("/var/run/nvidia-container-devices", [0, 1, 2, 3]),
            ("0:0", [0, 1, 2, 3]),
        ],
    )
    def test_a_privileged_one_sees_more_than_it_was_given(self, said: str, which: list[int]) -> None:
        assert left(node(4), NVIDIA_VISIBLE_DEVICES=said) == which

    def test_in_others_nvml_lists_just_that_under_other_numbers(self) -> None:
        assert left(node(2), NVIDIA_VISIBLE_DEVICES="4,5") == [0, 1]

    def test_it_is_asked_last(self) -> None:
        assert left(node(4), NVIDIA_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="3") == [3]
        assert left(node(4), NVIDIA_VISIBLE_DEVICES="0", SLURM_JOB_GPUS="3") == [3]

    def test_it_is_named_where_it_limits(self) -> None:
        assert allowed(node(4), {"NVIDIA_VISIBLE_DEVICES": "0"}).source == "NVIDIA_VISIBLE_DEVICES"
        assert allowed(node(4), {"NVIDIA_VISIBLE_DEVICES": "all"}).source == ""


class TestDeviceCgroups:
    DOCKER = "c *:* m\nb *:* m\nc 1:3 rwm\nc 195:255 rw\nc 195:254 rw\n"
    """What containers may do without being given a GPU."""

    @pytest.mark.parametrize(
        ("rules", "which"),
        [
            ("", [0, 1, 2, 3]),
            ("a *:* rwm", [0, 1, 2, 3]),
            ("c 195:* rwm", [0, 1, 2, 3]),
            ("c *:* rw", [0, 1, 2, 3]),
            (DOCKER, []),
            (DOCKER + "c 195:2 rw\nc 195:3 rwm", [2, 3]),
            (DOCKER + "b 195:1 rwm\nc 195:2 r\nc 19:3 rwm", []),
        ],
    )
    def test_what_no_line_gives_leave_for_is_forbidden(self, rules: str, which: list[int]) -> None:
        assert [gpu.index for gpu in within(node(4), rules)] == which

    def test_they_go_by_the_device_files(self) -> None:
        gpus = [seen(0, minor=3), seen(1, minor=2)]
        assert within(gpus, "c 195:3 rw") == (gpus[0],)

    def test_it_is_named(self) -> None:
        assert allowed(node(4), {}, self.DOCKER + "c 195:2 rw").source == "the device cgroup"

    def test_cuda_counts_only_what_is_left(self) -> None:
        """Slurm renumbers CUDA_VISIBLE_DEVICES inside its cgroup."""
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "2,5"}, "c 195:2 rw\nc 195:5 rw")
        assert (indices(found), found.source) == ([2, 5], "the device cgroup")

    def test_all_limits_hold_together(self) -> None:
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": "1"}, "c 195:2 rw\nc 195:5 rw")
        assert (indices(found), found.source) == ([5], "the device cgroup and CUDA_VISIBLE_DEVICES")

    def test_different_models_are_no_matter_where_they_are_hidden(self) -> None:
        assert left(MIXED, "c 195:1 rw\nc 195:2 rw", CUDA_VISIBLE_DEVICES="1") == [2]


def test_a_gpu_in_mig_mode_is_left_out_with_the_cure() -> None:
    found = allowed([seen(0), seen(1, mig=True)], {})
    assert indices(found) == [0]
    assert found.source == ""
    assert [note.partition(":")[0] for note in found.notes] == [
        "GPU 1 is in MIG mode and left out, as MIG instances are not packed"
    ]


class TestCudaNumbers:
    def test_they_follow_the_bus_where_nvml_does_not(self) -> None:
        assert cuda_numbers(BACKWARDS) == {"GPU-00aa-bb": 3, "GPU-11aa-bb": 2, "GPU-22aa-bb": 1, "GPU-33aa-bb": 0}

    def test_they_count_what_the_cgroup_leaves(self) -> None:
        assert cuda_numbers(within(node(), "c 195:2 rw\nc 195:5 rw")) == {"GPU-22aa-bb": 0, "GPU-55aa-bb": 1}
