"""The data of the page (`top --web`): one thread reads journals and devices, other threads read requests and logs."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from scheduler.app.control import run_requests
from scheduler.app.control.targets import Target
from scheduler.app.live.tracker_links import TrackerLinks
from scheduler.app.observe import report as observe_report
from scheduler.app.observe import run_facts, run_reader, why
from scheduler.app.observe.machine_status import MachineMonitor
from scheduler.app.observe.monitor import RunMonitor
from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.metrics.curve import MOST_POINTS
from scheduler.core.metrics.record import MetricRecord
from scheduler.core.reporting.memory_timeline import MemoryTimeline
from scheduler.errors import NoSuchRun, StateError
from scheduler.runtime.paths import PAGE, open_within
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.run.catalog import RunCatalog, RunInfo
from scheduler.store.run.journal_reader import JournalReader
from scheduler.ui.text import clean
from scheduler.ui.web import report, status_data, task_data
from scheduler.ui.web import server as web_server
from scheduler.ui.web.server import TaskQuery
from scheduler.values import dataclass, field

PERIOD = 0.5
"""Seconds between two reads of a run, for any number of open pages."""
WAIT = 15.0
"""Seconds after which a page that waits for changes is answered even if nothing has changed."""
REST = 2.0
"""Seconds between two reads of the list of runs."""
IDLE = 60.0
"""Seconds after which a run is closed if no page shows it."""
CHUNK = 1 << 16
"""The most bytes of a log that are read at once."""
PORT = 7717
"""The port of the page, if it is free."""
MACHINE = "all"

T = TypeVar("T")


def serve(settings: Settings, info: RunInfo | None, port: int | None, say: Callable[[str], None]) -> None:
    """Serve the page of a run, or of the machine, until Ctrl-C."""
    import secrets

    token = secrets.token_urlsafe(24)
    files = {name: (PAGE / name).read_bytes() for name in (*SERVED, METRICS_PART)}
    start, metrics = str(info.number if info else MACHINE).encode(), files.pop(METRICS_PART)
    files["index.html"] = files["index.html"].replace(b"{{start}}", start).replace(b"{{metrics}}", metrics)
    with contextlib.closing(WebFeed(settings)) as feed, web_server.listen(port, feed, token, files, PORT) as server:
        what = f"run {info.number}" if info else "this machine"
        for line in web_server.lines(server.port, token, what, f"{_user()}@{os.uname().nodename}"):
            say(line)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


METRICS_PART = report.PARTS.inserted["metrics"]
SERVED = (
    "index.html", "uPlot.min.css", "look.css", "live.css", "uPlot.iife.min.js", "basics.js", "plots.js", "grid.js",
    "detail.js", "devices.js", "charts.js", "metrics.js", "live.js", "uPlot.LICENSE",
)  # fmt: skip


def _user() -> str:
    return user_name(os.getuid())


@dataclass(slots=True)
class CachedAnswer:
    """The latest data of a run or the machine, with its version."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    due: float = 0.0
    looked: float = 0.0


class WebFeed:
    """The source of the page's data. Only one thread uses journals and devices, which are not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places = run_facts.places(settings)
        self._owner = ThreadPoolExecutor(1, "page")
        self._asking = threading.Lock()
        self._runs: dict[int, RunMonitor] = {}
        self._machine = MachineMonitor(settings)
        self._kept: dict[str, CachedAnswer] = {}
        self._briefs: tuple[float, list[dict[str, Any]]] = (0.0, [])
        self._texts: dict[int, tuple[int, Mapping[int, str]]] = {}

    def _owned(self, act: Callable[[], T]) -> T:
        return self._owner.submit(act).result()

    # ---- how things stand ----

    def live(self, run: str, seen: str) -> Mapping[str, Any]:
        """Return the data when it differs from version `seen`, or after WAIT seconds."""
        until = time.monotonic() + WAIT
        while True:
            kept = self._owned(lambda: self._look(run))
            if kept.version != seen or time.monotonic() >= until:
                return {**kept.facts, "version": kept.version}
            time.sleep(PERIOD)

    def _look(self, run: str) -> CachedAnswer:
        now = time.monotonic()
        run = run if run == MACHINE else str(_number(run))
        kept = self._kept.setdefault(run, CachedAnswer())
        kept.looked = now
        if now >= kept.due:
            facts = self._all() if run == MACHINE else self._run(int(run))
            same = json.dumps(status_data.without_ticks(facts), sort_keys=True)
            version = hashlib.blake2b(same.encode(), digest_size=9).hexdigest()
            self._kept[run] = kept = CachedAnswer(facts, version, time.monotonic() + PERIOD, now)
            self._let_go(now)
        return kept

    def _attached(self, run: int) -> RunMonitor:
        if run not in self._runs:
            self._runs[run] = RunMonitor(RunCatalog(self._places).info(run), self._settings)
        return self._runs[run]

    def _run(self, run: int) -> Mapping[str, Any]:
        attached = self._attached(run)
        picture = attached.picture()
        info, goes_on = attached.info, attached.goes_on()
        said = {
            "name": status_data.shown(info.meta.get("name")),
            "host": info.meta.get("host", ""),
            "began": attached.reader.history.first,
            "last": attached.reader.history.last,
            "goes_on": goes_on,
            "stands": "" if goes_on else attached.stands,
            "here": not info.elsewhere,
            "runs": self._my_runs(),
        }
        return status_data.run(picture, said)

    def _all(self) -> Mapping[str, Any]:
        return status_data.machine(self._machine.facts(), {"runs": self._my_runs()})

    def _my_runs(self) -> list[dict[str, Any]]:
        due, briefs = self._briefs
        if time.monotonic() >= due:
            briefs = [status_data.brief(facts) for facts in self._machine.runs()]
            self._briefs = (time.monotonic() + REST, briefs)
        return briefs

    def _let_go(self, now: float) -> None:
        for run in [run for run, kept in self._kept.items() if now - kept.looked > IDLE]:
            del self._kept[run]
            attached = None if run == MACHINE else self._runs.pop(int(run), None)
            if attached is not None:
                attached.close()
            if run == MACHINE:
                self._machine.close()

    # ---- tasks, logs, the report ----

    def tasks(self, run: str, wanted: TaskQuery) -> Mapping[str, Any]:
        """Return one page of a run's tasks."""
        number = _number(run)
        texts = self._said(number) if wanted.find or wanted.sort == "name" else {}
        return self._owned(lambda: self._tasks(number, wanted, texts))

    def _tasks(self, run: int, wanted: TaskQuery, texts: Mapping[int, str]) -> Mapping[str, Any]:
        attached = self._attached(run)
        reader, forecast = attached.reader, run_facts.forecast_of(attached.info)
        reader.catch_up()
        found = status_data.chosen(reader.brain, reader.history, wanted, texts, self._value(run, wanted.sort))
        pages = max(1, -(-len(found) // status_data.ROWS))
        page = max(0, min(wanted.page, pages - 1))
        some = found[page * status_data.ROWS : (page + 1) * status_data.ROWS]
        varies = reader.varies
        found_rows = ({**row, "more": self._more(reader, row, varies)} for row in reader.rows_of(some))
        rows = [*status_data.tasks(found_rows, forecast, time.time())]
        parameters = [*map(status_data.shown, varies)]
        return {
            "group": wanted.group, "tasks": rows, "found": len(found), "page": page, "pages": pages,
            "parameters": parameters,
        }  # fmt: skip

    def _more(self, reader: run_reader.RunReader, row: Mapping[str, Any], varies: Sequence[str]) -> dict[str, Any]:
        """Return the parameters, the metrics and the epochs of a task."""
        record = self._record(reader, row["id"])
        done, of = (record.progress if record else None) or (None, None)
        settings = [status_data.shown(row.get(name)) for name in varies]
        metrics = task_data.cells(record, reader.metric_names)
        return {"settings": settings, "metrics": metrics, "epochs": done, "of_epochs": of}

    @staticmethod
    def _record(reader: run_reader.RunReader, task: int) -> MetricRecord | None:
        return reader.metrics.of_task(task, reader.history.tasks.get(task))

    def _value(self, run: int, sort: str) -> Callable[[int], Any] | None:
        """Return the values of a column `parameter.NAME`, `best.NAME` or `result.NAME`; None for another column."""
        reader = self._attached(run).reader
        kind, _, name = sort.partition(".")
        if kind in ("best", "result"):
            return lambda task: task_data.sort_value(self._record(reader, task), kind, name)
        if kind != "parameter":
            return None
        column = next((one for one in reader.varies if status_data.shown(one) == name), name)
        values = {row["id"]: row.get(column) for row in reader.rows_alone()}
        return values.get

    def task(self, run: str, task: int) -> Mapping[str, Any]:
        """Return everything that the page shows about a task when its row is opened, except for the log."""
        number = _number(run)
        found: dict[str, Any] = self._owned(lambda: self._task(number, task))
        found["links"] = self._links(number, task, found["attempts"][-1:])
        return found

    def _task(self, run: int, task: int) -> dict[str, Any]:
        reader = self._attached(run).reader
        reader.catch_up()
        if task not in reader.brain.task_table:
            raise NoSuchRun(f"run {run} has no task {task}")
        timeline = MemoryTimeline()
        for recorded in reader.recorded():
            if getattr(recorded.event, "task", None) == task:
                timeline.take(recorded.event, recorded.at)
        row, labels, tracks = next(iter(reader.rows_of([task]))), reader.labels, timeline.tracks
        return {
            "task": task,
            "settings": [status_data.shown(row.get(name)) for name in reader.varies],
            "attempts": task_data.attempts(tracks, labels),
            "memory": task_data.memory(tracks[-1] if tracks else None, labels, time.time()),
            "metrics": task_data.curves(self._record(reader, task), reader.metric_names, MOST_POINTS),
        }

    def _links(self, run: int, task: int, attempts: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the addresses of the last of these attempts at Weights & Biases and MLflow."""
        places = self._places.run(run)
        with contextlib.closing(JournalReader.read(places.journal)) as journal:
            links = TrackerLinks(places, journal)
            return [address for one in attempts for address in links.of_task(task, one["attempt"])]

    def _said(self, run: int) -> Mapping[int, str]:
        """Return the searchable text of each task, in lower case."""
        info = RunCatalog(self._places).info(run)
        with contextlib.closing(run_reader.RunReader(info, only_states=True)) as reader:
            known, texts = self._texts.get(run, (-1, {}))
            if known != len(reader.brain.task_table):
                rows, varies = reader.rows_alone(), reader.varies
                texts = {row["id"]: _searched(row, varies) for row in rows}
                self._texts[run] = (len(texts), texts)
        return texts

    def log(self, run: str, task: int | None, attempt: int, at: int) -> Mapping[str, Any]:
        """Return a part of the log of a task or of the run; refuse links and pipes."""
        places = self._places.run(_number(run))
        if task is None:
            return {**_read(places.log, places.root, at), "attempt": 0, "attempts": []}
        attempts = _attempts(places.task(task))
        if not attempts:
            raise NoSuchRun(f"task {task} of run {run} has printed nothing")
        wanted = attempt if attempt in attempts else attempts[-1]
        read = _read(places.task_log(task, wanted), places.root, at if wanted == attempt else -1)
        return {**read, "task": task, "attempt": wanted, "attempts": attempts}

    def report(self, run: str) -> Mapping[str, Any]:
        """Return the data of `scheduler report`."""
        return report.data(observe_report.report_data(self._settings, [f"r{_number(run)}"]))

    # ---- what is asked ----

    def ask(self, run: str, what: str, tasks: tuple[int, ...]) -> Mapping[str, Any]:
        """Send a request to the run, as the command-line verb with that name does."""
        info = RunCatalog(self._places).info(_number(run))
        if what == RunRequest.WHY:
            return {
                "run": info.number,
                "applied": "",
                "lines": [*map(clean, why.why(Target(info, tasks)).lines)],
            }
        with self._asking:
            result = run_requests.ask(Target(info, tasks), what)
        return {**result.to_dict(), "lines": result.lines()[1:]}

    def close(self) -> None:
        """Close the journals, the devices and the threads."""
        self._owned(self._close)
        self._owner.shutdown(wait=True)

    def _close(self) -> None:
        for attached in self._runs.values():
            attached.close()
        self._machine.close()


def _number(run: str) -> int:
    """Return the number of a run; raise NoSuchRun for any other text."""
    if not (run.isascii() and run.isdecimal()) or len(run) > 12:
        raise NoSuchRun(f"there is no run {run[:40]!r}")
    return int(run)


def _searched(row: Mapping[str, Any], varies: Sequence[str]) -> str:
    """Return the text of a task that the page searches: number, name, command, parameters as NAME=VALUE."""
    settings = (f"{name}={row.get(name)}" for name in varies if row.get(name))
    return " ".join(map(status_data.shown, (row["id"], row["name"], row["command"], *settings))).lower()


def _attempts(folder: str) -> list[int]:
    """Return the attempts that have a log."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    numbers = (name.removesuffix(".log") for name in names if name.endswith(".log"))
    return sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())


def _read(path: Path, root: Path, at: int) -> dict[str, Any]:
    """Return a log's text from an offset, or its last part; never cut a character in two."""
    try:
        with open_within(path, root) as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(0, size - CHUNK) if at < 0 or at > size else at
            file.seek(begin)
            data = file.read(CHUNK)
    except OSError as exc:
        raise StateError(f"the log {path} is not shown: {(exc.strerror or str(exc)).lower()}") from exc
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    end = begin + len(data) - len(decoder.getstate()[0])
    return {"begin": begin, "end": end, "size": size, "text": text}
