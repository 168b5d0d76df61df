"""Grammars of everything that can be written to the program: lists, command lines, settings, records of its own files.

Every case is made of texts, numbers and lists of them, so that JSON can keep it; bytes are texts in Latin-1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from scheduler.cli.main import VERBS
from scheduler.core.tasks.fields import FIELDS, FIVE
from scheduler.runtime import shim
from scheduler.runtime.settings import READERS

NASTY = (
    "", " ", "\x00", "a\x00b", "\n", "\r\n", "\t", "\x1b[31m", "\x7f", "é", "\udc80", "\ufeff", "\u202e", "💥", "-",
    "--", "-1", "0", "1", "+5", " 5 ", "1_000", "１２", "²", "٣", "0x10", "007", "1e400", "-1e400", "nan", "inf",
    "1e18", "1e-400", "9" * 30, "9" * 5000, "1.5", "1,5", ".5", "1GiB", "1e18GiB", "-1GiB", "1 GiB", "GiB",
    "0.0000001B", "10%", "10%+256MiB", "101%", "5s", "1h", "-5s", "1e9d", "1d2h", "99999999999d", "now", "+1h",
    "tomorrow 8:00", "25:61", "2026-02-30", "9999-12-31 23:59", "0001-01-01", "22:00-06:00", "22:00-22:00",
    "mon 8-18", "{", "}", "{}", "{0}", "{a}", "{a.b}", "{a!r}", "{a:>9999999999}", "{{a}}", "{id}", "{epochs}",
    "{line}", "${X}", "$GPU", "$(touch canary)", "; touch canary", "~", "~not-here/x", "~/x", "/", ".", "..",
    "/dev/null", "/dev/full", "/proc/self/mem", "no/such/file", "x" * 300, "a/" * 2500, "%", "%s", "r1", "r2",
    "r99", "r0", "last", "1-3", "3-1", "1,2", "1-99999999999", "*", "all", "queue", "host", "gpu", "0,0", "-1,1",
    "'", '"', "\\", "#", ";", "|", "=", "a=b", "on", "off", "yes", "auto", "none", "None", "true", "val_loss",
    "val_loss > 2 after 3", "loss < nan", "1/3 by val_acc at 3,9", "1/0 by x at 1", "1/3 by x at 9,3",
    "python train.py --lr {lr}", "http://x", "ftp://x", "csv", "json",
)  # fmt: skip
"""Words that parsers have been caught by, and words that mean something here."""

word = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.integers().map(str),
    st.floats().map(repr),
    st.lists(st.sampled_from(NASTY), min_size=2, max_size=3).map("".join),
)
name = st.one_of(
    st.sampled_from([field.column for field in FIELDS]),
    st.sampled_from(FIVE),
    st.sampled_from(("lr", "seed", "id")),
    word,
)
leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), word)
data = st.recursive(
    leaf, lambda some: st.lists(some, max_size=3) | st.dictionaries(word, some, max_size=3), max_leaves=6
)


def cell(text: str) -> str:
    """Return a text as a cell of a CSV file."""
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n\t;') else text


@st.composite
def table(draw: Any) -> str:
    """Return a list: a header and rows, which mostly have as many cells, sometimes with an error in the bytes."""
    comma, end = (
        draw(st.sampled_from((",", ",", "\t", ";", "|"))),
        draw(st.sampled_from(("\n", "\n", "\r\n", "\r", "\n\n"))),
    )
    header = draw(st.one_of(st.just(list(FIVE)), st.just(["Command", "lr"]), st.lists(name, max_size=6)))
    usual = {
        "Directory": ".",
        "Executable": "-1",
        "Filename": "train.py",
        "Epochs": "3",
        "Priority": "1",
        "Command": "true {lr}",
    }
    rows = [header]
    for _ in range(draw(st.integers(0, 3))):
        cells = [usual.get(column, "1") if draw(st.integers(0, 3)) else draw(word) for column in header]
        rows.append(cells[: draw(st.integers(0, len(cells)))] if not draw(st.integers(0, 12)) else cells)
    text = end.join(comma.join(map(cell, row)) for row in rows) + draw(st.sampled_from((end, "")))
    return damaged(draw, text)


def damaged(draw: Any, text: str) -> str:
    """Return a text as bytes in Latin-1 , in one of four cases with something put in or taken out."""
    raw = text.encode("utf-8", "surrogateescape").decode("latin-1")
    if draw(st.integers(0, 3)):
        return raw
    at = draw(st.integers(0, len(raw)))
    piece = draw(
        st.sampled_from(("\0", '"', "\xff\xfe", "\xef\xbb\xbf", "\n", ",", "#", "\x80", "'", "{", "\r", "\x1b]0;x\x07"))
    )
    return raw[:at] + piece + raw[at + draw(st.integers(0, 2)) :]


@st.composite
def toml(draw: Any, names: tuple[str, ...] = (*READERS, "devices", "lease_dir")) -> str:
    """Return a file of settings."""
    lines = []
    for _ in range(draw(st.integers(0, 4))):
        key = draw(
            st.one_of(
                st.sampled_from(names),
                st.sampled_from(names),
                st.text("abcdefghijklmnopqrstuvwxyz_-", min_size=1, max_size=8),
            )
        )
        lines.append(f"{key} = {toml_value(draw(data))}")
    if draw(st.booleans()):
        lines.append(
            "["
            + draw(
                st.sampled_from(
                    (
                        "quotas",
                        "may",
                        "quotas.users.ann",
                        'quotas.users."a\\u0000b"',
                        "may",
                        "quotas.users.0",
                        "quotas.users",
                        "x",
                    )
                )
            )
            + "]"
        )
        for _ in range(draw(st.integers(0, 3))):
            key = draw(
                st.sampled_from(
                    ("gpus", "memory", "host_memory", "tasks", "users", "reserve", "disable", '"\\u0000"', '"a.b"')
                )
            )
            value = (
                draw(st.lists(word.map(lambda text: f"@{text}") | word, max_size=2))
                if key in ("reserve", "disable")
                else draw(data)
            )
            lines.append(f"{key} = {toml_value(value)}")
    return damaged(draw, "\n".join(lines) + "\n")


def toml_value(value: Any) -> str:
    """Return a value as TOML, which has no null."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_text(key)} = {toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, bool) or value is None:
        return str(bool(value)).lower()
    return repr(value) if isinstance(value, int | float) else toml_text(value)


def toml_text(text: str) -> str:
    return '"' + "".join(char if char.isalnum() and char.isascii() else f"\\U{ord(char):08x}" for char in text) + '"'


def changed(usual: Mapping[str, Any]) -> Any:
    """Return a strategy for records: the usual one with some values replaced, left out or added."""
    pick = st.sampled_from((*usual, "version", "more"))
    return st.builds(lambda new, gone: {k: v for k, v in {**usual, **new}.items() if k not in gone},
                     st.dictionaries(pick, data, max_size=3), st.lists(pick, max_size=1))  # fmt: skip


LEASE = {
    "since": 1.0, "expected": 2.0, "locker": 1, "namespace": 0, "alone": False, "version": 1, "shim": 1, "shim_id": "",
    "boot": "x", "bytes": {"host": 1, "GPU-1": 2}, "load": {"host": 1.0}, "port": 1, "offer": [None, None],
}  # fmt: skip
TICKET = {
    "version": 3, "task": 1, "devices": ["host"], "gpus": [1], "host": 1, "cores": 1.0, "busy": 0.0, "alone": False,
    "closed": False, "bare": [1], "last": 0.0, "urgent": False, "call": [1, 0, [["r", 1, 1]]], "since": 0.0,
    "looked": 1e9,
}  # fmt: skip
RESERVATION = {"version": 1, "device": "host", "user": None, "until": 0.0, "why": "x"}
DEMAND = {
    "tasks": 1, "seconds": None, "gpus": [[1, 1]], "host": [1, 1], "cores": 1.0, "busy": 0.0, "alone": False,
    "device": "x",
}  # fmt: skip
FORECAST = {
    "version": 1, "since": 1.0, "devices": ["host"], "jobs": None, "ends": {"1.1": 2.0}, "waiting": [DEMAND],
}  # fmt: skip
RANDOM = "0123456789abcdef"
RECORDS = {
    f"{{uid}}.0-0.1.1.{RANDOM}": LEASE,
    f"{{uid}}.0-0.1.2.{RANDOM}.shim": LEASE,
    f"ticket.{{uid}}.0-0.{RANDOM}": TICKET,
    f"closed.{{uid}}.{RANDOM}": RESERVATION,
    f"forecast.{{uid}}.0-0.{RANDOM}": FORECAST,
}
"""A record of each kind in the lease directory, by the names of their files."""
CLAIM = {**shim.Claim(1, 1)._asdict(), "boot_id": "x", "shim": 1}
RECORD = shim.Record("exited", 0)._asdict()
PART = {"full": [1], "lower": 0, "lower_by": "profile", "above": 1}
PROFILE = {
    "key": "k", "what": "x", "device": "host 1GiB", "updated": 1.0, "parts": {"host": PART}, "epoch_seconds": 0.0,
    "whole_seconds": 0.0, "cores": 0.0, "busy": 0.0, "family": "f", "slots": [["-c", "x"]], "relations": ["f"],
}  # fmt: skip
LIMITS = ("-j", "--max-per-device", "--devices", "disable", "enable", "pause", "unpause", "save", "--window")
REQUEST = {"what": "set", "tasks": [1], "changes": {"Priority": "1"}}
SAMPLING = ("--n-samples", "--seed", "--sampling-mode", "--run", "--out")
SAFE_VERBS = tuple(verb for verb in VERBS if verb not in ("mcp", "experiment"))
WAITING = {"--web", "--follow", "-f", "--wait"}
"""Flags that make a verb wait for something that never comes here."""
MEASURES = (
    "job_id", "arrival_s", "gpus", "priority", "util", "epochs", "config", "cores", "host_mem_mib",
)  # fmt: skip


def as_bytes(text: str) -> str:
    """Return a text as its bytes in UTF-8, as Latin-1."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def without_nul(words: list[str]) -> list[str]:
    """Return words of a command line, none of which can hold a NUL byte."""
    return [one.replace("\0", "") for one in words]


@cache
def flags_of(verb: str) -> tuple[str, ...]:
    """Return the flags that a verb's help names."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    asked = [sys.executable, "-m", "scheduler", verb, "--help-all" if verb in ("run", "grid") else "--help"]
    page = subprocess.run(asked, capture_output=True, text=True, check=False, env=env).stdout
    return tuple(sorted({*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", page)} - WAITING)) or ("--json",)


@st.composite
def command_line(draw: Any) -> list[Any]:
    """Return the words of a command line, and its standard input."""
    verb = draw(st.sampled_from(SAFE_VERBS))
    words = [verb] if draw(st.integers(0, 20)) else [draw(word)]
    for _ in range(draw(st.integers(0, 5))):
        flag, more = draw(st.sampled_from(flags_of(verb))), draw(word)
        words += draw(st.sampled_from(([more], [flag], [flag, more], [f"{flag}={more}"])))
    if verb in ("run", "submit", "exec", "resume", "grid", "retry") and draw(st.booleans()):
        words.append("jobs.csv" if draw(st.booleans()) else "--")
    return [without_nul(words), draw(st.sampled_from(("", "true\n", "\xff\0\n")))]


number = st.one_of(st.sampled_from(("1", "0", "-1", "nan", "inf", "1e12", "1e13", "1e-9", "", "x", "²", "1_0")), word)


@st.composite
def trace(draw: Any) -> str:
    """Return a trace of measured tasks."""
    columns = ["duration_s", "peak_mem_mib", *draw(st.lists(st.sampled_from(MEASURES), unique=True))]
    rows = [columns]
    rows += [
        ["1" if draw(st.integers(0, 2)) else draw(number) for _ in columns] for _ in range(draw(st.integers(0, 3)))
    ]
    return damaged(draw, "\n".join(",".join(map(cell, row)) for row in rows) + "\n")


@st.composite
def grid(draw: Any) -> list[str]:
    """Return the words after `grid`."""
    words = [draw(word)]
    for _ in range(draw(st.integers(0, 3))):
        words += ["-p", draw(word), draw(word), draw(word)]
    if draw(st.booleans()):
        words += [draw(st.sampled_from(SAMPLING)), draw(word)]
    return without_nul(words)


as_json = st.one_of(data.map(json.dumps), word)
options = st.one_of(
    st.just([]),
    st.just([]),
    word.map(lambda text: ["--header", text]),
    word.map(lambda text: [f"--my-columns={text}"]),
    st.lists(word, max_size=3).map(lambda words: ["--", *words]),
).map(without_nul)
objects = st.one_of(st.dictionaries(name, leaf, max_size=4).map(json.dumps), as_json)
json_lines = st.lists(objects, max_size=3).map("\n".join).map(as_bytes)
lines = st.lists(word, max_size=4).map("\n".join).map(as_bytes)
result = st.lists(as_json, min_size=1, max_size=3).map("\n".join).map(as_bytes)
record = st.sampled_from(sorted(RECORDS)).flatmap(lambda file: st.tuples(st.just(file), changed(RECORDS[file])))
limit = st.builds(
    lambda what, said: {"what": "limit", "tasks": [], "changes": {what: said}}, st.sampled_from(LIMITS), word
)
setting = st.builds(lambda what, said: {"what": "set", "tasks": [1, 2], "changes": {what: said}}, name, word)
request = st.tuples(
    st.sampled_from((".request", ".later.request")), st.one_of(changed(REQUEST), limit, setting, data, word)
)
profiles = st.one_of(
    changed({"format": 1, "profiles": [PROFILE]}),
    changed(PROFILE).map(lambda one: {"format": 1, "profiles": [one]}),
    changed(PART).map(lambda one: {"format": 1, "profiles": [{**PROFILE, "parts": {"host": one}}]}),
    word,
)
damage = st.tuples(
    st.floats(0, 1, exclude_max=True), st.sampled_from(("\0" * 4096, "\xff", "\0", "x" * 100, "\0" * 100))
)
machine = st.one_of(st.just(["--machine", "1x24GiB"]), word.map(lambda text: ["--machine", text.replace("\0", "")]))
variables = st.dictionaries(st.sampled_from([key.upper() for key in READERS]), word, max_size=2)
