"""The effect of keys on the state of the live view, and the requests that they mean."""

from __future__ import annotations

import math
import re

import pytest

from scheduler.core.brain import Brain
from scheduler.core.control.requests import JOBS
from scheduler.core.metrics.record import MetricRecord
from scheduler.core.model import HOST, Purpose, State
from scheduler.core.reporting.live_status import LiveStatus, ObservedState, StatusBuilder
from scheduler.core.reporting.run_history import AttemptHistory, RunSummary
from scheduler.ui.live.keys import PATIENCE, KeyDecoder, Press
from scheduler.ui.live.ports import BestTask, TaskDetails, TaskWords
from scheduler.ui.live.run_screen import RunScreen
from scheduler.ui.live.task_list import TaskRow, exit_of
from scheduler.ui.text import columns
from tests.support import builders as b
from tests.support.live_screen import NotedRequests, SaidDetails, SaidTasks, screen

DOWN, UP, ENTER, ESC = b"\x1b[B", b"\x1b[A", b"\r", b"\x1b"


class Watched:
    """A run of six tasks with a learning rate each; task 1 runs, task 2 has failed."""

    def __init__(self, details: TaskDetails | None = None, said: str = "") -> None:
        self.brain = b.brain(b.tasks(6, "1GiB"))
        self.history = RunSummary()
        for event in (b.placed(2, "1GiB"), b.started(2), b.exited(2, "failed", code=3, seconds=5.0, last=said),
                      b.placed(1, "1GiB"), b.started(1)):  # fmt: skip
            self.brain.apply(event, 1.0)
            self.history.take(event, 1.0)
        parameters = {task: {"lr": str(rate)} for task, rate in enumerate((10, 9, 0.5, 0.25, 100, 1), 1)}
        name = lambda task: f"train lr={parameters[task]['lr']}"  # noqa: E731 - the names of this run
        values = {"loss": [0.5, 0.25]}
        self.screen: RunScreen = screen(self.brain, self.history, name, parameters, values, details)

    @property
    def tasks(self) -> SaidTasks:
        tasks = self.screen._tasks._tasks
        assert isinstance(tasks, SaidTasks)
        return tasks

    def status(self) -> LiveStatus:
        seen = ObservedState([b.host("64GiB", "50GiB")], metrics={(1, 1): {"loss": [2.0, 1.0]}})
        return StatusBuilder(1, "jobs.csv", self.brain, self.history, str, {}).paint(seen, 100.0)

    def rows(self, width: int = 100, height: int = 30) -> list[str]:
        lines = self.screen.lines(self.status(), width, height)
        assert len(lines) == height
        assert all(columns("".join(text for text, _ in line)) <= width for line in lines)
        return ["".join(text for text, _ in line).rstrip() for line in lines]

    def type(self, *keys: bytes) -> None:
        for key in keys:
            self.rows()
            self.screen.type(key)
        self.rows()

    def listed(self) -> list[int]:
        self.rows()
        return list(self.screen.browser.ids)

    @property
    def asked(self) -> list[tuple[str, tuple[int, ...], dict[str, str]]]:
        requests = self.screen._requests
        assert isinstance(requests, NotedRequests)
        return requests.asked


class TestDecoder:
    @pytest.mark.parametrize(("data", "keys"), [
        (b"jk", ["j", "k"]), (DOWN + UP, ["down", "up"]), (b"\x1bOB", ["down"]), (b"\x1b[5~\x1b[6~", ["pgup", "pgdn"]),
        (b"\x1b[1~\x1b[F", ["home", "end"]), (b"\r\x7f\t", ["enter", "backspace", "tab"]), ("é".encode(), ["é"]),
        (b"\x1b[<64;3;4M\x1b[<65;3;4M", ["wheelup", "wheeldown"]), (b"\x1b[99X", []), (b"\x01", []),
        (b"\x1b\x1b[A", ["esc", "up"]), (b"\xff", []),
    ])  # fmt: skip
    def test_bytes_become_keys(self, data: bytes, keys: list[str]) -> None:
        assert [press.key for press in KeyDecoder().feed(data, 0.0)] == keys

    def test_click_has_its_row_and_its_release_is_no_key(self) -> None:
        assert KeyDecoder().feed(b"\x1b[<0;10;5M\x1b[<0;10;5m", 0.0) == [Press("click", 4)]

    def test_sequence_may_come_in_parts(self) -> None:
        decoder = KeyDecoder()
        assert decoder.feed(b"\x1b", 0.0) == decoder.feed(b"[", 0.01) == []
        assert decoder.waits
        assert decoder.feed(b"A", 5.0) == [Press("up")]
        assert not decoder.waits

    def test_escape_alone_is_a_key_after_a_moment(self) -> None:
        decoder = KeyDecoder()
        assert decoder.feed(ESC, 0.0) == []
        assert decoder.feed(b"", PATIENCE / 2) == []
        assert decoder.feed(b"", PATIENCE * 2) == [Press("esc")]


class TestList:
    def test_running_tasks_come_first_then_waiting_ones_then_ended_ones(self) -> None:
        assert Watched().listed() == [1, 3, 4, 5, 6, 2]

    def test_sort_by_a_parameter_compares_numbers(self) -> None:
        run = Watched()
        while run.screen.browser.sort != "parameter lr":
            run.type(b"s")
        assert run.listed() == [4, 3, 6, 2, 1, 5]
        run.type(b"S")
        assert run.listed() == [5, 1, 2, 6, 3, 4]

    def test_tasks_without_a_value_come_last(self) -> None:
        run = Watched()
        while run.screen.browser.sort != "metric loss":
            run.type(b"s")
        assert run.listed()[:2] == [2, 1]
        run.type(b"S")
        assert run.listed()[:2] == [1, 2]

    @pytest.mark.parametrize(("words", "found"), [
        (b"/lr=1", [1, 5, 6]), (b"/failed", [2]), (b"/WAITING lr=0", [3, 4]), (b"/5 wait", [3, 4, 5]), (b"/no", []),
    ])  # fmt: skip
    def test_filter_finds_ids_states_and_parameters(self, words: bytes, found: list[int]) -> None:
        run = Watched()
        run.type(words, ENTER)
        assert sorted(run.listed()) == found

    def test_selection_stays_on_its_task(self) -> None:
        run = Watched()
        run.type(DOWN, DOWN, b"S")
        assert run.screen.browser.selected == 3
        assert run.listed()[run.screen.browser._place] == 3

    def test_selection_takes_the_place_of_a_task_that_is_filtered_away(self) -> None:
        run = Watched()
        run.type(DOWN, b"/failed", ENTER)
        assert run.screen.browser.selected == 2

    def test_list_scrolls_to_the_selected_task(self) -> None:
        run = Watched()
        run.screen.lines(run.status(), 80, 9)
        run.screen.type(b"G")
        shown = ["".join(text for text, _ in line) for line in run.screen.lines(run.status(), 80, 9)]
        assert any("failed" in line for line in shown)

    def test_task_that_is_tight_on_screen_still_fits(self) -> None:
        for width in (10, 30, 80, 250):
            for height in (3, 8, 24, 60):
                Watched().rows(width, height)

    def test_best_task_stands_above_with_its_parameters_and_the_number_of_tasks(self) -> None:
        run = Watched()
        assert not any(row.startswith("best ") for row in run.rows())
        run.tasks.given = BestTask("loss", 0.25, 2, 5)
        assert "best    loss 0.25  task 2  lr=9  (of 5 ended)" in run.rows()
        run.tasks.given = BestTask("loss", 0.25, 2, 1)
        assert not any(row.startswith("best ") for row in run.rows())

    def test_column_that_still_fits_is_shown_beside_wider_ones_that_do_not(self) -> None:
        header = next(row for row in Watched().rows(width=54) if row.startswith("task"))
        assert header.split() == ["task", "state", "lr", "exit", "device", "time", "loss"]

    @pytest.mark.parametrize("width", [80, 120, 200])
    def test_row_and_page_of_a_failed_task_say_its_error_in_one_line_without_secrets_and_escapes(
        self, width: int
    ) -> None:
        run = Watched(said="ValueError: \x1b[31mno API_KEY=hf_abcdefghijklmnopqrstuvwxyz012345\tin data " + "x" * 200)
        failed = next(row for row in run.rows(width) if "failed" in row and row.lstrip().startswith("2 "))
        assert "ValueError: no API_KE" in failed
        run.type(b"/2 failed", ENTER, DOWN, ENTER)
        lines = run.screen.lines(run.status(), width, 30)
        (reason,) = [line for line in lines if line and line[0][0].startswith("why ")]
        assert reason[1][0].startswith("ValueError: no API_KEY=*** in data")
        assert reason[1][1] == "red"

    @pytest.mark.parametrize(
        ("words", "keys"),
        [
            (b"/2 failed", {"r retry"}), (b"/waiting", {"c cancel", "h hold", "p priority"}),
            (b"/running", {"c cancel"}),
        ],
    )  # fmt: skip
    def test_keys_at_the_bottom_are_those_that_do_something_for_the_selected_task(
        self, words: bytes, keys: set[str]
    ) -> None:
        run = Watched()
        run.type(words, ENTER, DOWN)
        shown = set(re.split(" {3,}", run.rows(200)[-1]))
        assert shown & {"c cancel", "r retry", "h hold", "h release", "p priority"} == keys

    def test_selected_row_is_one_unbroken_bar(self) -> None:
        run = Watched()
        run.type(DOWN)
        (bar,) = [line for line in run.screen.lines(run.status(), 100, 30) if any(s == "reverse" for _, s in line)]
        assert all(style.startswith("reverse") for text, style in bar if text)
        assert columns("".join(text for text, _ in bar)) == 100


class TestPage:
    @pytest.mark.parametrize(("state", "code"), [(State.FAILED, 143), (State.PRUNED, 0), (State.CANCELLED, 0)])
    def test_exit_code_is_that_of_a_failure(self, state: State, code: int) -> None:
        attempt = AttemptHistory(1, Purpose.RUN, (HOST,), {}, "measured", 0.0, code=143)
        assert exit_of(TaskRow(1, state, TaskWords("fit", "fit", {}), 0, None, attempt, {})) == code

    def test_columns_that_had_a_value_once_stay_and_others_are_left_out(self) -> None:
        watched = Watched()
        assert next(row for row in watched.rows() if "failed" in row and row.lstrip().startswith("2")).split()[3] == "3"
        watched.type(b"/", *(bytes([letter]) for letter in b"waiting"), ENTER)
        header = next(row for row in watched.rows() if row.startswith("task")).split()
        assert "exit" in header
        assert "epochs" not in header

    def test_page_of_an_ended_task_says_how_it_ended(self) -> None:
        run = Watched()
        run.type(b"/2 failed", ENTER, DOWN, ENTER)
        assert any(row.startswith("task 2") and "failed (exit 3) after 5.0s, " in row for row in run.rows())

    def test_page_shows_curves_why_and_the_log_which_scrolls(self) -> None:
        record = MetricRecord()
        record.take([("loss", 1.0 / step, float(step)) for step in range(1, 20)])
        lines = [f"line {n}" for n in range(100)]
        run = Watched(TaskDetails(1, "python train.py", "it runs", metrics=record, log="/runs/1.log", lines=lines))
        run.type(DOWN, ENTER)
        details = run.screen._reader
        assert isinstance(details, SaidDetails)
        assert details.wanted == 1
        shown = "\n".join(run.rows(120, 40))
        for words in ("lr = 10", "python train.py", "it runs", "loss 0.05263", "line 99", "follows"):
            assert words in shown
        run.type(UP, UP)
        shown = "\n".join(run.rows(120, 40))
        assert "line 99" not in shown
        assert "2 lines below" in shown
        run.type(b"G")
        assert "line 99" in "\n".join(run.rows(120, 40))
        run.type(b"h\x1b[D")
        assert details.wanted is None

    def test_curve_that_became_nan_has_a_red_mark_there_and_words_on_the_axis_of_the_other_curve(self) -> None:
        record = MetricRecord()
        record.take([("loss", 1 / step if step < 4 else math.nan, float(step)) for step in range(1, 9)])
        record.take([("val_acc", step / 10, float(step)) for step in range(1, 9)])
        run = Watched(TaskDetails(2, "python fit.py", metrics=record))
        run.screen.open(2)
        lines = run.screen.lines(run.status(), 120, 40)
        shown = ["".join(text for text, _ in line) for line in lines]
        assert any("loss nan from step 4   lowest 0.3333 at 3" in row for row in shown)
        (marked,) = [line for line in lines if any(text == "×" for text, _ in line)]
        assert next(style for text, style in marked if text == "×") == "bold red"
        assert any(re.search(r"└ 1 +8 +└ 1 +8$", row.rstrip()) for row in shown)

    @pytest.mark.parametrize(("lines", "tall"), [(12, 26), (300, 14)])
    def test_charts_of_an_ended_task_take_the_lines_that_a_short_log_leaves(self, lines: int, tall: int) -> None:
        record, log = MetricRecord(), [f"line {number}" for number in range(lines)]
        record.take([("loss", 2 / step, float(step)) for step in range(1, 13)])
        watched = Watched(TaskDetails(2, "python fit.py", metrics=record, log="/x/1.log", lines=log))
        watched.screen.open(2)
        rows = watched.rows(200, 50)
        assert sum(row.lstrip().startswith("│") for row in rows) == tall
        assert sum(row.startswith("line ") for row in rows) == min(lines, 24)

    def test_details_of_another_task_are_not_shown(self) -> None:
        run = Watched(TaskDetails(5, "python other.py"))
        run.type(DOWN, ENTER)
        assert "other.py" not in "\n".join(run.rows())


class TestRequests:
    def test_cancel_needs_a_selection_and_y(self) -> None:
        run = Watched()
        run.type(b"c")
        assert "select a task first" in run.rows()[-1]
        run.type(DOWN, b"c")
        assert "cancel task 1, train lr=10, for good? y/n" in run.rows()[-1]
        run.type(b"x")
        assert run.asked == []
        run.type(b"cy")
        assert run.asked == [("cancel", (1,), {})]

    def test_ended_task_is_not_cancelled(self) -> None:
        run = Watched()
        run.type(b"Gcy")
        assert run.asked == []
        assert "has ended (failed)" in run.rows()[-1]

    def test_retry_hold_and_release_name_the_task(self) -> None:
        run = Watched()
        run.type(b"Gr")
        run.type(UP, b"h")
        b.tell(run.brain, b.asked("hold", 6))
        run.type(b"h")
        assert run.asked == [("retry", (2,), {}), ("hold", (6,), {}), ("release", (6,), {})]

    def test_priority_is_typed_as_a_number(self) -> None:
        run = Watched()
        run.type(DOWN, DOWN, b"p-1x2\x7f\r", b"p-\r", b"p\x1b\x1b")
        assert run.asked == [("set", (3,), {"Priority": "-1"})]
        assert "not changed" in run.rows()[-1]

    def test_priority_of_a_running_task_is_not_asked(self) -> None:
        run = Watched()
        run.type(DOWN, b"p")
        assert "only the priority of a waiting task" in run.rows()[-1]

    def test_plus_and_minus_count_from_what_was_asked_last(self) -> None:
        run = Watched()
        run.type(b"+")
        assert run.asked == []
        run.type(b"-", b"++")
        assert [said[JOBS] for _, _, said in run.asked] == ["1", "2", "3"]

    def test_answer_of_the_run_is_shown(self) -> None:
        run = Watched()
        requests = run.screen._requests
        assert isinstance(requests, NotedRequests)
        requests.said = ["task 3: held"]
        assert run.rows()[-1] == "task 3: held"

    def test_q_leaves_and_closes_the_help_first_if_that_is_open(self) -> None:
        run = Watched()
        run.type(b"?")
        assert "filter" in "\n".join(run.rows())
        run.type(b"x")
        assert not run.screen.leaves
        run.type(b"q")
        assert run.screen.leaves


def test_brain_is_not_changed_by_any_key() -> None:
    run = Watched()
    before: Brain = run.brain
    changes = before.changes
    run.type(DOWN, b"cy", b"rhp5\r+-sS/x\r", ENTER, b"cy", ESC)
    assert run.brain.changes == changes
