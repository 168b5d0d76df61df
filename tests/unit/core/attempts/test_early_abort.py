"""The early abort of lists whose rows all fail alike, and of lists with too many failures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler.core.attempts.early_abort import gist, sentences
from scheduler.core.brain import Brain
from scheduler.core.causes import HaltCause
from scheduler.core.events import Asked, Event, Halted
from scheduler.core.model import Purpose
from tests.support.builders import (
    Simulation,
    asked,
    brain,
    exited,
    jobs,
    picture,
    placed,
    replay,
    run,
    starts,
    tasks,
    tell,
)

WRONG = "error: unrecognized arguments: _"


def failed(task: int, attempt: int = 1, gist: str = WRONG, seconds: float = 2.0, **said: object) -> Sequence[Event]:
    """Return the events of one attempt that fails with a last line."""
    return run(task, "failed", attempt=attempt, gist=gist, last=f"{gist} {task}", seconds=seconds, **said)


def list_of(number: int, **said: object) -> Brain:
    said = {"first_rows": 5, **said}
    retries = said.pop("retries", 0)
    return brain(tasks(number, "1GiB", retries=retries), **said)


def stopped(b: Brain) -> str:
    """Return why nothing more would be started; empty if something would."""
    halted = b.halt()
    return halted.why if halted else ""


class TestEarlyAbort:
    def test_five_first_rows_that_fail_alike_stop_the_list(self) -> None:
        b = tell(list_of(9), *(failed(task) for task in (1, 2, 3, 4)))
        assert not stopped(b)
        tell(b, failed(5))
        assert b.halt() == Halted(HaltCause.FIRST_ROWS, task=1, attempt=1, number=5, line=f"{WRONG} 1")

    @pytest.mark.parametrize(
        "other",
        [
            run(3),
            failed(3, gist="another line"),
            failed(3, gist=""),
            failed(3, seconds=61.0),
            run(3, "oom", seconds=2.0),
            run(3, "timeout", seconds=2.0),
        ],
        ids=["a success", "another line", "no line", "after more than a minute", "out of memory", "a timeout"],
    )
    def test_first_rows_of_which_one_ended_otherwise_do_not_stop_the_list(self, other: Sequence[Event]) -> None:
        b = list_of(12)
        tell(b, failed(1), failed(2), other, *(failed(task) for task in range(4, 11)))
        assert not stopped(b)

    @pytest.mark.parametrize("outcome", ["lost", "unstarted", "interrupted"])
    def test_ends_without_a_fault_of_the_row_are_not_counted_among_the_first_rows(self, outcome: str) -> None:
        b = tell(list_of(9), failed(1), run(2, outcome), *(failed(task) for task in (3, 4, 5)))
        assert not stopped(b)
        assert stopped(tell(b, failed(6))) == "first rows"

    def test_attempts_of_one_task_count_once_among_the_first_rows(self) -> None:
        b = list_of(9, retries=9)
        tell(b, *(failed(1, attempt) for attempt in range(1, 8)), *(failed(task) for task in (2, 3, 4)))
        assert not stopped(b)
        assert stopped(tell(b, failed(5))) == "first rows"

    def test_attempts_of_a_later_task_count_once_among_the_first_rows(self) -> None:
        b = list_of(9, retries=9)
        tell(b, failed(1), *(failed(2, attempt) for attempt in range(1, 8)), failed(3), failed(4))
        assert not stopped(b)
        assert stopped(tell(b, failed(5))) == "first rows"

    def test_failed_probes_count_as_first_rows(self) -> None:
        b = list_of(9)
        for task in range(1, 6):
            tell(b, placed(task, purpose=Purpose.PROBE), exited(task, "failed", gist=WRONG, last=WRONG))
        assert stopped(b) == "first rows"

    def test_first_rows_stop_no_list_where_the_check_is_off_or_nothing_waits(self) -> None:
        ends = [failed(task) for task in range(1, 6)]
        assert not stopped(tell(list_of(9, first_rows=0), *ends))
        assert not stopped(tell(list_of(5), *ends))

    def test_a_success_that_arrives_with_the_fifth_failure_keeps_the_list_going(self) -> None:
        assert not stopped(tell(list_of(9), *(failed(task) for task in range(1, 6)), run(6)))


class TestLaterRows:
    def test_twenty_tasks_in_a_row_that_fail_alike_stop_the_list(self) -> None:
        b = tell(list_of(60), *(run(task) for task in range(1, 11)), *(failed(task) for task in range(11, 30)))
        assert not stopped(b)
        tell(b, failed(30))
        assert b.halt() == Halted(HaltCause.ALIKE, task=11, attempt=1, number=20, line=f"{WRONG} 11")

    @pytest.mark.parametrize(
        "other",
        [run(20), failed(20, gist="another line"), failed(20, seconds=61.0), run(20, "oom", seconds=2.0)],
        ids=["a success", "another line", "after more than a minute", "out of memory"],
    )
    def test_an_end_of_another_kind_restarts_the_count_of_later_rows(self, other: Sequence[Event]) -> None:
        b = tell(list_of(60), run(1), *(failed(task) for task in range(2, 20)), other)
        tell(b, *(failed(task) for task in range(21, 40)))
        assert not stopped(b)
        assert stopped(tell(b, failed(40))) == "alike"

    def test_attempts_of_one_task_count_once_among_later_rows(self) -> None:
        b = tell(list_of(60, retries=60), run(1), *(failed(2, attempt) for attempt in range(1, 41)))
        assert not stopped(b)

    def test_a_run_resumed_after_later_rows_failed_starts_the_rest(self) -> None:
        b = tell(list_of(60), run(1), *(failed(task) for task in range(2, 22)))
        tell(b, b.halt() or [])
        assert (starts(b), b.waiting) == ([], 39)
        assert starts(tell(b, asked("resume")))

    def test_keep_going_switches_off_the_check_of_later_rows(self) -> None:
        b = tell(list_of(60, first_rows=0), run(1), *(failed(task) for task in range(2, 50)))
        assert not stopped(b)


class TestFailures:
    def test_max_failures_stops_the_list_at_this_many_failed_tasks(self) -> None:
        b = tell(list_of(9, max_failures=3), failed(1), run(2), failed(3, gist="x"))
        assert not stopped(b)
        assert stopped(tell(b, run(4, "timeout"))) == "failures"

    def test_a_failed_attempt_that_is_retried_is_not_counted_by_max_failures(self) -> None:
        b = tell(list_of(9, max_failures=2, retries=1), failed(1), failed(1, attempt=2), failed(2))
        assert not stopped(b)
        assert stopped(tell(b, failed(2, attempt=2))) == "failures"

    def test_an_out_of_memory_before_the_last_attempt_is_not_counted_by_max_failures(self) -> None:
        b = list_of(9, max_failures=1)
        for attempt in (1, 2, 3):
            assert not stopped(tell(b, run(1, "oom", attempt=attempt, peak="2GiB")))
        assert stopped(tell(b, run(1, "oom", attempt=4, peak="2GiB"))) == "failures"


class TestStoppedList:
    def halted(self) -> Brain:
        b = tell(list_of(9), *(failed(task) for task in range(1, 6)))
        return tell(b, b.halt() or [])

    def test_a_stopped_list_starts_nothing_and_its_rest_waits(self) -> None:
        b = self.halted()
        assert (starts(b), b.waiting, b.over, stopped(b)) == ([], 4, True, "")

    def test_a_resumed_list_starts_the_rest_and_counts_anew(self) -> None:
        b = tell(self.halted(), asked("resume"))
        assert starts(b) == [6, 7, 8, 9]
        assert not stopped(tell(b, failed(6), failed(7), failed(8)))

    def test_the_loop_starts_no_more_after_a_stop_and_a_replay_gives_the_same_state(self) -> None:
        wrong = jobs(300, seconds=5.0, code=2, says="error: unrecognized arguments: --lrr 0.1", memory="1GiB")
        simulation = Simulation(wrong, first_rows=5, jobs=3).run()
        assert simulation.states["waiting"] >= 300 - 5 - 3
        assert [e.why for e in simulation.events if isinstance(e, Halted)] == ["first rows"]
        assert "error: unrecognized arguments: --lrr 0.1" in simulation.view.sentences[0]
        again = replay(simulation.brain, simulation.submitted, simulation.book.recorded)
        assert picture(again) == picture(simulation.brain)

    def test_running_tasks_of_a_stopped_list_end_by_themselves(self) -> None:
        wrong = jobs(5, seconds=5.0, code=2, says="wrong", memory="1GiB", cpus=0.1)
        long = jobs(1, seconds=500.0, memory="1GiB", cpus=0.1, filename="long.py")
        simulation = Simulation([*wrong, *long, *jobs(50, memory="1GiB", cpus=4)], first_rows=5, num=6).run()
        assert simulation.states == {"failed": 5, "succeeded": 1, "waiting": 50}
        assert not any(isinstance(event, Asked) for event in simulation.events)


class TestLastLines:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("error: unrecognized arguments: --lrr 0.1 --id=1", "error: unrecognized arguments: --lrr 0.2 --id=17"),
            ("error: unrecognized arguments: --opt sgd --id=1", "error: unrecognized arguments: --opt adam --id=2"),
            ("No such file or directory: 'data/run1.csv'", "No such file or directory: 'data/run22.csv'"),
        ],
    )
    def test_lines_that_differ_only_in_words_of_their_command_are_alike(self, one: str, other: str) -> None:
        words = ["train.py", "--opt", "sgd", "adam", "--lrr", "0.1"]
        assert gist(one, words) == gist(other, words)

    def test_lines_with_different_errors_are_not_alike(self) -> None:
        assert gist("KeyError: 'lr'", ["train.py"]) != gist("KeyError: 'wd'", ["train.py"])
        assert gist("17", []) != gist("18", [])


class TestSentences:
    def test_the_report_on_first_rows_has_line_command_log_and_next_step(self) -> None:
        halted = Halted(HaltCause.FIRST_ROWS, 1, 1, 5, "bad --lrr")
        said = "\n".join(sentences(halted, "python train.py", "/log", "12", 295))
        for word in ("295 tasks", "first 5 tasks", "bad --lrr", "python train.py", "/log", "resume r12 --keep-going"):
            assert word in said

    def test_the_report_on_later_rows_that_failed_alike_has_count_line_and_next_step(self) -> None:
        said = "\n".join(sentences(Halted(HaltCause.ALIKE, 9, 1, 20, "no GPU"), "python train.py", "/log", "12", 295))
        for word in ("the last 20 tasks", "no GPU", "resume r12 --keep-going", "scheduler retry --run r12"):
            assert word in said

    def test_the_report_on_max_failures_names_the_limit_and_the_last_task(self) -> None:
        said = "\n".join(sentences(Halted(HaltCause.FAILURES, 7, 1, 3), "python train.py", "/log", "12", 1))
        assert "1 task left waiting: 3 tasks failed, as many as --max-failures allows; the last one was task 7" in said
