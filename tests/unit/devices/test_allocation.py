"""The GPUs that the environment allows: CUDA's, Slurm's and a container's variables, and device cgroups."""

from __future__ import annotations

import pytest

from scheduler.devices.gpu.allocation import AllowedGpus, allowed, cuda_numbers, within
from scheduler.devices.gpu.inventory import InstalledGpu
from scheduler.errors import DeviceError
from scheduler.units import GIB
from scheduler.values import replace

A100, TITAN = "NVIDIA A100-SXM4-40GB", "NVIDIA TITAN RTX"
BUSES = [0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD]


def seen(index: int, model: str = A100, **said: object) -> InstalledGpu:
    """Return one GPU; its UUID begins with its index, its bus ids rise with it."""
    facts = {"bus_id": f"00000000:{BUSES[index]:02X}:00.0", "total": 40 * GIB, **said}
    return InstalledGpu(index, f"GPU-{index}{index}aa-bb", model, **facts)  # type: ignore[arg-type]  # facts of a GPU


def node(number: int = 8, **said: object) -> list[InstalledGpu]:
    """Return a machine of equal GPUs."""
    return [seen(index, **said) for index in range(number)]  # type: ignore[arg-type]  # facts of a GPU


MIXED = [seen(0, TITAN), seen(1), seen(2), seen(3, TITAN)]
"""Two models: without CUDA_DEVICE_ORDER, CUDA would count the A100s first."""
BACKWARDS = [seen(n, bus_id=f"0000:{bus:02X}:00.0") for n, bus in enumerate([0xBD, 0x90, 0x0F, 0x07])]
"""GPUs that NVML counts from the other end than PCI."""


def indices(found: AllowedGpus) -> list[int]:
    return [gpu.index for gpu in found.gpus]


def left(gpus: list[InstalledGpu], rules: str = "", **environ: str) -> list[int]:
    """Return the indices that are allowed."""
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
    def test_cuda_visible_devices_is_read_as_cuda_reads_it(self, said: str, which: list[int]) -> None:
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": said})
        assert indices(found) == which
        assert found.source == "CUDA_VISIBLE_DEVICES"

    def test_unset_variable_allows_all_gpus(self) -> None:
        assert allowed(node(3), {}) == AllowedGpus(tuple(node(3)))

    def test_variable_that_names_all_gpus_is_no_limit(self) -> None:
        assert allowed(node(2), {"CUDA_VISIBLE_DEVICES": "1,0"}) == AllowedGpus((seen(1), seen(0)))

    def test_numbers_follow_the_bus_order_not_nvmls(self) -> None:
        assert left(BACKWARDS, CUDA_VISIBLE_DEVICES="0,1") == [3, 2]

    def test_uuids_need_no_order(self) -> None:
        assert left(BACKWARDS, CUDA_VISIBLE_DEVICES="GPU-0,GPU-3") == [0, 3]

    @pytest.mark.parametrize("bus_ids", [["0000:9:00.0", "0000:10:00.0"], ["00000000:FF:00.0", "0001:01:00.0"]])
    def test_bus_ids_are_sorted_as_hexadecimal_numbers(self, bus_ids: list[str]) -> None:
        assert left([seen(n, bus_id=bus) for n, bus in enumerate(bus_ids)], CUDA_VISIBLE_DEVICES="0") == [0]

    @pytest.mark.parametrize("said", ["", "-1", "0,2,-1", "NoDevFiles", "2,5"])
    def test_list_that_ends_on_purpose_gives_no_note(self, said: str) -> None:
        assert allowed(node(), {"CUDA_VISIBLE_DEVICES": said}).notes == ()

    @pytest.mark.parametrize(
        ("said", "note"),
        [
            (
                "0,9,1",
                "CUDA_VISIBLE_DEVICES=0,9,1 is read up to '9', which names no GPU here: CUDA, too, ignores the rest",
            ),
            ("3,3", "CUDA_VISIBLE_DEVICES=3,3 is read up to '3', which comes twice: CUDA, too, ignores the rest"),
        ],
    )
    def test_list_that_ends_by_mistake_gives_a_note(self, said: str, note: str) -> None:
        assert allowed(node(), {"CUDA_VISIBLE_DEVICES": said}).notes == (note,)

    @pytest.mark.parametrize("said", ["MIG-8d4b", "MIG-GPU-2/1/0", "GPU-2,MIG-8d4b"])
    def test_unknown_mig_instance_ends_the_list_with_a_note(self, said: str) -> None:
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": said})
        assert indices(found) == ([2] if said.startswith("GPU-") else [])
        assert said.rpartition(",")[2] in found.notes[0]

    def test_node_without_gpus_gives_no_note(self) -> None:
        assert allowed([], {"CUDA_VISIBLE_DEVICES": "0"}) == AllowedGpus(())


class TestDifferentModels:
    def test_ambiguous_number_is_refused_with_the_cure(self) -> None:
        with pytest.raises(DeviceError) as refused:
            allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0"})
        assert str(refused.value) == (
            "CUDA_VISIBLE_DEVICES=0 could mean one GPU or another: this machine has different models "
            f"(GPU 0 {TITAN}, GPU 1 {A100}, GPU 2 {A100}, GPU 3 {TITAN}), and without CUDA_DEVICE_ORDER "
            "CUDA counts the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID or name them by UUID"
        )

    def test_ambiguous_number_is_refused_where_the_default_order_is_named(self) -> None:
        with pytest.raises(DeviceError):
            allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})

    def test_number_is_accepted_where_the_bus_order_is_set(self) -> None:
        assert left(MIXED, CUDA_VISIBLE_DEVICES="0,3", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0, 3]

    def test_uuids_are_accepted_with_different_models(self) -> None:
        assert left(MIXED, CUDA_VISIBLE_DEVICES="GPU-3,GPU-1") == [3, 1]

    def test_all_or_no_gpus_are_accepted_with_different_models(self) -> None:
        assert left(MIXED, CUDA_VISIBLE_DEVICES="3,2,1,0") == [0, 1, 2, 3]
        assert left(MIXED, CUDA_VISIBLE_DEVICES="") == []
        assert left(MIXED) == [0, 1, 2, 3]

    @pytest.mark.parametrize("name", ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"])
    def test_ambiguous_numbers_are_resolved_by_slurms_variable(self, name: str) -> None:
        found = allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0,1", name: "1,3"})
        assert indices(found) == [1, 3]
        assert found.source == f"CUDA_VISIBLE_DEVICES and {name}"

    @pytest.mark.parametrize("numbers", ["1", "1,2,3", "1,9", ""])
    def test_ambiguous_numbers_are_refused_where_slurm_names_another_count(self, numbers: str) -> None:
        with pytest.raises(DeviceError):
            allowed(MIXED, {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": numbers})


class TestSlurm:
    def test_variable_of_the_step_overrides_that_of_the_job(self) -> None:
        found = allowed(node(), {"SLURM_JOB_GPUS": "1,2,3", "SLURM_STEP_GPUS": "2"})
        assert (indices(found), found.source) == ([2], "SLURM_STEP_GPUS")

    def test_variable_of_the_job_limits_alone(self) -> None:
        assert left(node(), SLURM_JOB_GPUS="6,7") == [6, 7]

    def test_cuda_variable_overrides_slurms(self) -> None:
        assert left(node(), SLURM_JOB_GPUS="1,2", CUDA_VISIBLE_DEVICES="5") == [5]

    def test_slurm_numbers_are_those_of_the_device_files(self) -> None:
        gpus = [seen(index, minor=7 - index) for index in range(8)]
        assert left(gpus, SLURM_JOB_GPUS="0,1") == [6, 7]

    def test_slurm_numbers_add_no_limit_where_a_cgroup_hides_the_rest(self) -> None:
        """The job has /dev/nvidia2 and 5: nvidia-smi calls them 0 and 1."""
        assert allowed(node(2), {"SLURM_JOB_GPUS": "2,5"}) == AllowedGpus(tuple(node(2)))

    def test_malformed_slurm_variable_is_ignored(self) -> None:
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
    def test_privileged_container_is_limited_by_its_variable(self, said: str, which: list[int]) -> None:
        assert left(node(4), NVIDIA_VISIBLE_DEVICES=said) == which

    def test_unprivileged_container_is_limited_by_nvml_alone(self) -> None:
        assert left(node(2), NVIDIA_VISIBLE_DEVICES="4,5") == [0, 1]

    def test_container_variable_is_asked_last(self) -> None:
        assert left(node(4), NVIDIA_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="3") == [3]
        assert left(node(4), NVIDIA_VISIBLE_DEVICES="0", SLURM_JOB_GPUS="3") == [3]

    def test_container_variable_is_named_where_it_limits(self) -> None:
        assert allowed(node(4), {"NVIDIA_VISIBLE_DEVICES": "0"}).source == "NVIDIA_VISIBLE_DEVICES"
        assert allowed(node(4), {"NVIDIA_VISIBLE_DEVICES": "all"}).source == ""


class TestDeviceCgroups:
    DOCKER = "c *:* m\nb *:* m\nc 1:3 rwm\nc 195:255 rw\nc 195:254 rw\n"
    """The rules of a container without a GPU."""

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
    def test_device_without_a_rule_is_forbidden(self, rules: str, which: list[int]) -> None:
        assert [gpu.index for gpu in within(node(4), rules)] == which

    def test_rules_apply_to_device_file_numbers(self) -> None:
        gpus = [seen(0, minor=3), seen(1, minor=2)]
        assert within(gpus, "c 195:3 rw") == (gpus[0],)

    def test_cgroup_is_named_as_the_limit(self) -> None:
        assert allowed(node(4), {}, self.DOCKER + "c 195:2 rw").source == "the device cgroup"

    def test_cuda_numbers_count_only_allowed_gpus(self) -> None:
        """Slurm renumbers CUDA_VISIBLE_DEVICES inside its cgroup."""
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "2,5"}, "c 195:2 rw\nc 195:5 rw")
        assert (indices(found), found.source) == ([2, 5], "the device cgroup")

    def test_cgroup_and_variable_limit_together(self) -> None:
        found = allowed(node(), {"CUDA_VISIBLE_DEVICES": "1"}, "c 195:2 rw\nc 195:5 rw")
        assert (indices(found), found.source) == ([5], "the device cgroup and CUDA_VISIBLE_DEVICES")

    def test_hidden_gpus_of_other_models_make_no_number_ambiguous(self) -> None:
        assert left(MIXED, "c 195:1 rw\nc 195:2 rw", CUDA_VISIBLE_DEVICES="1") == [2]


def instance(parent: InstalledGpu, part: int) -> InstalledGpu:
    """Return a MIG instance of a GPU; its UUID names both."""
    uuid, model = f"MIG-{parent.index}{part}dd-ee", f"{parent.model} MIG 1g.5gb"
    return replace(parent, uuid=uuid, model=model, mig=False, parent=parent.uuid, part=part, total=5 * GIB)


def with_instances(*divided: int) -> list[InstalledGpu]:
    """Return a machine of three GPUs, some of which are divided into two instances."""
    cards = [seen(index, mig=index in divided) for index in range(3)]
    return [one for card in cards for one in [card, *([instance(card, 0), instance(card, 1)] if card.mig else [])]]


class TestInstances:
    def test_gpu_in_mig_mode_without_an_instance_is_left_out_with_the_cure(self) -> None:
        found = allowed([seen(0), seen(1, mig=True)], {})
        assert indices(found) == [0]
        assert found.source == ""
        assert [note.partition(":")[0] for note in found.notes] == [
            "GPU 1 is in MIG mode without an instance and left out"
        ]

    def test_instances_stand_for_their_gpu(self) -> None:
        found = allowed(with_instances(1), {})
        assert [gpu.label for gpu in found.gpus] == ["GPU 0", "GPU 1.0", "GPU 1.1", "GPU 2"]
        assert (found.source, found.notes) == ("", ())

    @pytest.mark.parametrize(
        ("environ", "labels"),
        [
            ({"CUDA_VISIBLE_DEVICES": "MIG-11dd-ee"}, ["GPU 1.1"]),
            ({"CUDA_VISIBLE_DEVICES": "MIG-11,MIG-10"}, ["GPU 1.1", "GPU 1.0"]),
            ({"CUDA_VISIBLE_DEVICES": "1"}, ["GPU 1.0", "GPU 1.1"]),
            ({"CUDA_VISIBLE_DEVICES": "2"}, ["GPU 2"]),
            ({"CUDA_VISIBLE_DEVICES": "GPU-11aa-bb,GPU-22"}, ["GPU 1.0", "GPU 1.1", "GPU 2"]),
            ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, []),
            ({"SLURM_JOB_GPUS": "1"}, ["GPU 1.0", "GPU 1.1"]),
            ({"NVIDIA_VISIBLE_DEVICES": "1:0"}, ["GPU 1.0"]),
            ({"NVIDIA_VISIBLE_DEVICES": "MIG-10dd-ee,1:1"}, ["GPU 1.0", "GPU 1.1"]),
            ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, ["GPU 0", "GPU 1.0", "GPU 1.1"]),
        ],
    )
    def test_variables_name_instances_or_all_of_a_gpu(self, environ: dict[str, str], labels: list[str]) -> None:
        found = allowed(with_instances(1), environ)
        assert [gpu.label for gpu in found.gpus] == labels
        assert found.source == next(iter(environ))

    def test_cgroup_that_hides_a_gpu_hides_its_instances(self) -> None:
        found = allowed(with_instances(0, 1), {}, "c 195:1 rw")
        assert [gpu.label for gpu in found.gpus] == ["GPU 1.0", "GPU 1.1"]

    def test_cuda_numbers_count_no_instances(self) -> None:
        assert cuda_numbers(with_instances(1)) == {"GPU-00aa-bb": 0, "GPU-11aa-bb": 1, "GPU-22aa-bb": 2}


class TestCudaNumbers:
    def test_cuda_numbers_follow_the_bus_where_nvml_does_not(self) -> None:
        assert cuda_numbers(BACKWARDS) == {"GPU-00aa-bb": 3, "GPU-11aa-bb": 2, "GPU-22aa-bb": 1, "GPU-33aa-bb": 0}

    def test_cuda_numbers_count_the_gpus_that_the_cgroup_leaves(self) -> None:
        assert cuda_numbers(within(node(), "c 195:2 rw\nc 195:5 rw")) == {"GPU-22aa-bb": 0, "GPU-55aa-bb": 1}
