"""The last words of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import State
from scheduler.core.results import Totals
from scheduler.view import closing


def totals(**states: int) -> Totals:
    counts = {State(state): number for state, number in states.items()}
    return Totals(sum(counts.values()), counts, 60.0, 90.0, 0.0, 0.5, 0, {"live": 1}, 1.25)


def row(number: int, state: str = "failed", log: str | None = None) -> dict[str, Any]:
    numbers = {"id": number, "row": number + 1, "priority": 0, "exit_code": 3 if state == "failed" else 0}
    unknown = dict.fromkeys(("waited_s", "ran_s", "peak_bytes", "promised_bytes", "need_known_by"))
    return {**numbers, **unknown, "name": f"n{number}", "state": state, "reason": "", "log": log}


def said(failed: int, succeeded: int = 0) -> list[str]:
    rows = [row(number) for number in range(failed)] + [row(failed + n, "succeeded") for n in range(succeeded)]
    return closing.lines(totals(failed=failed, succeeded=succeeded), lambda: rows, 7)


@pytest.mark.parametrize(("failed", "named", "more"), [(0, 0, 0), (20, 20, 0), (21, 20, 1), (5000, 20, 4980)])
def test_the_first_failures_are_named_and_the_others_counted(failed: int, named: int, more: int) -> None:
    lines = said(failed, succeeded=2)
    assert sum(line.startswith("failed: task ") for line in lines) == named
    counted = [line for line in lines if line.startswith("... and ")]
    assert counted == ([f"... and {more} more: scheduler list --state failed"] if more else [])


@pytest.mark.parametrize(("tasks", "table"), [(40, True), (41, False)])
def test_a_short_list_is_told_row_by_row(tasks: int, table: bool) -> None:
    assert any(line.startswith("id  name") for line in said(0, succeeded=tasks)) is table


def test_a_failure_is_told_with_its_last_lines_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    log.write_text("".join(f"line {n}\n" for n in range(9)) + "10%\r50%\rkilled\n\n")
    lines = closing.lines(totals(failed=1), lambda: [row(1, log=str(log))], 7)
    at = lines.index("failed: task 1, row 2, n1 (exit 3)")
    assert lines[at + 1 : at + 7] == [*(f"    | line {n}" for n in range(5, 9)), "    | killed", f"    log {log}"]


def test_the_totals() -> None:
    took = "took 1m00s, one at a time 1m30s (1.50 times as long), memory held 50% of the budget, profiling 0%, 0 OOMs"
    assert closing.total_lines(totals(failed=1, succeeded=2), 7) == [
        "run 7: 3 tasks: 1 failed, 2 succeeded",
        f"       {took}",
        "       needs known by: live 1; promised in the end 1.25 times what was needed",
    ]


def test_what_is_not_over_is_counted_with_the_next_step() -> None:
    left = closing.lines(totals(succeeded=50, waiting=2, interrupted=1, held=1), list, 7)[-1]
    assert left == "       4 tasks are not over: scheduler resume 7 goes on"
    assert closing.lines(totals(succeeded=50, waiting=1), list, 7)[-1].strip().startswith("1 task is not over: ")
    assert not any("not over" in line for line in closing.lines(totals(succeeded=50), list, 7))


def test_an_appended_row_that_never_joined_has_the_last_word() -> None:
    assert closing.lines(totals(succeeded=50), list, 7, "row 3: why")[-1] == "hint:   row 3: why"
