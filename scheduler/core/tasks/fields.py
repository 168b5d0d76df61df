"""The one table of task fields, which defines the CSV columns, the flags, the Python keywords and their reference."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from scheduler import units
from scheduler.core.model import SHARED_OUT, Spec, Terms, Warn
from scheduler.core.tasks import begin
from scheduler.core.tasks.after import parsed
from scheduler.core.tasks.guest import Guest
from scheduler.core.tasks.placeholders import filled, filled_template
from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass, names_of, replace

SEPARATOR = "\x1f"
BEGIN, HOLD, PREEMPT, PREEMPT_AFTER = "Begin", "Hold", "Preempt", "PreemptAfter"
SWITCHES = (HOLD, PREEMPT)
"""Fields whose flags take no value."""
LARGEST = 10**12
"""The largest accepted number of epochs, or priority; a larger one is assumed to be a typing error."""


class BadCell(ValueError):
    """An invalid cell; the input reader adds the file and the row."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


def _integer(text: str) -> int:
    """Read a whole number: `5.0` is accepted (spreadsheets write it), `5.5`, nan and 1e30 are not."""
    try:
        return _bounded(int(text, 10))
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"{text!r} is not a whole number")
    return _bounded(int(number))


class _TooLarge(ArithmeticError):
    """A number too large to be intended. This error is not a ValueError, so that no other way of reading the cell is
    tried.
    """


def _bounded(number: int) -> int:
    if abs(number) > LARGEST:
        raise _TooLarge(f"{number} is too large (at most {LARGEST})")
    return number


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = _integer(text)
        if number < least:
            raise ValueError(f"{number} is below {least}")
        return number

    return read


def _memory(text: str) -> int:
    bytes_ = units.parse_size(text) if text.strip(" 0.") else 0
    if bytes_ < 1:
        raise ValueError(f"{text!r} is not a size above 0: leave the cell empty if the need is unknown")
    if bytes_ > units.TIB * 1024:
        raise ValueError(f"{text!r} is more than any machine has")
    return bytes_


def _cores(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of cores") from None
    if not 0 < number <= 100_000:
        raise ValueError(f"{text!r} is not a number of cores above 0")
    return number


def _positive_duration(text: str) -> float:
    seconds = units.parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a time above 0")
    return seconds


def _stop_signal(text: str) -> int | Warn:
    """Read `INT`, or a warning such as `USR1@120` or `USR1@2m`: the signal, and how long before the time limit it is
    sent.
    """
    name, at, before = text.partition("@")
    try:
        number = int(signal.Signals["SIG" + name.strip().upper().removeprefix("SIG")])
    except KeyError:
        raise ValueError(f"{text!r} is not a signal: write it like TERM, INT or USR1@120") from None
    if not at:
        return number
    before = before.strip()
    return Warn(number, _positive_duration(f"{before}s" if before.isdecimal() else before))


def _retry_on(text: str) -> str:
    """Read `failed`, `timeout` or both."""
    said = {word.strip().lower() for word in text.split(",")}
    if not said <= {"failed", "timeout"}:
        raise ValueError(f"{text!r} is not failed, timeout or failed,timeout")
    return ",".join(sorted(said))


def _thread_percentage(text: str) -> int:
    if text.strip().lower() == "auto":
        return SHARED_OUT
    number = _integer(text.strip().removesuffix("%"))
    if not 1 <= number <= 100:
        raise ValueError(f"{text!r} is not a percentage of a GPU's threads: write 1 to 100, or auto")
    return number


_YES = {"yes": True, "true": True, "1": True, "on": True, "no": False, "false": False, "0": False, "off": False}


def _yes_or_no(text: str) -> bool:
    try:
        return _YES[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither yes nor no") from None


_ENV_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _env(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in words(text):
        name, equals, value = word.partition("=")
        if not equals or not _ENV_NAME.match(name):
            raise ValueError(f"{word!r} is not NAME=value")
        pairs.append((name, value))
    return tuple(pairs)


def words(text: str) -> list[str]:
    """Split a text into words as a shell does, without a shell. shlex is slow, so it is used only for a text with a
    quote or a backslash.
    """
    if '"' not in text and "'" not in text and "\\" not in text:
        return text.split()
    import shlex  # needed only for a quote or a backslash

    try:
        return shlex.split(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} cannot be split into words: {str(exc).lower()}") from exc


def joined(said: Sequence[str]) -> str:
    """Return a string that `words` splits into these words again."""
    if not any(not word or "'" in word or '"' in word or "\\" in word or word.split() != [word] for word in said):
        return " ".join(said)
    import shlex  # needed only if a word needs quotes

    return shlex.join(said)


def _after(text: str) -> str:
    list(parsed(text))
    return text


def _guest(text: str) -> str:
    return str(Guest.read(text))


def _names(what: str, example: str) -> Callable[[str], str]:
    """Return a function that reads names separated by commas."""

    def read(text: str) -> str:
        if any(len(name.split()) != 1 for name in text.split(",")):
            raise ValueError(f"{text!r} is not a list of {what}: write it like {example}")
        return ",".join(dict.fromkeys(map(str.strip, text.split(","))))

    return read


_nodes, _features = _names("nodes", "n1 or n1,n2"), _names("features", "a100 or a100,nvlink")


def _command_text(text: str) -> str:
    if not words(text):
        raise ValueError("it is empty")
    return text


@dataclass(frozen=True, slots=True)
class Field:
    """One task field: its column, its flag, the attribute that has its value, and the function that reads its text."""

    column: str
    attribute: str
    read: Callable[[str], Any]
    help: str
    flag: str = ""
    default: str = ""
    in_terms: bool = True
    aliases: tuple[str, ...] = ()
    """Other spellings of the flag."""


FIELDS: tuple[Field, ...] = (
    Field("Name", "name", str, "name of the task", "--name", "", in_terms=False),
    Field("Directory", "directory", str, "working directory of the process", in_terms=False),
    Field("Executable", "executable", str, "program, conda:NAME, environment's folder; -1 = --python", in_terms=False),
    Field("Filename", "filename", _command_text, "script, with or without arguments", in_terms=False),
    Field("Args", "args", str, "further arguments", in_terms=False),
    Field("Command", "command", _command_text, "a whole command in place of the five columns", in_terms=False),
    Field("Env", "env", _env, "environment variables as NAME=value", "--env", "", in_terms=False),
    Field("Stdout", "stdout", str, "file for standard output instead of the log", "--stdout", "", in_terms=False),
    Field("Stderr", "stderr", str, "file for standard error; apart: beside the log", "--stderr", "", in_terms=False),
    Field(
        "After", "after", _after, "tasks that must succeed first; ended:NAME must only end", "--after", in_terms=False
    ),
    Field(BEGIN, "begin", begin.read, "earliest start: 22:00, +2h or 2026-12-01T08:00", "--begin"),
    Field(HOLD, "hold", _yes_or_no, "held until scheduler release", "--hold", "no"),
    Field("Epochs", "epochs", _at_least(1), "number of epochs that the task trains"),
    Field("Priority", "priority", _integer, "priority; smaller numbers start first", "--priority", "0"),
    Field("GPUs", "gpus", _at_least(0), "number of GPUs; 0 = host only", "--gpus", ""),
    Field("Memory", "memory", _memory, "memory needed on each device; empty = unknown", "--memory", ""),
    Field("HostMemory", "host_memory", _memory, "host RAM needed; empty = unknown", "--host-memory", ""),
    Field("CPUs", "cpus", _cores, "CPU cores that the task keeps busy", "--cpus", ""),
    Field("Timeout", "timeout", _positive_duration, "maximum running time of an attempt", "--timeout", ""),
    Field("Grace", "grace", units.parse_duration, "time between the stop signal and KILL", "--grace", "30s"),
    Field(
        "StopSignal",
        "stop_signal",
        _stop_signal,
        "signal that stops a task; USR1@120 sends USR1 120 s before the time limit",
        "--stop-signal",
        "TERM",
    ),
    Field("Retries", "retries", _at_least(0), "how often a failed task is retried", "--retries", "0"),
    Field("RetryOn", "retry_on", _retry_on, "what is retried: failed, timeout or both", "--retry-on", "failed"),
    Field("Resumable", "resumable", _yes_or_no, "exit code 75 queues the task again", "--resumable", "no"),
    Field(PREEMPT, "preempt", _yes_or_no, "ask less urgent Resumable tasks to make room for it", "--preempt", "no"),
    Field(
        PREEMPT_AFTER,
        "preempt_after",
        units.parse_duration,
        "how long a task with --preempt waits before it asks (default 5m)",
        "--preempt-after",
    ),
    Field("Device", "device", str, "only devices on which the task may run: 2, or 0,1", "--device", ""),
    Field("Node", "node", _nodes, "only nodes on which the task may run (with --on): n1 or n1,n2", "--node", ""),
    Field("Features", "features", _features, "features its node must have (with --on): a100,nvlink", "--features", ""),
    Field("Prefer", "prefer", str, "device that is preferred where several are free", "--prefer", ""),
    Field(
        "ThreadPercentage",
        "thread_percentage",
        _thread_percentage,
        "percentage of a GPU's threads under MPS, 1 to 100; auto divides them among the tasks there",
        "--thread-percentage",
        aliases=("--thread_percentage", "--threads_percentage"),
    ),
    Field("Exclusive", "exclusive", _yes_or_no, "start no other task on the same devices", "--exclusive", "no"),
    Field("LeaseFor", "guest", _guest, "running process for which devices are held; scheduler lease writes it"),
)
"""All columns that have a meaning. Other columns belong to the user and are copied to the results."""

BY_COLUMN = {field.column.lower(): field for field in FIELDS}
FIVE = ("Directory", "Executable", "Filename", "Epochs", "Priority")
REQUIRED = ("Directory", "Executable", "Filename", "Epochs")
THIS_PYTHON = ("-1", "-1.0", "")
"""Values of Executable that mean the interpreter of the run."""
WHOLE_COMMAND = ("Executable", "Filename", "Args", "Command")
"""The columns that form the command. In a table whose command follows `--`, they are parameters."""
_TERMS = frozenset(names_of(Terms))


class RowForm:
    """The columns of one source and the defaults from flags, with which the cells of its rows become Terms and Specs.

    A journal contains the form once and the cells of each row, so that the text of a waiting task need not be in
    memory.
    """

    def __init__(
        self,
        columns: Sequence[str],
        defaults: Mapping[str, str] | None = None,
        append: str = "both",
        template: Sequence[str] = (),
        shell: str = "",
        now: float | None = None,
    ) -> None:
        self.columns = tuple(columns)
        self.defaults = dict(defaults or {})
        self.append = append
        self.template = tuple(template)
        """The words of the command whose placeholders every row fills in; empty: each row has a command of its own."""
        self.shell = shell
        """The digest of the shell in which the rows were submitted; empty: the shell of the run."""
        self.varies: tuple[str, ...] = ()
        """The parameters that vary in the list; empty until the list is accepted."""
        self.adapts = True
        """True if launchers get the options that their commands lack (see `launchers`)."""
        self.known = {
            BY_COLUMN[name.lower()].column: index
            for index, name in enumerate(self.columns)
            if name.lower() in BY_COLUMN and not (template and BY_COLUMN[name.lower()].column in WHOLE_COMMAND)
        }
        known = {*self.known.values()}
        self.own = tuple((name, index) for index, name in enumerate(self.columns) if index not in known)
        self.term_columns = tuple(
            (field, self.known[field.column]) for field in FIELDS if field.in_terms and field.column in self.known
        )
        self._commands = bool(template) or "Command" in self.known or "Command" in self.defaults
        """True if rows may be whole commands, which need no epochs. The input reader then checks that other rows have
        epochs."""
        self._term_cells = _getter([index for _, index in self.term_columns])
        self.now = now if BEGIN in self.known else None
        """The wall-clock time at which the rows were read, to which the times in their Begin cells refer; None: not
        needed."""
        self._terms: dict[Any, Terms] = {}
        self._base = self._base_terms()
        self._same = {
            field.column: text
            for field in FIELDS
            if field.column not in self.known and not ("{" in (text := self._default(field.column)) and self.own)
        }
        """For each column whose text is equal in every row, that text."""
        self._env: tuple[str, Any] = ("", _read(BY_COLUMN["env"], ""))
        """The text of the environment that was read last, and its value."""

    def _default(self, column: str) -> str:
        return self.defaults.get(column, "")

    def _base_terms(self) -> dict[str, Any]:
        base = {}
        for field in FIELDS:
            text = self.defaults.get(field.column, field.default)
            if field.in_terms and text != "":
                base[field.attribute] = _read(field, text)
        return base

    def _read(self, field: Field, text: str) -> Any:
        return _begin(text, self.now) if field.column == BEGIN else _read(field, text)

    def read_at(self, now: float) -> RowForm:
        """Return the form for rows that are read at this wall-clock time."""
        if BEGIN not in self.known:
            return self
        form = RowForm(self.columns, self.defaults, self.append, self.template, self.shell, now)
        form.adapts = self.adapts
        return form

    def terms(self, cells: Sequence[str]) -> Terms:
        """Return the terms of one row. Rows with equal cells share one object, and such cells are parsed only once."""
        key = self._term_cells(cells)
        terms = self._terms.get(key)
        if terms is None:
            terms = self._read_terms(cells)
            if len(self._terms) > 50_000:
                self._terms.clear()
            self._terms[key] = terms
        return terms

    def _read_terms(self, cells: Sequence[str]) -> Terms:
        values = dict(self._base)
        for field, index in self.term_columns:
            text = cells[index].strip()
            if text:
                values[field.attribute] = self._read(field, text)
            elif field.column == "Epochs" and not self._commands:
                raise BadCell("Epochs", "it is empty")
        return _checked(Terms(**values))

    def cell(self, cells: Sequence[str], column: str) -> str:
        """Return the text of a column; if the column or its text is missing, return the default."""
        index = self.known.get(column)
        text = cells[index].strip() if index is not None else ""
        return text or self._default(column)

    def words_of(self, cells: Sequence[str]) -> list[str]:
        """Return the words of the table's command, filled in from this row."""
        values = {name.lower(): cells[index] for index, name in enumerate(self.columns)}
        if "Epochs" in self.known:
            del values["epochs"]
        return [filled_template(word, values) for word in self.template]

    def text(self, cells: Sequence[str], column: str) -> str:
        """Return the text of a column, with placeholders filled in from the user's own columns of the row."""
        same = self._same.get(column)
        if same is not None:
            return same
        text = self.cell(cells, column)
        literal = "{{" in text and column != "Name"  # a name is not a command
        if "{" not in text or not (self.own or literal):
            return text
        values = {name.lower(): cells[index] for name, index in self.own}
        if column == "Name":
            return filled(text, values)
        try:
            said = words(text)
        except ValueError as exc:
            raise BadCell(column, str(exc)) from exc
        new = [filled(word, values) for word in said]
        return text if new == said else joined(new)

    def spec(self, cells: Sequence[str], row: int) -> Spec:
        """Return one row as a Spec; raise BadCell for an invalid cell."""
        command, executable = joined(self.words_of(cells)) if self.template else self.text(cells, "Command"), ""
        if not command:
            executable = self.cell(cells, "Executable") or THIS_PYTHON[0]
            command = " ".join([text for text in (self.text(cells, "Filename"), self.text(cells, "Args")) if text])
        return Spec(
            row=row,
            directory=self.cell(cells, "Directory"),
            executable=executable,
            command=command,
            name=self.text(cells, "Name"),
            env=self._environment(self.cell(cells, "Env")),
            own=tuple([(name, cells[index]) for name, index in self.own]),
            terms=self.terms(cells),
            stdout=self.text(cells, "Stdout"),
            stderr=self.text(cells, "Stderr"),
            after=self.text(cells, "After"),
        )

    def _environment(self, text: str) -> Any:
        if text != self._env[0]:
            self._env = (text, _read(BY_COLUMN["env"], text))
        return self._env[1]

    def pack(self) -> str:
        """Return the form as text for a journal."""
        data = {"columns": self.columns, "defaults": self.defaults, "append": self.append}
        more = {"template": self.template, "shell": self.shell, "varies": self.varies, "now": self.now}
        adapts = {} if self.adapts else {"adapts": False}
        return json.dumps({**data, **{name: said for name, said in more.items() if said}, **adapts})

    @classmethod
    def unpack(cls, text: str) -> RowForm:
        """Return the form from a text that `pack` returned."""
        data = json.loads(text)
        more = (data.get("template", ()), data.get("shell", ""), data.get("now"))
        made = cls(data["columns"], data["defaults"], data["append"], *more)
        made.varies = tuple(data.get("varies", ()))
        made.adapts = data.get("adapts", True)
        return made


def _getter(indexes: list[int]) -> Callable[[Sequence[str]], Any]:
    if not indexes:
        return lambda cells: ()
    return itemgetter(*indexes)


def _read(field: Field, text: str) -> Any:
    try:
        return field.read(text)
    except (ValueError, ArithmeticError) as exc:
        raise BadCell(field.column, str(exc)) from exc


def _begin(text: str, now: float | None) -> float:
    try:
        return begin.read(text, now)
    except ValueError as exc:
        raise BadCell(BEGIN, str(exc)) from exc


def _checked(terms: Terms) -> Terms:
    """Return these terms; raise BadCell if they contradict each other."""
    warn = terms.stop_signal
    if not isinstance(warn, Warn):
        return terms
    said = f"the warning is sent {warn.before:g} s before the time limit"
    if terms.timeout is None:
        raise BadCell("StopSignal", f"{said}, and there is none: give the task a Timeout, or a signal without @")
    if warn.before >= terms.timeout:
        raise BadCell("StopSignal", f"{said}, which is {terms.timeout:g} s: warn later, or raise the Timeout")
    return terms


SETTABLE = tuple(field for field in FIELDS if field.in_terms and field.flag and field.column != HOLD)
"""The fields with a flag that can be changed while a task waits."""
SETTABLE_COLUMNS = frozenset(field.column.lower() for field in FIELDS if field.in_terms)
"""The columns that a request can change, including columns without a flag."""


def changed(terms: Terms, said: Mapping[str, str]) -> Terms:
    """Return terms with some values changed. The new values are texts by column; an empty text resets a value. Raise
    BadCell for an invalid value.
    """
    values: dict[str, Any] = {}
    for column, text in said.items():
        field = BY_COLUMN[column.lower()]
        text = text.strip() or field.default
        values[field.attribute] = _read(field, text) if text else getattr(Terms(), field.attribute)
    return _checked(replace(terms, **values))


def pack_cells(cells: Sequence[str]) -> str:
    """Return the cells of one row as one string. This is fast for a million rows if no cell contains the separator."""
    text = SEPARATOR.join(cells)
    if text.count(SEPARATOR) != len(cells) - 1 or text.startswith("[") or not is_text(text):
        return "[" + json.dumps(list(cells))
    return text


def is_text(text: str) -> bool:
    """Tell whether a string can be written as UTF-8; a line from a pipe may contain any bytes."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def unpack_cells(text: str) -> list[str]:
    """Return the cells from a text that `pack_cells` returned."""
    if text.startswith("["):
        cells: list[str] = json.loads(text[1:])
        return cells
    return text.split(SEPARATOR)


def pack_terms(terms: Terms) -> str:
    """Return terms as text for a journal; values that equal the defaults are left out."""
    default = Terms()
    kept = {name: getattr(terms, name) for name in sorted(_TERMS) if getattr(terms, name) != getattr(default, name)}
    return json.dumps(kept)


def unpack_terms(text: str) -> Terms:
    """Return the terms from a text that `pack_terms` returned; ignore names that only a newer version knows."""
    values = {name: value for name, value in json.loads(text).items() if name in _TERMS}
    if isinstance(values.get("stop_signal"), list):
        values["stop_signal"] = Warn(*values["stop_signal"])
    return Terms(**values)
