"""The tools of an agent: each is one use case of the command line with a short answer, as JSON values."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from string import Formatter
from typing import Any

from scheduler.app.agents import short_answers as short
from scheduler.app.control import run_requests
from scheduler.app.control.targets import Target, runs_or_tasks
from scheduler.app.control.targets import tasks as find_tasks
from scheduler.app.observe import run_facts
from scheduler.app.observe.run_reader import RunReader
from scheduler.app.queue.background_start import start_apart
from scheduler.app.queue.submit import submit as send
from scheduler.app.run.options import chosen_python
from scheduler.app.run.task_list import QUEUE
from scheduler.core.metrics import ranking
from scheduler.core.metrics.goal import Goal
from scheduler.core.metrics.ranking import PREFIX
from scheduler.core.model import UNFINISHED, State
from scheduler.core.tasks import param_grid
from scheduler.core.tasks.fields import RowForm
from scheduler.errors import StateError, UsageError
from scheduler.inputs.grid import Chosen, grid_form, grid_rows, own_columns
from scheduler.runtime.settings import Settings
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run.catalog import RunCatalog, RunInfo
from scheduler.ui.verbs import eta
from scheduler.units import count, ranges

STARTED_BY = "started_by"
"""The column of tasks that agents submitted."""
AGENT = "agent"
"""The value of the column STARTED_BY, and the default name of the queue of tasks that agents submit."""
MOST_TASKS = 1000
"""The most tasks of one submission: a typing error in a grid must not fill the machine for weeks."""
MOST_COMBINATIONS = 10**12
MOST_WORDS = 20
LONGEST_COMMAND = 32 * 1024
LONGEST_WAIT = 50.0
"""Seconds for which one call may wait: clients give up after a minute."""
PAUSE = 0.25

Answer = dict[str, Any]


class AgentTools:
    """The use cases of one server; each call reads the files on disk again, so no state is kept between two calls."""

    def __init__(self, settings: Settings, queue: str = AGENT) -> None:
        self._settings = settings
        self.queue = queue
        """The name of the queue of all tasks that are submitted through this server."""

    # ---- changes ----

    def submit(
        self,
        command: str,
        parameters: Mapping[str, Sequence[str | int | float]] | None = None,
        samples: int | None = None,
        seed: int = 0,
        directory: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> Answer:
        """Submit one command, or one for each combination of parameters, or a random sample of them."""
        chosen = list(self._chosen(command, parameters or {}, samples, seed))
        said = {"Directory": _directory(directory), **{name: text for name, text in (fields or {}).items() if text}}
        form = grid_form(said, [*(parameters or {}), STARTED_BY])
        rows = list(grid_rows(form, chosen))
        whole = RowForm((*form.columns, *form.defaults), {}, form.append, form.template)
        cells = [(number, [*row, *form.defaults.values()], terms, nth) for number, row, terms, nth in rows]
        accepted = send(whole, cells, chosen_python(self._settings), self._settings, self.queue, start_apart)
        return {
            "run": f"r{accepted.run}",
            "tasks": ranges(accepted.tasks),
            "count": len(accepted.tasks),
            STARTED_BY: AGENT,
            "hints": short.sentences(accepted.hints, 5),
            "next": f"list with run=r{accepted.run} and wait_s waits for them; results with best shows the best one",
        }

    def _chosen(
        self, command: str, parameters: Mapping[str, Sequence[str | int | float]], samples: int | None, seed: int
    ) -> Iterator[Chosen]:
        """Yield each command with its parameters, and with the mark that an agent submitted it. Raise UsageError for an
        invalid command or invalid parameters, and for too many tasks.
        """
        _check_command(command)
        values = {name: [str(value) for value in given] for name, given in parameters.items()}
        _check_names(values)
        points = param_grid.combinations(values)
        number = math.prod(map(len, values.values()))
        if number > MOST_COMBINATIONS:
            raise UsageError(f"the parameters have more than {MOST_COMBINATIONS:,} combinations: give fewer values")
        if samples is not None and samples < number:
            if samples < 1:
                raise UsageError(f"samples {samples}: give a whole number from 1")
            drawn = random.Random(seed).sample(range(number), min(samples, MOST_TASKS + 1))
            points = param_grid.numbered(values, sorted(drawn))
            number = samples
        if number > MOST_TASKS:
            raise UsageError(
                f"the parameters make {number:,} tasks, and one call submits at most {MOST_TASKS:,}: give samples, or "
                "fewer values"
            )
        pieces = _pieces(command, values) if values else ()
        for one in points:
            if sum(len(text) + len(one.get(name, "")) for text, name in pieces) > LONGEST_COMMAND:
                raise UsageError(f"command: with its values it has more than {LONGEST_COMMAND:,} characters")
            yield param_grid.command(command, one) if values else command, {**one, STARTED_BY: AGENT}

    def cancel(self, tasks: str = "", *, everything: bool = False) -> Answer:
        """Cancel tasks that agents submitted through this server: the named ones, or all that have not ended."""
        if bool(tasks.strip()) == everything:
            raise UsageError("cancel: name tasks, such as 17-40,52, or give everything=true")
        targets = list(self._unfinished()) if everything else find_tasks(self._settings, [tasks.strip()])
        for target in targets:
            if not self.is_own(target.info):
                raise UsageError(
                    f"task {target.tasks[0]} belongs to run {target.info.number} ({short.cut(target.info.what, 80)}), "
                    f"which no agent submitted: only its user cancels it, with scheduler cancel {target.tasks[0]}"
                )
        results = [run_requests.ask(target, "cancel").to_dict() for target in targets]
        answers = [answer for result in results for answer in result["answers"]]
        done = sorted(task for answer in answers if answer["done"] for task in answer["tasks"])
        says = [answer["says"] for answer in answers]
        return {"cancelled": ranges(done), "count": len(done), "says": short.sentences(says, 10)}

    def is_own(self, info: RunInfo) -> bool:
        """Tell whether a run is a queue of this server's name."""
        return info.meta.get("door") == QUEUE and info.meta.get("name") == self.queue

    def _unfinished(self) -> Iterator[Target]:
        for info in run_facts.all_runs(self._settings):
            if not self.is_own(info):
                continue
            with closing(RunReader(info, only_states=True)) as reader:
                left = tuple(sorted(reader.brain.task_table.in_state(*UNFINISHED)))
            if left:
                yield Target(info, left)

    # ---- views ----

    def list(
        self, run: str = "", state: str = "", cursor: str | None = None, limit: int = 20, wait_s: float = 0.0
    ) -> Answer:
        """List runs, or the tasks of one; with `wait_s`, wait first until the tasks of the run have ended, or until
        this many seconds have passed.
        """
        most = short.limit(limit)
        if not run:
            return self._runs(cursor, most)
        info = self._run(run)
        with closing(RunReader(info)) as reader:
            _wait(reader, min(max(0.0, wait_s), LONGEST_WAIT))
            table, forecast = reader.brain.task_table, run_facts.forecast_with(info, reader.brain)
            ids = sorted(table.in_state(*_states(state)))
            shown, following = short.page(ids, cursor, most)
            rows = [*eta.with_expected(reader.rows_of(shown), forecast)]
            metrics = _columns_of(ranking.metrics_of(rows, reader.metric_names)[:5])
            return {
                **self._head(reader),
                "expected": eta.of_run(forecast, time.time()),
                "matching": len(ids),
                "tasks": [short.row(row, metrics) for row in rows],
                "next_cursor": following,
            }

    def _runs(self, cursor: str | None, most: int) -> Answer:
        found = RunCatalog(run_facts.places(self._settings))
        numbers, following = short.page(found.numbers()[::-1], cursor, most)
        shown: list[Answer] = []
        for number in numbers:
            try:
                info = found.info(number)
                facts = run_facts.facts_of_run(info)
            except StateError as exc:
                shown.append({"run": f"r{number}", "trouble": short.cut(str(exc), short.LONGEST_SENTENCE)})
                continue
            own = {STARTED_BY: AGENT} if self.is_own(info) else {}
            what: Answer = {"run": f"r{number}", "what": short.cut(info.what, 80), "alive": info.alive}
            shown.append({**what, "states": facts["states"], "over": facts["over"], **own})
        return {"runs": shown, "count": len(found.numbers()), "next_cursor": following}

    def _head(self, reader: RunReader) -> Answer:
        info = reader.info
        states = {str(one): number for one in State if (number := reader.brain.state_counts[one])}
        head = {"run": f"r{info.number}", "what": short.cut(info.what, 80), "alive": is_locked(info.places.root)}
        ended = not any(reader.brain.state_counts[one] for one in UNFINISHED)
        dead = {"dead": f"its scheduler has ended: scheduler resume r{info.number}"} if reader.dead else {}
        return {
            **head,
            "states": states,
            "all_ended": ended,
            **dead,
            **({STARTED_BY: AGENT} if self.is_own(info) else {}),
        }

    def why(self, task: str) -> Answer:
        """Explain why tasks wait or how they ended; for a run, what its tasks wait for."""
        from scheduler.app.observe.why import why

        targets = runs_or_tasks(self._settings, [_word("task", task)], None, None)
        number = sum(len(target.tasks) for target in targets)
        if number > MOST_WORDS:
            raise UsageError(
                f"why {short.cut(task, 80)}: these are {number} tasks; name at most {MOST_WORDS}, or a run"
            )
        return {"says": short.sentences([line for target in targets for line in why(target).lines], MOST_WORDS)}

    def logs(self, task: str, lines: int = 50) -> Answer:
        """Return the end of the output of a task's last attempt."""
        from scheduler.app.observe.wait import TaskLogReader, state_of

        targets = find_tasks(self._settings, [_word("task", task)])
        if len(targets) != 1 or len(targets[0].tasks) != 1:
            raise UsageError(f"logs {short.cut(task, 80)}: name one task")
        info, number = targets[0].info, targets[0].tasks[0]
        log = TaskLogReader(info, number)
        tail = log.last_lines(short.limit(lines, short.MOST_LINES))
        text, is_cut = short.log_text(tail)
        facts = {"task": number, "run": f"r{info.number}", "state": str(state_of(info, number))}
        return {**facts, "attempt": log.attempt, "log": log.path, "text": text, "is_cut": is_cut}

    def results(
        self,
        run: str = "",
        best: str = "",
        goal: str = "",
        group_by: str = "",
        cursor: str | None = None,
        limit: int = 10,
    ) -> Answer:
        """Return the results of a run: the best tasks by a metric, groups of them, or all by pages."""
        most = short.limit(limit)
        with closing(RunReader(self._run(run))) as reader:
            head = self._head(reader)
            if not best and not group_by:
                shown, following = short.page(sorted(reader.brain.task_table), cursor, most)
                rows = [*reader.rows_of(shown)]
                metrics = ranking.metrics_of(rows, reader.metric_names)
                return {
                    **head,
                    "metrics": metrics[:MOST_WORDS],
                    "tasks": [short.row(row, _columns_of(metrics[:MOST_WORDS])) for row in rows],
                    "next_cursor": following,
                }
            return {**head, **_ranked(reader, best, goal, group_by, most)}

    def forecast(self, run: str = "") -> Answer:
        """Return when the tasks of a run are expected to start and to end."""
        info = self._run(run)
        with closing(RunReader(info, only_states=True)) as reader:
            found = run_facts.forecast_with(info, reader.brain)
            head = self._head(reader)
        says = eta.of_run(found, time.time()) or (
            "all its tasks have ended"
            if head["all_ended"]
            else "no estimate yet: its scheduler makes one while it runs"
        )
        return {**head, "says": says, "expected": found and found.run_to_dict()}

    def doctor(self) -> Answer:
        """Return what does not work on this machine, and how to mend it."""
        from scheduler import __version__
        from scheduler.app.doctor.checks import examine

        page = examine({"state": self._settings.state or None}, __version__)
        facts = page.to_dict()
        kept = ("group", "what", "says", "cure")
        wrong = [line for line in facts["lines"] if line["broken"] or line["cure"]]
        return {
            "ok": facts["ok"],
            "summary": facts["summary"],
            "attention": [{name: short.cell(line[name]) for name in kept} for line in wrong[: short.MOST_ROWS]],
            "fine": [f"{line['what']}: {short.cut(line['says'], 80)}" for line in facts["lines"] if line not in wrong],
        }

    def _run(self, word: str) -> RunInfo:
        return run_facts.find_run(self._settings, _word("run", word) if word else None, warn=False)


def _ranked(reader: RunReader, best: str, goal: str, group_by: str, most: int) -> Answer:
    """Return the best tasks of a run, or its groups, by a metric."""
    found = [*reader.rows_and_metrics()]
    known = ranking.metrics_of((row for row, _ in found), reader.metric_names)
    if not known:
        raise UsageError("the tasks of this run have reported no metric so far: list shows their states")
    try:
        wanted = Goal(goal) if goal else None
    except ValueError:
        raise UsageError(f"goal {short.cut(goal, 40)}: give min or max") from None
    ranked = ranking.rank(found, best or known[0], wanted)
    facts: Answer = {"metric": ranked.metric, "goal": str(ranked.goal), "metrics": known[:MOST_WORDS]}
    if group_by:
        column = ranking.known_column(group_by, ranked.rows)
        made = [group.to_dict(column) for group in ranking.groups(ranked, column)]
        groups = [{name: short.cell(value) for name, value in group.items()} for group in made[:most]]
        return {**facts, "groups": groups, "count": len(made)}
    columns = ("best", "best_step", *_columns_of(known[:5]), *own_columns(reader.varies))
    return {**facts, "best": [short.row(row, columns) for row in ranked.rows[:most]], "count": len(ranked.rows)}


def _columns_of(metrics: Sequence[str]) -> list[str]:
    """Return the columns of results that contain these metrics."""
    return [f"{PREFIX}{name}" for name in metrics]


def _wait(reader: RunReader, seconds: float) -> None:
    """Wait until all tasks of a run have ended, until its scheduler has ended, or until `seconds` have passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        alive = is_locked(reader.info.places.root)
        reader.catch_up()
        if not alive or not any(reader.brain.state_counts[one] for one in UNFINISHED):
            return
        time.sleep(PAUSE)


def _states(text: str) -> Sequence[State]:
    try:
        return [State(word.strip()) for word in text.split(",")] if text.strip() else list(State)
    except ValueError:
        raise UsageError(f"state {short.cut(text, 80)}: the states are {', '.join(State)}") from None


def _word(name: str, text: str) -> str:
    """Return the name of a run or of tasks; raise UsageError for a text that cannot be one, such as an empty or a very
    long one.
    """
    text = text.strip()
    if not text or len(text) > short.LONGEST_CELL or not text.isprintable():
        raise UsageError(f"{name}: name a task, such as 17 or r3.12, or a run, such as r3")
    return text


def _check_command(command: str) -> None:
    if not command.strip():
        raise UsageError("command: it is empty; write it like  python train.py --lr {lr}")
    if len(command) > LONGEST_COMMAND:
        raise UsageError(f"command: {len(command):,} characters; at most {LONGEST_COMMAND:,}")
    if "\0" in command:
        raise UsageError("command: it contains a NUL character, which no command can")


def _pieces(command: str, values: Mapping[str, Sequence[str]]) -> Sequence[tuple[str, str]]:
    """Return the fixed parts of a command, each with the parameter that follows it. Raise UsageError if the braces in
    the command are wrong.

    Braces may contain only the name of a parameter: a format width could produce a command gigabytes long.
    """
    try:
        found = [(text, name or "", bool(spec or sign)) for text, name, spec, sign in Formatter().parse(command)]
    except ValueError as exc:
        raise UsageError(f"command: {exc}; write {{{{ and }}}} for literal braces") from exc
    for _, name, more in found:
        if more or (name and name not in values):
            raise UsageError(
                f"command: {short.cut(name, 40)!r} in braces is no parameter: add it to parameters, or write {{{{ and "
                "}} for literal braces"
            )
    return [(text, name) for text, name, _ in found]


def _check_names(values: Mapping[str, Sequence[str]]) -> None:
    for name, given in values.items():
        if not name.isidentifier() or name.lower() == STARTED_BY:
            raise UsageError(f"parameters: {short.cut(name, 40)!r} cannot be the name of a parameter: write one word")
        if not given:
            raise UsageError(f"parameters: {short.cut(name, 40)} has no value")
        if any("\0" in value or len(value) > LONGEST_COMMAND for value in given):
            raise UsageError(f"parameters: a value of {short.cut(name, 40)} is too long or contains a NUL character")
    if len(values) > MOST_WORDS:
        raise UsageError(f"parameters: {count(len(values), 'parameter')}; at most {MOST_WORDS}")


def _directory(text: str) -> str:
    """Return the absolute path of the directory of the tasks; raise UsageError if there is no such directory."""
    path = os.path.abspath(os.path.expanduser(text or "."))
    if "\0" in path or not os.path.isdir(path):
        raise UsageError(f"directory {short.cut(text, 200)}: there is no such directory")
    return path
