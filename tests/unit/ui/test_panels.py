"""The lines of the live view, made from fixed events, at several widths and without colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.events import Event
from scheduler.core.reporting.forecast import ExpectedTask, Forecast, TimeSpan
from scheduler.core.reporting.live_status import (
    LiveStatus,
    MemoryBar,
    ObservedState,
    QueueSummary,
    StatusBuilder,
    WaitingBatch,
    waiting,
)
from scheduler.core.reporting.run_history import RunHistory
from scheduler.ui.live.machine_screen import MachinePicture, MachineScreen, RunPane, _run_line
from scheduler.ui.terminal import panels
from scheduler.ui.text import columns, fit
from scheduler.units import GIB, parse_size
from scheduler.values import replace
from tests.support import builders as b
from tests.support.live_screen import screen

SHOTS = Path(__file__).parent / "shots"
NAMES = {
    1: "train lr=0.1",
    2: "train lr=0.01",
    3: "wide \x1b]0;owned\x07model 模型 with a very long name of its own",
    6: "eval",
}
RECENT = [
    "12:00:01  start        1  train lr=0.1",
    "12:00:31  \x1b[2JFAILED       4  bad  exit 3",
    "12:00:40  OOM  5  big",
]


def replay(*events: tuple[float, Event | list[Event]]) -> tuple[Brain, RunHistory]:
    """Return a run on two GPUs with batches of five, after these events."""
    brain = b.brain(b.tasks(3, "2GiB", epochs=10) + b.tasks(2, priority=3), b.tasks(5), b.tasks(5, priority=7))
    history = RunHistory()
    for at, some in events:
        for event in some if isinstance(some, list) else [some]:
            brain.apply(event, at)
            history.take(event, at)
    return brain, history


def mixed_run() -> tuple[Brain, RunHistory]:
    """Return a run with failures, a retry after an out-of-memory end, and two devices."""
    return replay(
        (0.0, [b.placed(4, "1GiB", device="GPU-0"), b.started(4), b.exited(4, "failed", code=3, seconds=30.0)]),
        (30.0, [b.placed(5, "1GiB", device="GPU-1"), b.started(5), b.exited(5, "oom", seconds=10.0, part="gpu")]),
        (40.0, [b.placed(6, "1GiB", device="GPU-1"), b.started(6), b.exited(6, seconds=20.0)]),
        (60.0, [b.placed(1, "4GiB", device="GPU-0"), b.started(1), b.peaked(1, "3GiB", device="GPU-0")]),
        (61.0, [b.placed(2, "4GiB", device="GPU-1"), b.started(2), b.peaked(2, "5GiB", device="GPU-1")]),
        (62.0, [b.placed(5, "6GiB", 2, device="GPU-1"), b.started(5, 2)]),
    )


def picture(brain: Brain, history: RunHistory, now: float = 100.0, forecast: Forecast | None = None) -> LiveStatus:
    gpus = [b.gpu(0, free="20GiB"), b.gpu(1, free="10GiB")]
    used = {(1, 1): {"GPU-0": 3 * GIB}, (2, 1): {"GPU-1": 5 * GIB}, (5, 2): {"GPU-1": GIB}}
    seen = ObservedState([*gpus, b.host("64GiB", "50GiB")], used, {(1, 1): 4.0, (2, 1): 8.0}, (), {5: 90.0}, forecast)
    return StatusBuilder(12, "jobs.csv", brain, history, named, {"GPU-0": "GPU 0", "GPU-1": "GPU 1"}).paint(seen, now)


def named(task: int) -> str:
    return NAMES.get(task, f"job {task}")


def lines(brain: Brain, status: LiveStatus, width: int, height: int, waits: str = "") -> list[panels.Line]:
    """Return the screen of a run, of which nothing is selected."""
    return screen(brain, mixed_run()[1], named).lines(status, width, height, RECENT, waits)


def text(lines: list[panels.Line]) -> str:
    return "\n".join("".join(piece for piece, _ in line).rstrip() for line in lines) + "\n"


def shot(width: int, height: int) -> list[panels.Line]:
    """Return the view of a run with a forecast and a reason why its next task waits."""
    said = Forecast(100.0, TimeSpan(1360.0, 1160.0, 1700.0), "", {5: ExpectedTask(None, TimeSpan(130.0, 120.0, 140.0))})
    waits = "task 3 needs 22.0GiB; GPU 0 has 3.5GiB of 24.0GiB free"
    brain, history = mixed_run()
    return lines(brain, picture(brain, history, forecast=said), width, height, waits)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
def test_view_of_a_run_is_readable_without_colour(width: int, height: int) -> None:
    shown = text(shot(width, height))
    assert shown == (SHOTS / f"run-{width}x{height}.txt").read_text()


@pytest.mark.parametrize(("width", "beside"), [(80, False), (120, False), (200, True), (300, True)])
@pytest.mark.parametrize("height", [12, 24, 60])
def test_last_lines_stand_beside_a_table_that_leaves_the_room(width: int, height: int, beside: bool) -> None:
    brain, history = mixed_run()
    view = screen(brain, history, named)
    for _ in range(2):
        drawn = view.lines(picture(brain, history), width, height, RECENT, "")
    shown = text(drawn)
    assert len(drawn) == height
    assert max(columns(row) for row in shown.splitlines()) <= width
    assert ("│ last lines" in shown) is beside
    assert shown.count("FAILED") == (1 if beside or height > 24 else 0)


@pytest.mark.parametrize("width", [20, 33, 80, 81, 120, 200])
@pytest.mark.parametrize("height", [1, 3, 5, 9, 24, 60])
def test_view_is_never_wider_or_higher_than_the_terminal(width: int, height: int) -> None:
    brain, history = mixed_run()
    b.tell(brain, b.placed(3, "1GiB"))
    history.take(b.placed(3, "1GiB"), 70.0)
    shown = lines(brain, picture(brain, history), width, height)
    assert len(shown) == height
    assert max(columns("".join(piece for piece, _ in line)) for line in shown) <= width


def test_view_removes_escape_sequences_from_names_and_lines() -> None:
    brain, history = replay((0.0, [b.placed(3, "1GiB"), b.started(3)]))
    shown = text(lines(brain, picture(brain, history), 120, 40))
    assert "wide model 模型" in shown
    assert "\x1b" not in shown
    assert "owned" not in shown
    assert "\x07" not in shown


def test_columns_counts_wide_letters_twice() -> None:
    assert columns("模型") == 4
    assert fit("模型模型", 5, pad=True) == "模型…"
    assert fit("模型模型", 4, pad=True) == "模… "


def test_ascii_only_leaves_no_other_characters() -> None:
    shown = text([panels.ascii_only(line) for line in shot(80, 24)])
    assert shown.isascii()
    assert "#" in shown


def test_view_uses_named_colours_only() -> None:
    styles = {style for line in shot(80, 24) for _, style in line}
    words = {word for style in styles for word in style.split()}
    assert words <= {"bold", "dim", "red", "green", "cyan", "magenta", "yellow"}


class TestNumbers:
    def test_parts_of_a_bar_add_up_to_its_total(self) -> None:
        first, second, host = picture(*mixed_run()).bars
        assert [bar.ours + bar.others + bar.reserved + bar.buffer + bar.free for bar in (first, second, host)] == [
            bar.total for bar in (first, second, host)
        ]
        assert (first.ours, first.others, first.reserved) == (3 * GIB, GIB, GIB)
        assert (second.ours, second.others, second.reserved) == (6 * GIB, 8 * GIB, 5 * GIB)
        assert [bar.tasks for bar in (first, second, host)] == [1, 2, 0]

    def test_bar_shows_the_reservations_of_other_runs(self) -> None:
        brain, history = replay()
        seen = ObservedState([b.host("24GiB", "20GiB")], leases=[b.hold("6GiB", "1GiB")])
        (bar,) = StatusBuilder(1, "", brain, history, str, {}).paint(seen, 0.0).bars
        assert (bar.ours, bar.others, bar.reserved) == (0, 4 * GIB, 5 * GIB)

    def test_bar_of_a_device_with_a_budget_has_the_budget_as_total(self) -> None:
        brain, history = replay((0.0, [b.placed(1, "2GiB")]))
        seen = ObservedState([b.host("24GiB", "10GiB", cap="4GiB")], {(1, 1): {"host": GIB}})
        (bar,) = StatusBuilder(1, "", brain, history, str, {}).paint(seen, 0.0).bars
        assert (bar.total, bar.ours, bar.others, bar.reserved) == (4 * GIB, GIB, 0, GIB)

    def test_time_left_of_a_task_follows_its_epochs_or_similar_tasks(self) -> None:
        left = {one.task: one.left for one in picture(*mixed_run()).living}
        assert left == {1: pytest.approx(60.0), 2: pytest.approx(9.75), 5: pytest.approx(52.0)}

    def test_view_shows_the_forecast_of_the_scheduler(self) -> None:
        brain, history = mixed_run()
        end = TimeSpan(1360.0, 1160.0, 1700.0)
        status = picture(
            brain, history, forecast=Forecast(100.0, end, tasks={5: ExpectedTask(None, TimeSpan(130.0, 120.0, 140.0))})
        )
        assert (status.end, status.unknown) == (end, "")
        assert "about 21m left (17m40s to 27m)" not in text(lines(brain, status, 80, 24))
        assert "about 21m left (18m to 27m)" in text(lines(brain, status, 120, 40))

    def test_view_says_that_the_time_left_is_unknown_before_a_task_has_ended(self) -> None:
        brain, history = mixed_run()
        status = picture(brain, history, forecast=Forecast(100.0, None, "unknown yet: nothing like these has ended"))
        assert "time left unknown yet: nothing like these has ended" in text(lines(brain, status, 120, 40))
        assert picture(brain, history).unknown == "unknown yet"
        over = b.tell(b.brain(b.tasks(1)), b.run(1))
        assert StatusBuilder(1, "", over, RunHistory(), str, {}).paint(ObservedState(), 0.0).unknown == ""

    def test_status_counts_retries_and_ooms(self) -> None:
        shown = picture(*mixed_run())
        assert (shown.retried, shown.ooms, shown.over, shown.tasks) == (1, 1, 2, 15)

    def test_queue_summary_counts_by_batch_and_priority(self) -> None:
        queue = waiting(mixed_run()[0])
        assert [(batch.batch, batch.tasks, batch.priorities) for batch in queue.first] == [
            (1, 1, {0: 1}),
            (2, 4, {0: 4}),
            (3, 5, {7: 5}),
        ]
        assert (queue.batches, queue.tasks) == (3, 10)

    def test_queue_summary_of_a_long_queue_has_the_first_batches(self) -> None:
        brain = b.brain(*[b.tasks(20)] * 500)
        queue = waiting(brain)
        assert ([batch.batch for batch in queue.first], queue.batches, queue.tasks) == ([1, 2, 3], 500, 10_000)


def test_view_with_many_devices_leaves_lines_for_tasks() -> None:
    bars = [MemoryBar(f"GPU {n}", 24 * GIB, GIB, 0, GIB, 0, 1, 0.5, 1.0, 50) for n in range(16)]
    brain, history = mixed_run()
    shown = text(lines(brain, replace(picture(brain, history), bars=bars), 80, 24))
    assert "and 9 more devices: 9.0G used by this run, 198.0G free" in shown
    assert "50% busy  50°C" in shown
    assert "train lr=0.1" in shown


def test_bar_of_a_drained_device_names_the_reason() -> None:
    bars = [MemoryBar("GPU 0", parse_size("24GiB"), 0, 0, 0, 0, 0, None, 1.0, None, "fell off the bus")]
    brain, history = mixed_run()
    assert "drained: fell off the bus" in text(lines(brain, replace(picture(brain, history), bars=bars), 80, 24))


def opened(_run: int) -> RunPane:
    raise AssertionError("nothing is opened here")


def machine(facts: dict[str, Any], width: int, height: int, runs: Sequence[LiveStatus] = ()) -> str:
    shown = MachinePicture(
        facts, "anna", runs, recent=lambda: ["10:00:00 r2 start  4  fit", "10:00:01 r2 FAILED  4  fit"]
    )
    return text(MachineScreen(opened).lines(lambda: shown, width, height))


def test_machine_view_shows_devices_leases_and_waiting_tasks() -> None:
    lease = {"user": "ben", "run": "3", "task": 7, "pid": 99, "shim": 98, "since": 0, "reserved": {"GPU 0": 8 * GIB}}
    facts = {
        "hostname": "gpu1",
        "host": {"total": 64 * GIB, "available": 50 * GIB},
        "leases": [{**lease, "used": {"GPU 0": 2 * GIB}}],
        "waiting": [{"user": "eva", "run": "4", "task": 9, "devices": ["GPU 0"],
                     "waited": 61.0, "bytes": GIB, "keeps_devices": True}],
        "gpus": [{"device": "GPU 0", "total": 24 * GIB, "free": 20 * GIB, "reserved": 8 * GIB,
                  "unmanaged": [{"user": "root", "pid": 5, "bytes": 2 * GIB}], "tasks": 1, "drained": "",
                  "busy": 0.5, "celsius": 61, "watts": 250.0}],
        "gpus_trouble": "", "disabled": {}, "reserved": [], "runs": [],
    }  # fmt: skip
    brain, history = mixed_run()
    shown = machine(facts, 100, 24, [picture(brain, history)])
    assert shown == (SHOTS / "machine-100x24.txt").read_text()
    wide = machine(facts, 200, 40, [picture(brain, history)])
    assert "│ last lines\n" in wide
    assert wide.index("│ 10:00:00 r2 start") < wide.index("│ 10:00:01 r2 FAILED") < wide.index("ben")
    for width, height in ((20, 3), (80, 5), (200, 60)):
        assert len(machine(facts, width, height, [picture(brain, history)]).splitlines()) == height


def test_batches_show_priorities_only_where_they_differ() -> None:
    equal = QueueSummary([WaitingBatch(1, 3, {0: 3}), WaitingBatch(2, 2, {0: 2})], 2, 5)
    assert panels.queue_lines(equal, 100) == []
    assert "next    task 3 waits" in text(panels.queue_lines(equal, 100, "task 3 waits"))
    ranked = QueueSummary([WaitingBatch(1, 3, {0: 2, 7: 1}), WaitingBatch(2, 2, {0: 2})], 2, 5)
    assert "batch 1: 3 (prio 0: 2, prio 7: 1)  batch 2: 2 (prio 0: 2)" in text(panels.queue_lines(ranked, 100))


def test_last_lines_lose_whole_parts_where_they_do_not_fit() -> None:
    line = "12:00:01 start      127  train lr=0.1 bs=64  prio 0  GPU 2  reserved 3.9GiB (similar)"
    shown = {width: text(panels.recent_lines([line], width, 1)).strip() for width in (100, 60, 30)}
    assert shown[100] == "12:00:01 start  127  train lr=0.1 bs=64  GPU 2  reserved 3.9GiB (similar)"
    assert shown[60] == "12:00:01 start  127  train lr=0.1 bs=64  GPU 2"
    assert shown[30] == "12:00:01 start  127  train lr…"
    sentence = "12:00:00 watch    scheduler top r2     stop    scheduler stop r2: finish what runs"
    assert text(panels.recent_lines([sentence], 50, 1)).strip() == "12:00:00 watch  scheduler top r2  stop  scheduler…"


def test_memory_of_a_task_that_has_ended_since_the_measurement_is_not_used_by_others() -> None:
    brain, history = mixed_run()
    measured = b.gpu(0, free="10GiB")
    used = {(1, 1): {"GPU-0": 3 * GIB}, (4, 1): {"GPU-0": 5 * GIB}}
    (bar,) = StatusBuilder(12, "", brain, history, named, {}).paint(ObservedState([measured], used), 100.0).bars
    assert bar.ours == 3 * GIB
    assert bar.others == measured.device.total - measured.free - 8 * GIB


@pytest.mark.parametrize("width", [60, 80, 120])
def test_line_of_a_run_on_the_machine_keeps_its_bar_and_shows_failures_before_what_waits(width: int) -> None:
    brain, history = mixed_run()
    line = "".join(piece for piece, _ in _run_line(picture(brain, history), 14, width, selected=False))
    assert columns(line) <= width
    assert line.count("·") >= 3
    assert ("1 failed" in line) is (width == 120)
    assert "waiting" not in line or line.index("failed") < line.index("waiting")
