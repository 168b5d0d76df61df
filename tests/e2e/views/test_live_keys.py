"""The keys of the live view on a drawn terminal, each with its effect on the screen and on the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.emulator import DOWN, END, ENTER, ESC, HOME, PAGE_DOWN, PAGE_UP, UP, DrawnTerminal
from tests.support.killing import Home
from tests.support.terminal import USUAL
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TRAIN = """\
for step in 1 2 3; do echo "epoch $step/9 val_acc=0.$step loss=0.$((9 - step))"; done
echo "trained with $*"
until [ -e go ]; do sleep 0.05; done
[ "$2" != 0.9 ]
"""
Opened = Callable[..., DrawnTerminal]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "train.sh").write_text(TRAIN)
    yield made
    (tmp_path / "go").touch()
    made.end()


@pytest.fixture
def opened(home: Home) -> Iterator[Opened]:
    made: list[DrawnTerminal] = []

    def start(*arguments: str, **how: str) -> DrawnTerminal:
        made.append(DrawnTerminal(home, *arguments, **how))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def sweep(home: Home, rates: int = 4) -> None:
    """Write a list of trainings that differ in their learning rate: 0.9, 0.8 and so on."""
    home.commands(*(f"sh train.sh --lr 0.{9 - at}" for at in range(rates)))


def watched(home: Home, opened: Opened, *arguments: str) -> DrawnTerminal:
    """Start a sweep of four trainings in the live view; one of them runs."""
    sweep(home)
    terminal = opened("run", "jobs.csv", "-j", "1", "--cpus", "0.1", *arguments)
    terminal.shows("1 running")
    terminal.shows("0.9")
    return terminal


def table(terminal: DrawnTerminal) -> list[list[str]]:
    """Return the words of each row of the table: id, state, learning rate and so on."""
    return [row.split() for row in terminal.rows if re.match(r" +\d+  [a-z]", row)]


def first_id(terminal: DrawnTerminal) -> int:
    """Return the id of the task that runs."""
    wait_until(lambda: any(words[1] == "running" for words in table(terminal)))
    return next(int(words[0]) for words in table(terminal) if words[1] == "running")


class TestList:
    def test_table_has_parameters_and_metrics_as_columns(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        terminal.shows("val_acc")
        header = next(row for row in terminal.rows if row.startswith("task"))
        assert header.split()[:4] == ["task", "state", "lr", "device"]
        terminal.shows("▁▅█")
        running = next(row for row in terminal.rows if " running " in row and "▁▅█" in row)
        assert running.split()[1:3] == ["running", "0.9"]
        assert "3/9" in running

    def test_best_ended_task_stands_above_the_list(self, home: Home, opened: Opened) -> None:
        (home.root / "go").touch()
        home.commands("sh train.sh --lr 0.7", "sh train.sh --lr 0.8", "sleep 300")
        opened("run", "jobs.csv", "-j", "1").shows("best    val_acc 0.3  task")

    def test_arrows_letters_and_pages_select_a_task(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        task = first_id(terminal)
        moves = (
            (DOWN, 0), (DOWN, 1), (UP, 0), ("j", 1), ("k", 0), (END, 3), (HOME, 0), ("G", 3), ("g", 0), (PAGE_DOWN, 3),
            (PAGE_UP, 0),
        )  # fmt: skip
        for keys, expected in moves:
            terminal.press(keys)
            terminal.selects(f"{task + expected} ")
        terminal.press(ESC)
        wait_until(lambda: terminal.selected() == [])

    def test_filter_shows_the_tasks_that_match(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        terminal.press("/lr=0.7")
        terminal.shows("filter: lr=0.7")
        terminal.press(ENTER)
        wait_until(lambda: [words[2] for words in table(terminal)] == ["0.7"])
        terminal.press("/ nothing" + ENTER)
        terminal.shows("no task matches")
        terminal.press(ESC)
        wait_until(lambda: len(table(terminal)) == 4)

    def test_sort_goes_through_the_columns_and_turns_around(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        rates = lambda: [words[2] for words in table(terminal)]  # noqa: E731 - what is awaited
        wait_until(lambda: rates() == ["0.9", "0.8", "0.7", "0.6"])
        terminal.press("sss")
        terminal.shows("sorted by parameter lr")
        wait_until(lambda: rates() == ["0.6", "0.7", "0.8", "0.9"])
        terminal.press("S")
        wait_until(lambda: rates() == ["0.9", "0.8", "0.7", "0.6"])

    def test_mouse_selects_and_opens_a_task(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        task = first_id(terminal)
        assert "\x1b[?1000h" in terminal.said
        row = next(at for at, text in enumerate(terminal.rows, 1) if text.startswith(f"   {task + 1}  waiting"))
        terminal.press(f"\x1b[<0;5;{row}M\x1b[<0;5;{row}m")
        terminal.selects(f"{task + 1} ")
        terminal.press(f"\x1b[<0;5;{row}M")
        terminal.shows(f"task {task + 1}  train")
        terminal.press(ESC + "m")
        wait_until(lambda: "\x1b[?1000l" in terminal.said)

    def test_help_lists_every_key(self, home: Home, opened: Opened) -> None:
        from scheduler.ui.live.keys import LIST_KEYS

        terminal = watched(home, opened)
        terminal.press("?")
        for one in LIST_KEYS:
            terminal.shows(one.keys)
        terminal.press(ESC)
        terminal.shows("val_acc")


class TestTaskPage:
    def test_enter_opens_the_page_of_a_task_and_its_log_follows(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        task = first_id(terminal)
        terminal.press(DOWN + ENTER)
        terminal.shows(f"task {task}  train lr=0.9")
        terminal.shows("lr = 0.9")
        terminal.shows("sh train.sh --lr 0.9")
        terminal.shows("trained with --lr 0.9")
        terminal.shows("val_acc 0.3   highest 0.3 at 3")
        log = next((home.root / "state").rglob(f"tasks/{task}/1.log"))
        with log.open("a") as file:
            file.write("one more line\n")
        terminal.shows("one more line")
        terminal.press(ESC)
        terminal.selects(f"{task} ")

    def test_page_of_a_waiting_task_says_why_it_waits(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        terminal.press(END + ENTER)
        terminal.shows("no output yet")
        terminal.shows("-j 1")


class TestRequests:
    def test_c_cancels_the_selected_task_after_y(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        terminal.press("c")
        terminal.shows("select a task first")
        terminal.press(END + "c")
        terminal.shows("for good? y/n")
        terminal.press("n")
        terminal.shows("nothing was cancelled")
        terminal.press("cy")
        terminal.shows("1 cancelled")
        assert home.states() == ["running", "waiting", "waiting", "cancelled"]

    def test_r_queues_a_cancelled_task_again(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        terminal.press(END + "cy")
        terminal.shows("1 cancelled")
        terminal.press("r")
        terminal.shows("3 waiting")
        assert home.states() == ["running", "waiting", "waiting", "waiting"]

    def test_h_holds_a_task_and_releases_it(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        terminal.press(END + "h")
        terminal.shows("1 held")
        assert home.states() == ["running", "waiting", "waiting", "held"]
        terminal.press("h")
        terminal.hides("1 held")
        assert home.states() == ["running", "waiting", "waiting", "waiting"]

    def test_p_sets_the_priority(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        task = first_id(terminal)
        terminal.press(END + "p")
        terminal.shows(f"priority of task {task + 3}, now 0")
        terminal.press("-12\x7f5" + ENTER)
        terminal.shows("priority 0 → -15")
        rows = home.tasks()
        assert [row["priority"] for row in rows] == [0, 0, 0, -15]

    def test_plus_and_minus_change_the_tasks_at_once(self, home: Home, opened: Opened) -> None:
        terminal = watched(home, opened)
        terminal.press("++")
        terminal.shows("3 running")
        terminal.press("-")
        terminal.shows("-j 3 → 2")


class TestTop:
    def test_keys_of_top_change_a_run_of_another_terminal(self, home: Home, opened: Opened) -> None:
        sweep(home)
        with home.start("run", "jobs.csv", "-j", "1", "--cpus", "0.1") as run:
            wait_until(lambda: any((home.root / "state").rglob("tasks/*/1.log")), 60)
            terminal = opened("top")
            terminal.shows("1 running")
            terminal.press(END + "cy")
            terminal.shows("1 cancelled")
            terminal.press(HOME + ENTER)
            terminal.shows("trained with --lr 0.9")
            terminal.press("q")
            assert terminal.wait() == 0
            assert terminal.modes == USUAL
            wait_until(lambda: terminal.said.rstrip().endswith("\x1b[?1049l"))
            (home.root / "go").touch()
            assert run.wait(60) == 1
        assert home.states() == ["failed", "succeeded", "succeeded", "cancelled"]

    def test_top_all_shows_my_runs_and_opens_a_task_of_one(self, home: Home, opened: Opened) -> None:
        sweep(home)
        with home.start("run", "jobs.csv", "-j", "1", "--cpus", "0.1") as run:
            wait_until(lambda: any((home.root / "state").rglob("tasks/*/1.log")), 60)
            terminal = opened("top", "--all")
            terminal.shows(" 0.9 ")
            terminal.shows("r1  jobs.csv")
            terminal.press(DOWN)
            terminal.selects("r1  jobs.csv")
            terminal.press(DOWN + ENTER)
            terminal.shows("trained with --lr 0.9")
            terminal.press(ESC)
            terminal.shows("3 waiting")
            terminal.press(ESC)
            terminal.press(ESC)
            terminal.shows("Enter open the run")
            terminal.press("?")
            terminal.shows("open the run, or the task's page")
            terminal.press("x")
            terminal.shows("r1  jobs.csv")
            terminal.press("q")
            assert terminal.wait() == 0
            assert terminal.modes == USUAL
            (home.root / "go").touch()
            assert run.wait(60) == 1
