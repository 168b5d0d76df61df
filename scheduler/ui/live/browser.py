"""The state of the interactive view, which keys change: selection, filter, order, open page, pending question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from scheduler.core.control.request_kinds import RunRequest, Verb
from scheduler.core.control.requests import JOBS
from scheduler.core.model import State
from scheduler.ui.live.keys import Press
from scheduler.ui.live.task_list import Wanted
from scheduler.values import dataclass

MESSAGE = 6.0
"""Seconds for which a message about the last key is shown."""
LONGEST_FILTER = 200
PRIORITY = "Priority"
"""The column of a task's priority, by the name that `set` uses."""


class Mode(StrEnum):
    """The mode of the view, which determines the meaning of the next key."""

    LIST = "list"
    TASK = "task"
    HELP = "help"
    FILTER = "filter"
    CANCEL = "cancel"
    """The view asks whether to cancel a task: y or n."""
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """The request to the run that a key triggers."""

    what: str
    tasks: tuple[int, ...] = ()
    said: Mapping[str, str] | None = None


class Rows(Protocol):
    """The facts about tasks that determine the meaning of a key."""

    def state(self, task: int) -> State:
        """Return a task's state."""

    def priority(self, task: int) -> int:
        """Return a task's priority."""

    @property
    def jobs(self) -> int | None:
        """The most tasks of the run that may run at once; None: unlimited."""

    @property
    def running(self) -> int:
        """The number of tasks that run now."""


class Browser:
    """The selection, and all other state that keys change. The browser returns requests, and never carries them out."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.mode = Mode.LIST
        self._under = Mode.LIST
        """The mode to return to after a question or the help."""
        self.ids: Sequence[int] = ()
        """The tasks of the list when it was last drawn, in order."""
        self.selected: int | None = None
        self._place = 0
        """The last known index of the selected task in the list."""
        self.top = 0
        """The index, in the list, of the first task that is drawn."""
        self.visible = 1
        """The number of tasks that fit when the list was last drawn."""
        self.first_row = 0
        """The row of the screen on which the first drawn task is."""
        self.sort_columns: Sequence[str] = ()
        self.filter = ""
        self.sort = ""
        self.down = False
        self.typed = ""
        """The answer to a question, as far as it was typed."""
        self.back = 0
        """The number of lines of a task's log below the visible part; 0: the newest lines are visible and scroll."""
        self.message = ""
        self._message_ends = 0.0
        self._jobs: int | None = None
        """The limit on tasks at once that was requested but is not applied yet; None: no limit was requested."""
        self.mouse = True
        self.leaves = False
        """True once q was pressed."""

    @property
    def wanted(self) -> Wanted:
        """The filter and the order of the list."""
        return Wanted(tuple(self.filter.lower().split()), self.sort, self.down)

    @property
    def page(self) -> bool:
        """True while a task's page is open, even if a question covers it."""
        return self.selected is not None and Mode.TASK in (self.mode, self._under)

    def show(self, ids: Sequence[int], visible: int, first_row: int) -> None:
        """Note the tasks that will be drawn, and the rows of the screen for them; the selected task stays selected."""
        self.ids, self.visible, self.first_row = ids, max(1, visible), first_row
        if self.selected is not None and not self.page:
            self._find()
        self._scroll()

    def _find(self) -> None:
        """Find the index of the selected task; if the task is no longer in the list, select the task at that index
        instead.
        """
        try:
            self._place = self.ids.index(self.selected) if self.selected is not None else 0
        except ValueError:
            self._place = max(0, min(self._place, len(self.ids) - 1))
            self.selected = self.ids[self._place] if self.ids else None

    def _scroll(self) -> None:
        if self.selected is not None:
            self.top = min(self.top, self._place)
            self.top = max(self.top, self._place - self.visible + 1)
        self.top = max(0, min(self.top, len(self.ids) - self.visible))

    def say(self, sentence: str, now: float) -> None:
        """Show a message for MESSAGE seconds."""
        self.message, self._message_ends = sentence, now + MESSAGE

    def message_at(self, now: float) -> str:
        """Return the message to show at the time `now`; empty if there is none."""
        return self.message if now < self._message_ends else ""

    # ---- keys ----

    def press(self, press: Press, now: float) -> KeyRequest | None:
        """Handle a pressed key; return the request that the key triggers, or None."""
        match self.mode:
            case Mode.FILTER:
                self._type_filter(press)
                return None
            case Mode.CANCEL:
                return self._confirm(press, now)
            case Mode.PRIORITY:
                return self._type_priority(press, now)
            case Mode.HELP:
                self.mode = self._under
                self.leaves = press.key == "q"
                return None
        return self._act(press, now)

    def _act(self, press: Press, now: float) -> KeyRequest | None:
        if move := self._moves.get(press.key):
            move(self, press)
            return None
        if verb := self._verbs.get(press.key):
            return verb(self, now)
        return None

    def _ask(self, mode: Mode) -> None:
        self._under, self.mode, self.typed = self.mode, mode, ""

    # ---- moving ----

    def _step(self, by: int) -> None:
        if self.page:
            self.back = max(0, self.back - by)
            return
        if not self.ids:
            return
        at = 0 if self.selected is None and by > 0 else self._place + by
        if self.selected is None and by < 0:
            at = len(self.ids) - 1
        self._select(at)

    def _select(self, at: int) -> None:
        if self.ids:
            self._place = max(0, min(at, len(self.ids) - 1))
            self.selected = self.ids[self._place]
            self._scroll()

    def _to_end(self, *, last: bool) -> None:
        if self.page:
            self.back = 0 if last else 1 << 30
        else:
            self._select(len(self.ids) - 1 if last else 0)

    def open(self, task: int) -> None:
        """Select a task, and open its page."""
        self.selected, self.mode, self.back = task, Mode.TASK, 0

    def _open(self) -> None:
        if self.selected is None:
            self._select(0)
        if self.selected is not None and self.mode is Mode.LIST:
            self.mode, self.back = Mode.TASK, 0

    def _close(self) -> None:
        if self.mode is Mode.TASK:
            self.mode = self._under = Mode.LIST
        elif self.filter:
            self.filter = ""
        else:
            self.selected, self.top = None, 0

    def _click(self, press: Press) -> None:
        at = self.top + press.row - self.first_row
        if self.page or not (0 <= press.row - self.first_row < self.visible and at < len(self.ids)):
            return
        if self.ids[at] == self.selected:
            self._open()
        else:
            self._select(at)

    def _wheel(self, by: int) -> None:
        if self.page or self.selected is not None:
            self._step(by)
        else:
            self.top = max(0, min(self.top + by, len(self.ids) - self.visible))

    def _sort(self, *, turn: bool) -> None:
        if turn:
            self.down = not self.down
            return
        columns = ("", *self.sort_columns)
        at = columns.index(self.sort) if self.sort in columns else 0
        self.sort = columns[(at + 1) % len(columns)]

    def _turn_mouse(self) -> None:
        self.mouse = not self.mouse

    def _quit(self) -> None:
        self.leaves = True

    _moves: Mapping[str, Callable[[Browser, Press], None]] = {
        "up": lambda self, _: self._step(-1), "k": lambda self, _: self._step(-1),
        "down": lambda self, _: self._step(1), "j": lambda self, _: self._step(1),
        "pgup": lambda self, _: self._step(-self.visible), "pgdn": lambda self, _: self._step(self.visible),
        "home": lambda self, _: self._to_end(last=False), "g": lambda self, _: self._to_end(last=False),
        "end": lambda self, _: self._to_end(last=True), "G": lambda self, _: self._to_end(last=True),
        "enter": lambda self, _: self._open(), "right": lambda self, _: self._open(),
        "esc": lambda self, _: self._close(), "left": lambda self, _: self._close(),
        "backspace": lambda self, _: self._close(),
        "click": lambda self, press: self._click(press),
        "wheelup": lambda self, _: self._wheel(-3), "wheeldown": lambda self, _: self._wheel(3),
        "s": lambda self, _: self._sort(turn=False), "S": lambda self, _: self._sort(turn=True),
        "m": lambda self, _: self._turn_mouse(), "q": lambda self, _: self._quit(),
        "Q": lambda self, _: self._quit(), "?": lambda self, _: self._ask(Mode.HELP),
    }  # fmt: skip

    # ---- questions ----

    def _find_tasks(self, now: float) -> None:
        del now
        self.mode = self._under = Mode.LIST
        self._ask(Mode.FILTER)

    def _type_filter(self, press: Press) -> None:
        if press.key in ("enter", "esc", "up", "down"):
            self.filter = "" if press.key == "esc" else self.filter
            self.mode = self._under
        elif press.key == "backspace":
            self.filter = self.filter[:-1]
        elif press.key == "clear":
            self.filter = ""
        elif len(press.key) == 1 and len(self.filter) < LONGEST_FILTER:
            self.filter += press.key

    def _confirm(self, press: Press, now: float) -> KeyRequest | None:
        self.mode = self._under
        if press.key.lower() != "y" or self.selected is None:
            self.say("nothing was cancelled", now)
            return None
        return KeyRequest(Verb.CANCEL, (self.selected,))

    def _type_priority(self, press: Press, now: float) -> KeyRequest | None:
        if press.key == "backspace":
            self.typed = self.typed[:-1]
        elif press.key in "-0123456789" and len(press.key) == 1 and len(self.typed) < 8:
            self.typed += press.key
        elif press.key in ("enter", "esc"):
            self.mode = self._under
            try:
                priority = int(self.typed) if press.key == "enter" else None
            except ValueError:
                priority = None
            if priority is not None and self.selected is not None:
                return KeyRequest(Verb.SET, (self.selected,), {PRIORITY: str(priority)})
            self.say("the priority was not changed", now)
        return None

    # ---- requests ----

    def _task(self, now: float) -> int | None:
        """Return the selected task; if there is none, show a message that says how to select one."""
        if self.selected is None:
            self.say("select a task first: arrows, j and k, or the mouse", now)
        return self.selected

    def _cancel(self, now: float) -> None:
        task = self._task(now)
        if task is None:
            return
        if self._rows.state(task) not in Verb.CANCEL.fits:
            self.say(f"task {task} has ended ({self._rows.state(task)}): there is nothing to cancel", now)
            return
        self._ask(Mode.CANCEL)

    def _retry(self, now: float) -> KeyRequest | None:
        task = self._task(now)
        return None if task is None else KeyRequest(Verb.RETRY, (task,))

    def _hold(self, now: float) -> KeyRequest | None:
        task = self._task(now)
        if task is None:
            return None
        return KeyRequest(Verb.RELEASE if self._rows.state(task) is State.HELD else Verb.HOLD, (task,))

    def _prioritize(self, now: float) -> None:
        task = self._task(now)
        if task is None:
            return
        if self._rows.state(task) not in Verb.SET.fits:
            self.say(f"task {task} is {self._rows.state(task)}: only the priority of a waiting task can change", now)
            return
        self._ask(Mode.PRIORITY)

    def _limit(self, by: int, now: float) -> KeyRequest | None:
        """Request a limit on running tasks that is higher or lower by `by`; if keys follow quickly, count from the
        limit that was requested last.
        """
        jobs = self._rows.jobs if self._jobs is None else self._jobs
        if jobs is None and by > 0:
            self.say("the number of tasks at once is not limited: - sets a limit", now)
            return None
        self._jobs = max(1, (self._rows.running if jobs is None else jobs) + by)
        return KeyRequest(RunRequest.LIMIT, (), {JOBS: str(self._jobs)})

    def answered(self) -> None:
        """Forget the requested limit, because the run has answered."""
        self._jobs = None

    _verbs: Mapping[str, Callable[[Browser, float], KeyRequest | None]] = {
        "/": lambda self, now: self._find_tasks(now),
        "c": lambda self, now: self._cancel(now),
        "r": lambda self, now: self._retry(now),
        "h": lambda self, now: self._hold(now),
        "p": lambda self, now: self._prioritize(now),
        "+": lambda self, now: self._limit(1, now),
        "=": lambda self, now: self._limit(1, now),
        "-": lambda self, now: self._limit(-1, now),
    }
