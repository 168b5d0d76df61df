"""The interactive screen of a run: its state at the top, tasks or a task's page below it, the keys at the bottom."""

from __future__ import annotations

import time
from collections.abc import Sequence

from scheduler.core.control.request_kinds import Verb
from scheduler.core.model import UNFINISHED
from scheduler.core.reporting.live_status import LiveStatus, LiveTask
from scheduler.ui.live import device_lines, task_page, task_table
from scheduler.ui.live.browser import Browser, Mode
from scheduler.ui.live.device_trends import DeviceTrends
from scheduler.ui.live.keys import LIST_KEYS, SIGNAL_KEYS, KeyDecoder, KeyHelp, Press
from scheduler.ui.live.ports import DetailReader, RunRequests
from scheduler.ui.live.task_list import TaskRows, live_row
from scheduler.ui.terminal import panels
from scheduler.ui.terminal.panels import Line
from scheduler.ui.text import columns, fit
from scheduler.units import count, duration

SHORT = 30
"""The height of the terminal below which no blank lines separate the parts of the screen."""
BEST = "best    "
"""The label of the line about the best task so far."""
LEAST_NEWS, RULE = 50, "  │ "
"""The least width of the column with the run's last log lines to the right of the table, and the text between
the two.
"""
MOST_NEWS = 12
"""The most log lines that are shown if the table leaves room for them."""
LIST_HINTS = ("? keys", "↑↓ select", "Enter open", "/ filter", "s sort")
PAGE_HINTS = ("Esc back", "↑↓ scroll the log", "? keys")
RUN_HINT = "+ - at once"
TASK_HINTS = (
    (Verb.CANCEL, "c cancel"), (Verb.RETRY, "r retry"), (Verb.HOLD, "h hold"), (Verb.RELEASE, "h release"),
    (Verb.SET, "p priority"),
)  # fmt: skip
"""The keys that change a task; the screen shows only keys that can change the selected task."""
SIGNALS = "Ctrl-C finish what runs"
"""The hint about signals, for a run that was started in this terminal."""


class RunScreen:
    """The screen of one run and its keys; it draws nothing itself."""

    def __init__(self, tasks: TaskRows, requests: RunRequests, reader: DetailReader, signals: str = SIGNALS) -> None:
        self._tasks = tasks
        self._requests = requests
        self._reader = reader
        self._signals = signals
        self._decoder = KeyDecoder()
        self._devices = DeviceTrends()
        self._table_width = 0
        """The largest width of the table so far; to the right of a narrow table there is room for log lines."""
        self._filled: set[str] = set()
        """The columns of the table that have ever had a value."""
        self.browser = Browser(tasks)

    # ---- keys ----

    def type(self, data: bytes) -> bool:
        """Handle typed bytes; return whether they change the screen. Without bytes, check whether an escape character
        that was typed earlier is the key Esc.
        """
        presses = self._decoder.feed(data, time.monotonic())
        for press in presses:
            self.press(press)
        return bool(presses)

    def press(self, press: Press) -> None:
        """Handle a pressed key."""
        request = self.browser.press(press, time.monotonic())
        if request is not None:
            self._requests.ask(request.what, request.tasks, request.said or {})
        self._reader.want(self.browser.selected if self.browser.page else None)

    def open(self, task: int) -> None:
        """Open the page of a task."""
        self.browser.open(task)
        self._reader.want(task)

    @property
    def at_rest(self) -> bool:
        """True while Esc would have no effect: the list is shown, without a filter and without a selection."""
        browser = self.browser
        return browser.mode is Mode.LIST and not browser.filter and browser.selected is None

    @property
    def waits(self) -> bool:
        """True while the bytes typed so far may be only a part of a key."""
        return self._decoder.waits

    @property
    def leaves(self) -> bool:
        """True once the user has left the view."""
        return self.browser.leaves

    @property
    def mouse(self) -> bool:
        """True while the terminal should report clicks to this screen."""
        return self.browser.mouse

    # ---- lines ----

    def lines(
        self, status: LiveStatus, width: int, height: int, recent: Sequence[str] = (), waits: str = ""
    ) -> list[Line]:
        """Return exactly `height` lines, each at most `width` columns wide."""
        now = time.monotonic()
        self._devices.note(status.bars, status.now)
        for sentence in self._requests.answers():
            self.browser.answered()
            self.browser.say(sentence, now)
        foot = self._foot(width, now)
        body = self._body(status, width, height - len(foot), recent, waits)
        body = [*body[: max(0, height - len(foot))], *([()] * (height - len(foot) - len(body)))]
        return [panels.clipped(line, width) for line in [*body, *foot]][-height:]

    def _body(self, status: LiveStatus, width: int, height: int, recent: Sequence[str], waits: str) -> list[Line]:
        if self.browser.mode is Mode.HELP:
            return help_lines(width, height)
        living = {one.task: one for one in status.living}
        selected = self.browser.selected
        if self.browser.page and selected is not None and selected in self._tasks:
            row = self._tasks.row(selected, living.get(selected))
            head = [*panels.title(status, width), *([()] if height >= SHORT else [])]
            details = self._reader.details()
            rest = height - len(head)
            self.browser.back = min(self.browser.back, task_page.log_lines(details, 1))
            return [*head, *task_page.lines(row, details, width, rest, self.browser.back)]
        return self._list(status, living, width, height, recent, waits)

    def _list(
        self,
        status: LiveStatus,
        living: dict[int, LiveTask],
        width: int,
        height: int,
        recent: Sequence[str],
        waits: str,
    ) -> list[Line]:
        gap: list[Line] = [()] if height >= SHORT else []
        bars = device_lines.lines(status.bars, self._devices, width, height + 1)
        head = [
            *panels.head(status, width),
            *self._best(width),
            *gap,
            *bars,
            *self._idle(status, width),
            *(gap if bars else ()),
        ]
        why = panels.queue_lines(status.queue, width, waits)
        if height < SHORT:
            why = [((fit(f"next    {waits}", width), ""),)] if waits else []
        ids = self._tasks.ids(living, self.browser.wanted)
        beside = self._table_width > 0 and width - self._table_width - len(RULE) >= LEAST_NEWS
        most = 0 if beside else self._news(height, len(head) + len(why), len(ids))
        news = panels.recent_lines(recent, width, most)
        room = max(1, height - len(head) - len(why) - len(news) - 1)
        self.browser.show(ids, room, len(head) + 1)
        table = self._table(ids, living, width, room)
        table += [()] * (room + 1 - len(table))
        if beside:
            table = with_news(table, recent, self._table_width, width)
        return [*head, *table, *why, *news]

    def _best(self, width: int) -> list[Line]:
        """Return one line about the best ended task with its parameters; no line if there is none."""
        found = self._tasks.best()
        if found is None:
            return []
        best, words = found
        what = " ".join(f"{name}={value}" for name, value in words.parameters.items()) or words.name
        value = f"{best.metric} {best.value:.4g}"
        rest = width - len(BEST) - columns(value) - 2
        return [
            (
                (BEST, "bold"),
                (fit(value, width - len(BEST)), "bold green"),
                (fit(f"  task {best.task}  {what}  (of {best.of:,} ended)", rest + 2), ""),
            )
        ]

    def _idle(self, status: LiveStatus, width: int) -> list[Line]:
        """Return a warning about a task whose GPUs have had no load for long; no line if there is no such task."""
        found = [(one, idle) for one in status.living if (idle := self._devices.idle(one, status.now)) is not None]
        if not found:
            return []
        one, idle = max(found, key=lambda item: item[1])
        more = f"; {count(len(found) - 1, 'more task')} like it" if len(found) > 1 else ""
        words = f"idle    task {one.task} has not used {', '.join(one.devices)} for {duration(idle)}{more}"
        return [((fit(words, width), "bold yellow"),)]

    @staticmethod
    def _news(height: int, above: int, tasks: int) -> int:
        """Return the number of log lines to show: a few, more if the table does not need the room, and none on a low
        terminal.
        """
        room = height - above - 2
        return max(0, min(MOST_NEWS, max(room - tasks - 1, min(panels.RECENT, room // 4) if room >= 16 else 0)))

    def _table(self, ids: Sequence[int], living: dict[int, LiveTask], width: int, room: int) -> list[Line]:
        browser = self.browser
        shown = ids[browser.top : browser.top + room]
        if not shown:
            words = f"no task matches {browser.filter!r}: Esc shows all" if browser.filter else "no tasks yet"
            return [((fit(words, width), ""),)]
        rows = [self._tasks.row(task, living.get(task)) for task in shown]
        varies, filled = self._tasks.varies, self._filled
        table = task_table.make(rows, varies, width, browser.sort, down=browser.down, filled=filled)
        self._table_width = max(self._table_width, table.width)
        browser.sort_columns = [name for name in table.columns if not name.startswith(task_table.SHAPE)]
        found = [table.header(width)]
        found += [table.line(at, width, selected=task == browser.selected) for at, task in enumerate(shown)]
        return found

    def _foot(self, width: int, now: float) -> list[Line]:
        browser = self.browser
        selected = browser.selected
        match browser.mode:
            case Mode.FILTER:
                return [((fit(f"filter: {browser.filter}▏   Enter keeps it, Esc drops it", width), "bold cyan"),)]
            case Mode.CANCEL if selected is not None:
                name = self._tasks.row(selected, None).words.name
                return [((fit(f"cancel task {selected}, {name}, for good? y/n", width), "bold yellow"),)]
            case Mode.PRIORITY if selected is not None:
                before = self._tasks.priority(selected)
                words = f"priority of task {selected}, now {before} (smaller first): {browser.typed}▏"
                return [((fit(f"{words}   Enter sets it", width), "bold cyan"),)]
        if message := browser.message_at(now):
            return [((fit(message, width), "bold"),)]
        return [self._hints(width)]

    def _task_hints(self) -> list[str]:
        """Return the hints for keys that have an effect on the selected task; without a selected task, for keys that
        concern the run.
        """
        selected = self.browser.selected
        if selected is None or selected not in self._tasks:
            return [RUN_HINT] if not self.browser.page else []
        state = self._tasks.state(selected)
        return [hint for verb, hint in TASK_HINTS if state in verb.fits and (verb is Verb.RETRY or state in UNFINISHED)]

    def _hints(self, width: int) -> Line:
        browser = self.browser
        end = f"q leave   {self._signals}".rstrip()
        hints = [*(PAGE_HINTS if browser.page else LIST_HINTS), *self._task_hints()]
        state = []
        if browser.filter:
            state.append(f"filter: {browser.filter}")
        if browser.sort:
            state.append(f"sorted by {browser.sort}")
        if not browser.page and len(browser.ids) > browser.visible:
            state.append(
                f"{browser.top + 1}-{min(browser.top + browser.visible, len(browser.ids))} of {len(browser.ids):,}"
            )
        if not browser.page and self._tasks.left_out:
            state.append(f"{count(self._tasks.left_out, 'more task')} not listed")
        left = "  ".join(state)
        room = width - columns(end) - 3 - (columns(left) + 3 if left else 0)
        shown: list[str] = []
        for hint in hints:
            if sum(len(one) + 3 for one in shown) + len(hint) > room:
                break
            shown.append(hint)
        keys = "   ".join([*shown, end])
        return ((f"{left}   " if left else "", "cyan"), (fit(keys, width), "dim"))


def with_news(table: Sequence[Line], recent: Sequence[str], taken: int, width: int) -> list[Line]:
    """Return the lines of a table that is `taken` columns wide, with the last log lines to its right if there
    is room.
    """
    left = min(taken, width - LEAST_NEWS - len(RULE))
    room = width - left - len(RULE)
    news = panels.recent_lines(recent, room, len(table) - 1)[1:]
    news = [(("last lines", "bold"),), *news, *([()] * len(table))][: len(table)]
    found: list[Line] = []
    for row, line in zip(table, news, strict=True):
        filled, style = row, ""
        while (
            filled and not filled[-1][0].strip()
        ):  # blanks up to the right edge, which a selected row has in its style
            filled, style = filled[:-1], filled[-1][1]
        kept = panels.clipped(filled, left)
        blanks = " " * (left - sum(columns(text) for text, _ in kept))
        found.append((*kept, (blanks, style), (RULE, "dim"), *line))
    return found


def plain(status: LiveStatus, varies: Sequence[str], width: int) -> list[str]:
    """Return the devices, the running tasks and the queue of a run as text without styles, for pipes and files.
    `varies` has the run's parameters, which do not count as metrics.
    """
    devices = device_lines.lines(status.bars, DeviceTrends(), width, 0)
    table = task_table.make(list(map(live_row, status.living)), (), width, "", down=False, no_metrics=varies)
    rows = [table.line(at, width, selected=False) for at in range(len(status.living))]
    tasks = [table.header(width), *rows] if rows else [(("nothing runs", ""),)]
    every = [*panels.head(status, width), (), *devices, (), *tasks, *panels.queue_lines(status.queue, width)]
    return ["".join(text for text, _ in line).rstrip() for line in every]


def help_lines(width: int, height: int, keys: Sequence[KeyHelp] = (*LIST_KEYS, *SIGNAL_KEYS)) -> list[Line]:
    """Return the help: a table of keys."""
    wide = max(columns(one.keys) for one in keys)
    title: Line = (("keys of the live view", "bold"), ("   press any key to go back", "dim"))
    found: list[Line] = [title, *([()] if height > len(keys) + 1 else [])]
    room = max(1, width - wide - 2)
    found += (((fit(one.keys, wide, pad=True) + "  ", "bold cyan"), (fit(one.does, room), "")) for one in keys)
    return found[:height]
