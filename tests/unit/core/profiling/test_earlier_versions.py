"""Needs that are taken from an earlier version of a script, and their correction by what the new version shows."""

from __future__ import annotations

import pytest

from scheduler.core.brain import Brain
from scheduler.core.causes import ResizeCause
from scheduler.core.control import messages, why
from scheduler.core.events import Exited, Peaked, Resized
from scheduler.core.model import HOST, EstimateSource, Outcome
from scheduler.core.profiling.class_profile import Observation, Peaks, Profile
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import ScriptPlace, TaskClass, kind
from scheduler.units import GIB, MIB
from tests.support.builders import brain, gpu, host, machine, placed, rules, spec, started, tasks, tell

LR = "0.1", "0.2", "0.3"
HALVES = tuple(n * GIB for n in (2, 4, 6))


def of(lr: str, version: str = "new", path: str = "/a/train.py", device: str = "1 x A100 (driver 1)") -> TaskClass:
    return kind(
        spec(f"train.py --lr {lr}"), "none", "/usr/bin/python3", version, device, ScriptPlace(path, "/a", "/home/u")
    )


def profile(one: TaskClass, peaks: dict[str, int], updated: float = 1.0, **said: float) -> Profile:
    parts = {part: Peaks([peak]) for part, peak in peaks.items()}
    made = Profile(parts, earlier=True, family=one.family, slots=one.slots, relations=one.relations, updated=updated)
    for name, value in said.items():
        setattr(made, name, value)
    return made


def known(version: str = "old", peaks: tuple[int, ...] = HALVES, **said: float) -> dict[str, Profile]:
    """Return the profiles that a version of the script left, one for each learning rate."""
    kinds = [of(lr, version) for lr in LR]
    return {one.key: profile(one, {"0": peak, HOST: GIB}, **said) for one, peak in zip(kinds, peaks, strict=True)}


def guesses(index: ProfileIndex, *numbers: int) -> list[int | None]:
    return [guess.peaks["0"] if (guess := index.guess(number)) is not None else None for number in numbers]


class TestRelatives:
    def test_a_class_of_an_edited_script_is_expected_to_need_what_it_needed_before(self) -> None:
        index = ProfileIndex(known())
        guess = index.guess(index.number(of("0.2")))
        assert guess is not None
        assert (guess.by, guess.peaks, guess.confirmed) == (EstimateSource.EARLIER, {"0": 4 * GIB, HOST: GIB}, 0)

    @pytest.mark.parametrize(
        "new",
        [
            of("0.2", "old", device="1 x A100 (driver 2)"),
            of("0.2", "old", device="1 x H100 (driver 1)"),
            of("0.2", "old", path="/elsewhere/train.py", device="1 x H100 (driver 1)"),
            kind(
                spec("train.py --lr 0.2"),
                "none",
                "/opt/new/bin/python3",
                "old",
                "1 x A100 (driver 1)",
                ScriptPlace("/b/t.py"),
            ),
        ],
        ids=["driver", "model", "copy", "interpreter"],
    )
    def test_another_driver_model_or_interpreter_is_an_earlier_version(self, new: TaskClass) -> None:
        index = ProfileIndex(known())
        assert guesses(index, index.number(new)) == [4 * GIB]

    @pytest.mark.parametrize(
        "new",
        [
            of("0.2", "new", path="/elsewhere/train.py"),
            of("0.2", device="2 x A100 (driver 1)"),
            of("0.2", device="host 24GiB"),
        ],
        ids=["other script", "two GPUs", "host"],
    )
    def test_another_script_or_number_of_gpus_is_no_earlier_version(self, new: TaskClass) -> None:
        index = ProfileIndex(known())
        assert guesses(index, index.number(new)) == [None]

    def test_the_newest_version_that_shows_the_class_counts(self) -> None:
        newer = {of("0.1", "newer").key: profile(of("0.1", "newer"), {"0": 3 * GIB}, updated=2.0)}
        index = ProfileIndex({**newer, **known()})
        assert guesses(index, index.number(of("0.1")), index.number(of("0.2"))) == [3 * GIB, 4 * GIB]

    def test_new_arguments_follow_from_the_function_of_the_earlier_version(self) -> None:
        index = ProfileIndex(known(peaks=(GIB, GIB, GIB)))
        assert guesses(index, index.number(of("0.7"))) == [GIB]

    def test_a_version_of_this_run_counts_as_well(self) -> None:
        index = ProfileIndex()
        index.learn(index.number(of("0.1", "old")), Observation({"0": GIB}, seconds=9.0))
        assert guesses(index, index.number(of("0.1"))) == [GIB]

    def test_the_times_of_the_earlier_version_are_known_too(self) -> None:
        index = ProfileIndex(known(epoch_seconds=3.0, whole_seconds=30.0))
        number = index.number(of("0.1"))
        assert (index.expected(number, 10), index.duration(number, 10)) == (30.0, 30.0)


class TestChanges:
    def test_a_class_that_needs_twice_as_much_doubles_what_the_others_are_expected_to_need(self) -> None:
        index = ProfileIndex(known())
        first, second, third = (index.number(of(lr)) for lr in LR)
        index.learn(first, Observation({"0": 4 * GIB}, whole=False))
        assert guesses(index, second, third) == [8 * GIB, 12 * GIB]
        guess = index.guess(second)
        assert guess is not None
        assert guess.confirmed

    def test_one_class_that_needs_less_lowers_nothing_and_two_do(self) -> None:
        index = ProfileIndex(known())
        first, second, third = (index.number(of(lr)) for lr in LR)
        index.learn(first, Observation({"0": GIB}))
        assert guesses(index, third) == [6 * GIB]
        index.learn(second, Observation({"0": 2 * GIB}))
        assert guesses(index, third) == [3 * GIB]

    def test_a_living_attempt_that_outgrows_its_earlier_version_raises_the_others_at_once(self) -> None:
        index = ProfileIndex(known())
        first, second, _ = (index.number(of(lr)) for lr in LR)
        assert not index.outgrew(first, {"0": 2 * GIB + MIB})
        assert index.outgrew(first, {"0": 3 * GIB})
        assert guesses(index, second) == [6 * GIB]

    def test_a_class_that_uses_a_gpu_for_the_first_time_makes_the_others_unknown(self) -> None:
        index = ProfileIndex(known(peaks=(0, 0, 0)))
        first, second, _ = (index.number(of(lr)) for lr in LR)
        assert guesses(index, second) == [0]
        index.learn(first, Observation({"0": GIB}))
        assert guesses(index, second) == [None]

    def test_many_tasks_of_a_class_may_rely_on_one_that_needs_what_it_needed_before(self) -> None:
        index = ProfileIndex(known())
        first, second, _ = (index.number(of(lr)) for lr in LR)
        index.learn(first, Observation({"0": 2 * GIB}, whole=False))
        index.learn(second, Observation({"0": 5 * GIB}, whole=False))
        assert [index.profile(one).is_sure(rules()) for one in (first, second)] == [True, False]


class TestReservations:
    def made(self) -> tuple[Brain, list[int]]:
        index = ProfileIndex(known())
        b = brain(tasks(3), knowledge=index, profile="live")
        for task, lr in enumerate(LR, 1):
            b.assign(task, of(lr))
        return b, [b.need(task, 1).gpus[0].bytes or 0 for task in (1, 2, 3)]

    def test_twice_the_earlier_peak_is_reserved_until_a_task_has_settled(self) -> None:
        b, first = self.made()
        assert first == [2 * peak + 256 * MIB for peak in HALVES]
        tell(b, placed(1, "4GiB", device="GPU-0", source=EstimateSource.EARLIER), started(1))
        tell(b, Peaked(1, 1, {"GPU-0": 2 * GIB}), Resized(1, 1, {"GPU-0": 3 * GIB}, ResizeCause.SETTLED))
        assert b.need(2, 1).gpus[0].bytes == 5 * GIB + 256 * MIB

    def test_after_three_classes_with_equal_needs_the_margin_is_that_of_known_ones(self) -> None:
        index = ProfileIndex({one.key: profile(one, {"0": GIB}) for one in (of(f"0.{n}", "old") for n in range(9))})
        b = brain(tasks(9), knowledge=index, profile="live")
        kinds = [of(f"0.{n}") for n in range(9)]
        for task, one in enumerate(kinds, 1):
            b.assign(task, one)
        for task in range(1, 4):
            device = "GPU-0"
            tell(b, placed(task, "3GiB", device=device, source=EstimateSource.EARLIER), started(task))
            tell(b, Peaked(task, 1, {device: GIB}), Resized(task, 1, {device: 2 * GIB}, ResizeCause.SETTLED))
        need = b.need(9, 1)
        assert (need.source, need.gpus[0].bytes) == (EstimateSource.EARLIER, int(1.1 * GIB) + 256 * MIB)

    def test_why_names_the_earlier_version_with_its_peak_and_margin(self) -> None:
        b, _ = self.made()
        tell(b, placed(1, "20GiB", device="GPU-0"), started(1))
        found = why.of_task(b, machine(gpu(), host()), 2, {})
        assert found is not None
        said = messages.need(found.wants)
        settle = "or 4.6GiB if no other task there has still to settle"
        assert said == f"needs 8.2GiB (earlier version: peak 4.0GiB + 100% + 256MiB, {settle})"

    def test_a_task_whose_need_was_taken_from_an_earlier_version_is_watched_until_it_settles(self) -> None:
        b, _ = self.made()
        tell(b, placed(1, "4352MiB", device="GPU-0", source=EstimateSource.EARLIER), started(1))
        causes = []
        for at in (2.0, 8.0):
            for event in b.watch(1, 1, {"GPU-0": 2 * GIB}, now=at, busy=0.5):
                causes.append(getattr(event, "cause", None))
                b.apply(event, at)
        assert ResizeCause.SETTLED in causes

    def test_a_living_task_that_started_with_less_than_the_wide_margin_keeps_its_reservation(self) -> None:
        b, _ = self.made()
        tell(b, placed(1, "3GiB", device="GPU-0", source=EstimateSource.EARLIER), started(1))
        assert not any(isinstance(event, Resized) for event in b.watch(1, 1, {"GPU-0": GIB}, now=1.0, busy=0.0))

    def test_more_than_twice_the_earlier_peak_is_passed_on_to_waiting_tasks_at_once(self) -> None:
        b, _ = self.made()
        tell(b, placed(1, "4GiB", device="GPU-0", source=EstimateSource.EARLIER), started(1))
        tell(b, Peaked(1, 1, {"GPU-0": 5 * GIB}))
        assert b.need(2, 1).gpus[0].bytes == int(10 * GIB * 1.25) + 256 * MIB

    def test_the_profile_of_its_own_version_replaces_the_earlier_one(self) -> None:
        b, _ = self.made()
        tell(b, placed(1, "4GiB", device="GPU-0", source=EstimateSource.EARLIER), started(1))
        tell(b, Exited(1, 1, Outcome.SUCCEEDED, peak={"GPU-0": 3 * GIB}, seconds=60.0, watched=1.0))
        assert b.need(1, 1).source is EstimateSource.PROFILE


class TestCopies:
    def key(self, root: str, home: str, python: str = "", words: str = "") -> str:
        place = ScriptPlace(f"{root}/train.py", root, home)
        row = spec(f"train.py --data {words or root + '/data'} --out={home}/out")
        return kind(row, "none", python or f"{root}/.venv/bin/python", "digest", "host 24GiB", place).key

    def test_a_copy_in_another_folder_or_home_is_the_same_class(self) -> None:
        assert self.key("/home/a/work", "/home/a") == self.key("/home/b/other/copy", "/home/b")

    def test_other_data_or_another_shared_python_is_another_class(self) -> None:
        first = self.key("/home/a/work", "/home/a")
        assert first != self.key("/home/a/work", "/home/a", words="/data/b")
        assert first != self.key("/home/a/work", "/home/a", python="/opt/conda/bin/python")

    def test_an_environment_in_the_home_is_the_same_for_each_user(self) -> None:
        keys = [self.key(f"/home/{u}/work", f"/home/{u}", python=f"/home/{u}/conda/bin/python") for u in "ab"]
        assert keys[0] == keys[1]
