"""The GPUs that `--devices` selects among the allowed ones, and the items that it refuses."""

from __future__ import annotations

import pytest

from scheduler.devices.gpu.allocation import AllowedGpus, allowed
from scheduler.devices.gpu.inventory import InstalledGpu
from scheduler.devices.selection import ChosenDevices, choose
from scheduler.errors import UsageError
from scheduler.units import GIB
from scheduler.values import replace

NODE = [InstalledGpu(n, f"GPU-{n}{n % 2}cc", "NVIDIA L4", f"0000:0{n}:00.0", 24 * GIB) for n in range(6)]
ALL = AllowedGpus(tuple(NODE))
SOME = AllowedGpus((NODE[2], NODE[5]), "CUDA_VISIBLE_DEVICES")
NONE = AllowedGpus((), "CUDA_VISIBLE_DEVICES")


def which(chosen: ChosenDevices) -> dict[int, int | None]:
    """Return index and budget in GiB of each GPU."""
    return {share.gpu.index: share.cap and share.cap // GIB for share in chosen.shares}


def chosen(said: str, of: AllowedGpus = ALL) -> dict[int, int | None]:
    return which(choose(said, of, NODE))


def refused(said: str, of: AllowedGpus = ALL, node: list[InstalledGpu] = NODE) -> str:
    with pytest.raises(UsageError) as error:
        choose(said, of, node)
    return str(error.value)


class TestInstances:
    CARDS = (
        replace(NODE[0], mig=True),
        replace(NODE[0], uuid="MIG-00ee", parent=NODE[0].uuid, part=0),
        replace(NODE[0], uuid="MIG-01ee", parent=NODE[0].uuid, part=1),
        NODE[1],
    )

    def chosen(self, said: str) -> list[tuple[str, int | None]]:
        """Return name and budget in GiB of each device."""
        shares = choose(said, allowed(self.CARDS, {}), self.CARDS).shares
        return [(share.gpu.word, share.cap and share.cap // GIB) for share in shares]

    @pytest.mark.parametrize(
        ("said", "names"),
        [
            ("", ["0.0", "0.1", "1"]),
            ("0", ["0.0", "0.1"]),
            ("0.1", ["0.1"]),
            ("0-1", ["0.0", "0.1", "1"]),
            ("1,0.0", ["0.0", "1"]),
            ("MIG-01", ["0.1"]),
            (NODE[0].uuid, ["0.0", "0.1"]),
        ],
    )
    def test_items_select_instances(self, said: str, names: list[str]) -> None:
        assert [name for name, _ in self.chosen(said)] == names

    def test_budget_on_a_divided_gpu_applies_to_each_instance(self) -> None:
        assert self.chosen("0:4GiB,0.1:2GiB") == [("0.0", 4), ("0.1", 2)]

    @pytest.mark.parametrize("said", ["0.2", "1.0", "MIG-02", "0.", "0.0-1"])
    def test_missing_instance_is_refused_with_the_existing_ones(self, said: str) -> None:
        with pytest.raises(
            UsageError, match=r"there is no device '.*' here; this machine has: 0 \(.*\), 0\.0 \("
        ) as error:
            choose(said, allowed(self.CARDS, {}), self.CARDS)
        assert "0.1 (NVIDIA L4, MIG-01ee), 1 (" in str(error.value)

    def test_instance_that_is_not_allowed_is_refused_by_name(self) -> None:
        some = allowed(self.CARDS, {"CUDA_VISIBLE_DEVICES": "MIG-01"})
        with pytest.raises(UsageError, match=r"may use GPU 0\.1 .*; it may not use GPU 0\.0:"):
            choose("0.0", some, self.CARDS)


class TestChoosing:
    @pytest.mark.parametrize("said", ["", " ", "auto", "all"])
    def test_all_means_every_allowed_gpu(self, said: str) -> None:
        assert list(chosen(said, SOME)) == [2, 5]

    @pytest.mark.parametrize(
        ("said", "indices"),
        [
            ("3", [3]),
            ("0-2", [0, 1, 2]),
            ("0-1,4", [0, 1, 4]),
            ("4,0", [0, 4]),
            ("1,1,0-1", [0, 1]),
            ("GPU-31cc", [3]),
            ("GPU-3, GPU-0", [0, 3]),
            ("2,GPU-2", [2]),
        ],
    )
    def test_items_select_some_gpus(self, said: str, indices: list[int]) -> None:
        assert list(chosen(said)) == indices

    def test_numbers_count_allowed_gpus_as_nvidia_smi_does(self) -> None:
        backwards = AllowedGpus((NODE[5], NODE[2]), "CUDA_VISIBLE_DEVICES")
        assert list(chosen("2,5", backwards)) == [5, 2]

    @pytest.mark.parametrize(
        ("said", "caps"),
        [
            ("0:10GiB", {0: 10}),
            ("0-1:10GiB,4", {0: 10, 1: 10, 4: None}),
            ("GPU-31:8G", {3: 8}),
            ("0-2:10GiB,1:20GiB", {0: 10, 1: 20, 2: 10}),
            ("0:10GiB,0", {0: 10}),
        ],
    )
    def test_item_with_a_budget_sets_the_cap(self, said: str, caps: dict[int, int | None]) -> None:
        assert chosen(said) == caps

    def test_budget_on_all_applies_to_each(self) -> None:
        assert chosen("all:10GiB,5:4GiB", SOME) == {2: 10, 5: 4}

    def test_zero_budget_stays_a_budget(self) -> None:
        assert choose("0:0GiB", ALL, NODE).shares[0].cap == 0


class TestTheHost:
    @pytest.mark.parametrize(("said", "cap"), [("host", None), ("host:12GiB", 12 * GIB)])
    def test_host_alone_selects_no_gpu(self, said: str, cap: int | None) -> None:
        assert choose(said, ALL, NODE) == ChosenDevices((), cap)
        assert choose(said, ALL, NODE).host_only

    def test_host_may_have_a_budget_beside_gpus(self) -> None:
        both = choose("all,host:12GiB", SOME, NODE)
        assert (list(which(both)), both.host_cap, both.host_only) == ([2, 5], 12 * GIB, False)

    def test_host_is_used_where_no_gpu_is_allowed(self) -> None:
        assert choose("", NONE, NODE) == choose("auto", AllowedGpus(()), []) == ChosenDevices()
        assert choose("auto,host:4GiB", NONE, NODE) == ChosenDevices((), 4 * GIB)


class TestRefusing:
    def test_forbidden_gpu_is_refused_with_both_lists(self) -> None:
        assert refused("0-3", SOME) == (
            "--devices 0-3: this shell may use GPU 2, 5 (CUDA_VISIBLE_DEVICES); it may not use GPU 0, 1, 3: "
            "leave that out, or start where it is allowed"
        )

    def test_gpu_is_refused_where_none_is_allowed(self) -> None:
        assert "this shell may use no GPU (CUDA_VISIBLE_DEVICES); it may not use GPU 1" in refused("GPU-1", NONE)
        assert refused("all", NONE) == "--devices all: this shell may use no GPU (CUDA_VISIBLE_DEVICES)"

    def test_refusal_of_a_gpu_left_out_gives_the_reason(self) -> None:
        noted = AllowedGpus((NODE[0],), notes=("GPU 1 is in MIG mode",))
        assert refused("0-1", noted).endswith("(GPU 1 is in MIG mode)")

    @pytest.mark.parametrize("said", ["6", "4-6", "3-1", "1-", "-1", "GPU-9", "gpu0", "hosts", "0,,1", "1st", "²"])
    def test_missing_gpu_is_refused_with_the_existing_ones(self, said: str) -> None:
        message = refused(said)
        assert message.startswith(f"--devices {said}: there is no device ")
        assert "this machine has: 0 (NVIDIA L4, GPU-00cc), 1 (NVIDIA L4, GPU-11cc), " in message
        assert message.endswith(", host")

    @pytest.mark.parametrize("said", ["0", "GPU-1"])
    def test_gpu_is_refused_on_a_machine_without_one(self, said: str) -> None:
        assert refused(said, AllowedGpus(()), []).endswith(f"there is no device '{said}' here; this machine has: host")

    def test_all_is_refused_on_a_machine_without_gpus(self) -> None:
        assert refused("all", AllowedGpus(()), []) == "--devices all: there is no GPU here"

    def test_ambiguous_beginning_of_a_uuid_is_refused(self) -> None:
        assert refused("GPU-").startswith("--devices GPU-: GPU- could be any of GPU-00cc, GPU-11cc, ")

    @pytest.mark.parametrize("said", ["0:10", "host:much", "0:"])
    def test_budget_that_is_not_a_size_is_refused(self, said: str) -> None:
        assert refused(said).startswith(f"--devices {said}: '")
