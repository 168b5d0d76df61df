"""The closing lines of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import State
from scheduler.core.reporting.run_history import RunTotals
from scheduler.ui.export import tables
from scheduler.ui.terminal import closing
from scheduler.ui.terminal.closing import ClosingFacts


def totals(**states: int) -> RunTotals:
    counts = {State(state): number for state, number in states.items()}
    return RunTotals(sum(counts.values()), counts, 60.0, 90.0, (72.0, 75.0), 0.0, 0.5, 0, {"measured": 1}, 1.25)


def row(number: int, state: str = "failed", log: str | None = None) -> dict[str, Any]:
    numbers = {"id": number, "row": number + 1, "priority": 0, "exit_code": 3 if state == "failed" else 0}
    unknown = dict.fromkeys(("waited_s", "ran_s", "peak_bytes", "reserved_bytes", "source"))
    return {**numbers, **unknown, "name": f"n{number}", "state": state, "reason": "", "log": log}


def closing_lines(failed: int, succeeded: int = 0) -> list[str]:
    rows = [row(number) for number in range(failed)] + [row(failed + n, "succeeded") for n in range(succeeded)]
    return closing.lines(totals(failed=failed, succeeded=succeeded), lambda: rows, 7)


@pytest.mark.parametrize(("failed", "named", "more"), [(0, 0, 0), (20, 20, 0), (21, 20, 1), (5000, 20, 4980)])
def test_closing_lines_name_the_first_failures_and_count_the_others(failed: int, named: int, more: int) -> None:
    lines = closing_lines(failed, succeeded=2)
    assert sum(line.startswith("failed: task ") for line in lines) == named
    counted = [line for line in lines if line.startswith("... and ")]
    assert counted == ([f"... and {more} more: scheduler list --state failed"] if more else [])


@pytest.mark.parametrize(("tasks", "table"), [(40, True), (41, False)])
def test_closing_lines_have_a_table_up_to_forty_tasks(tasks: int, table: bool) -> None:
    assert any(line.startswith("id  name") for line in closing_lines(0, succeeded=tasks)) is table


def test_closing_lines_show_the_end_of_a_failed_tasks_log(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    log.write_text("".join(f"line {n}\n" for n in range(9)) + "10%\r50%\rkilled\n\n")
    lines = closing.lines(totals(failed=1), lambda: [row(1, log=str(log))], 7)
    at = lines.index("failed: task 1, row 2, n1 (exit 3)")
    assert lines[at + 1 : at + 7] == [*(f"    | line {n}" for n in range(5, 9)), "    | killed", f"    log {log}"]


def test_total_lines_have_states_times_and_sources() -> None:
    faster = "1.20 to 1.25 times as fast as one task at a time (by epochs in which a task ran alone)"
    took = f"took 1m00s, {faster}, 50% of the devices' memory used"
    assert closing.total_lines(totals(failed=1, succeeded=2), 7) == [
        "run 7: 3 tasks: 1 failed, 2 succeeded",
        f"       {took}",
        "       memory estimates: 1 measured",
    ]


def test_total_lines_say_so_where_estimates_are_counted_by_attempts() -> None:
    retried = replace(totals(succeeded=2), source={"declared": 3})
    assert closing.total_lines(retried, 7)[2] == "       memory estimates of 3 attempts: 3 declared"


def test_total_lines_have_the_share_of_probes_and_the_out_of_memory_errors_of_a_run_that_had_some() -> None:
    probed = replace(totals(succeeded=2), probing=0.126, ooms=2)
    assert closing.total_lines(probed, 7)[1].endswith(", 13% of the running time in probes, 2 out-of-memory errors")


def test_total_lines_claim_no_speedup_that_was_not_measured() -> None:
    unknown = replace(totals(succeeded=2), alone=None, memory_use=0.0)
    assert closing.total_lines(unknown, 7)[1] == "       took 1m00s, tasks ran for 1m30s in all, 1.50 at once"
    slower = replace(totals(succeeded=2), alone=(40.0, 44.0), memory_use=0.0)
    assert closing.total_lines(slower, 7)[1] == "       took 1m00s, tasks ran for 1m30s in all, 1.50 at once"


def test_total_lines_leave_out_what_rounds_to_nothing() -> None:
    idle = replace(totals(succeeded=2), spent=60.0, alone=(60.0, 60.0), memory_use=0.004, probing=0.0, source={})
    assert closing.total_lines(idle, 7) == ["run 7: 2 tasks: 2 succeeded", "       took 1m00s"]


def test_closing_lines_count_unfinished_tasks_and_name_resume() -> None:
    left = closing.lines(totals(succeeded=50, waiting=2, interrupted=1, held=1), list, 7)[-1]
    assert left == "       4 tasks unfinished, 1 of them held: scheduler resume r7 continues the run"
    assert closing.lines(totals(succeeded=50, waiting=1), list, 7)[-1].strip().startswith("1 task unfinished: ")
    assert not any("unfinished" in line for line in closing.lines(totals(succeeded=50), list, 7))


def test_closing_lines_end_with_the_hint_about_rows_that_never_joined() -> None:
    assert closing.lines(totals(succeeded=50), list, 7, ClosingFacts(untaken="row 3: why"))[-1] == "hint:   row 3: why"


def test_closing_table_has_parameters_and_metrics_and_the_best_task_comes_last() -> None:
    rows = [{**row(n, "succeeded"), "name": f"train lr=0.{n}", "lr": f"0.{n}"} for n in (1, 2)]
    full = {one["id"]: {**one, "result.val_loss": one["id"] / 4} for one in rows}
    facts = ClosingFacts(("lr",), ("val_loss",), full, "lowest val_loss 0.25: train lr=0.1 (task 1)")
    lines = closing.lines(totals(succeeded=2), lambda: rows, 7, facts)
    assert lines[1].split() == ["id", "name", "lr", "state", "val_loss", "waited", "ran", "peak", "reserved", "source"]
    assert lines[2].split() == ["1", "train", "0.1", "succeeded", "0.25"]
    assert lines[-1] == "best   lowest val_loss 0.25: train lr=0.1 (task 1)"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_closing_table_cuts_names_in_their_middle_to_the_width(width: int) -> None:
    rows = [{**row(1), "name": f"{'a' * 60}/model-{'b' * 60}.py"}]
    table = closing.lines(totals(failed=1), lambda: rows, 7, ClosingFacts(width=width))[1:3]
    assert max(map(len, table)) <= width
    name = table[1].split()[1]
    assert name.startswith("aaaa")
    assert "…" in name
    assert name.endswith("b.py")


def test_closing_lines_break_between_words_at_the_width_of_the_terminal() -> None:
    lines = closing.lines(totals(succeeded=50), list, 7, ClosingFacts(width=60))
    assert max(map(len, lines)) <= 60
    assert "       took 1m00s, 1.20 to 1.25 times as fast as one task at" in lines
    assert "       a time (by epochs in which a task ran alone), 50% of" in lines


def test_counted_number_is_no_column_where_all_tasks_have_the_same_one() -> None:
    rows = [{**row(n, "succeeded"), "result.loss": 0.5, "result.epochs": 5, "result.step": n} for n in (1, 2)]
    shown = tables.shown_columns(rows, (), ("loss", "step", "epochs"))
    assert [name for name in shown if name.startswith("result.")] == ["result.loss", "result.step"]


def test_parameters_that_are_numbers_are_aligned_to_the_right() -> None:
    rows = [
        {"id": n, "name": "train", "lr": lr, "how": how} for n, (lr, how) in enumerate((("0.003", "a"), ("1", "bb")))
    ]
    assert tables.table_lines(rows, columns=("id", "lr", "how"), varies=("lr", "how")) == [
        "id     lr  how", " 0  0.003  a", " 1      1  bb",
    ]  # fmt: skip
