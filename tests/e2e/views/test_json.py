"""The output of every verb's --json against its table, and the metrics, read by the parser of Prometheus."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from scheduler.cli.main import VERBS
from scheduler.ui.export import prometheus
from tests.docs.json_shapes import PRINTS, described, schema
from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL = "sh -c 'until [ -e go ]; do sleep 0.05; done'"
CALLS: dict[str, list[tuple[str, list[str]]]] = {
    "list": [("RUN", ["r4"]), ("", [])],
    "why": [("", ["--task", "5-6"]), ("", ["--run", "4"]), ("", ["--task", "1"])],
    "status": [("", [])],
    "top": [("", ["r4"]), ("--all", ["--all"])],
    "devices": [("", []), ("disable, enable", ["disable", "host"]), ("disable, enable", ["enable", "host"])],
    "runs": [("", []), ("rm", ["rm", "r3"])],
    "profiles": [
        ("", []),
        ("export", ["export"]),
        ("import", ["import", "known.json"]),
        ("forget", ["forget", "--all"]),
    ],
    "results": [("", ["r1"]), ("several RUNs, --since", ["r1", "r2"])],
    "report": [("", ["r1"])],
    "logs": [("", ["0"]), ("several tasks, RUN", ["r1"])],
    "hold": [("", ["--task", "6"])],
    "release": [("", ["--task", "6"])],
    "pause": [("", ["r4", "--for", "1h"])],
    "unpause": [("", ["r4"])],
    "set": [("", ["--task", "6", "--priority", "3"])],
    "cancel": [("", ["6"])],
    "retry": [("", ["--task", "6"])],
    "grid": [
        ("one line for each combination", ["echo {a}", "-p", "a", "1"]),
        ("--submit", ["echo {a}", "-p", "a", "1", "--submit"]),
    ],
    "simulate": [
        ("", ["jobs.csv", "--devices", "2x24GiB", "--assume", "10min,4GiB"]),
        ("--compare", ["jobs.csv", "--devices", "2x24GiB", "--assume", "1h,4GiB", "--compare", "packed,one-per-gpu"]),
    ],
    "experiment": [("", ["mps", "jobs.csv", "--simulate", "1x24GiB", "-o", "measured"])],
    "completion": [
        ("bash, zsh, fish", ["--json", "bash"]),
        ("bash, zsh, fish", ["fish"]),
        ("words", ["--json", "words", "--", "st"]),
    ],
    "doctor": [("", [])],
    "mcp": [("", [])],
    "run": [
        ("--dry-run", ["jobs.csv", "--new", "--dry-run"]),
        ("at the end", ["jobs.csv", "--new"]),
        ("-d", ["jobs.csv", "--new", "-d"]),
    ],
    "exec": [("-d", ["-d", "--", "true"])],
    "submit": [("", ["--", "true"])],
    "lease": [("on standard error, once it is granted", ["--memory", "1MiB", "--", "true"])],
    "stop": [("", ["r4", "--leave"])],
    "resume": [("-d", ["r4", "-d"]), ("--all", ["--all"])],
    "wait": [("", ["--run", "1"])],
}  # fmt: skip
if os.geteuid() == 0:  # or a user that the site configuration names
    CALLS["devices"].append(("reserve", ["reserve", "host", "--for", "1ms", "--why", "it is over at once"]))
BEFORE = {"resume": ["stop", "r4", "--leave"]}  # what has to have happened for a verb, whichever were asked before


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Make three runs that have ended and a living one, with a running and a waiting task."""
    made = Home(tmp_path_factory.mktemp("json"))
    made.write("jobs.csv", "Command,Priority,own", ["true", "1", "a"], ["sh -c 'echo x; exit 3'", "2", "b"])
    for _ in range(2):
        made.call("run", "jobs.csv", "--new", code=1)
    made.write("other.csv", "Command", ["true"])
    made.write("known.json", '{"format": 1, "profiles": []}')
    made.call("run", "other.csv", code=0)
    made.write("live.csv", "Command", [UNTIL], ["true"])
    made.call("run", "-d", "live.csv", "-j", "1", code=0)
    wait_until(lambda: made.states("4") == ["running", "waiting"], 60)
    yield made
    (made.root / "go").touch()
    made.end()


def shape_of(verb: str, case: str) -> Any:
    return dict(PRINTS[verb])[case]


def printed(home: Home, verb: str, arguments: list[str]) -> Any:
    if "--json" in arguments:
        pass
    elif "--" in arguments:
        at = arguments.index("--")
        arguments = [*arguments[:at], "--json", *arguments[at:]]
    else:
        arguments = [*arguments, "--json"]
    done = home.call(verb, *arguments)
    if verb == "lease":  # its standard output is that of the command
        return json.loads(next(line for line in done.stderr.splitlines() if line.startswith("{")))
    return json.loads(done.stdout)


@pytest.mark.parametrize("verb", CALLS)
def test_json_of_a_verb_has_its_documented_shape(home: Home, verb: str) -> None:
    if verb in BEFORE:
        home.call(*BEFORE[verb])
    for case, arguments in CALLS[verb]:
        said = printed(home, verb, arguments)
        found = [f"{error.json_path}: {error.message}" for error in validator(shape_of(verb, case)).iter_errors(said)]
        assert found == [], f"scheduler {verb} {' '.join(arguments)} --json"


def validator(shape: Any) -> Draft202012Validator:
    made = schema(shape)
    Draft202012Validator.check_schema(made)
    return Draft202012Validator(made)


def test_every_verb_with_json_is_tested() -> None:
    assert CALLS.keys() == PRINTS.keys() == VERBS.keys()


def test_schema_finds_missing_unknown_and_wrong_values() -> None:
    shape = {"a": "integer", "b?": "text?", "c": [({"*": "number"}, "null")]}
    check = validator(shape)
    assert check.is_valid({"a": 1, "c": [{"x": 1.5}, None]})
    assert check.is_valid({"a": 1, "b": None, "c": []})
    for wrong in ({"c": []}, {"a": 1, "c": [], "d": 1}, {"a": "1", "c": []}, {"a": 1, "c": [{"x": "y"}]}):
        assert not check.is_valid(wrong)
    assert described(shape).splitlines() == ["{", "  a: integer", "  b?: text?", "  c: [{*: number} or null, ...]", "}"]


class TestMetrics:
    def test_strict_parser_reads_the_metrics(self, home: Home) -> None:
        text = home.call("status", "--prometheus", code=0).stdout
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert list(families) == [family.name for family in prometheus.FAMILIES]
        assert all(family.type == "gauge" and family.documentation for family in families.values())
        totals = families["scheduler_host_memory_total_bytes"].samples
        assert [sample.value > 0 for sample in totals] == [True]
        states = {(s.labels["run"], s.labels["state"]): s.value for s in families["scheduler_run_tasks"].samples}
        assert states["1", "failed"] == 1.0

    def test_samples_have_documented_labels_and_are_unique(self, home: Home) -> None:
        text = home.call("status", "--prometheus", code=0).stdout
        documented = {family.name: family.labels for family in prometheus.FAMILIES}
        for family in text_string_to_metric_families(text):
            seen = [tuple(sorted(sample.labels.items())) for sample in family.samples]
            assert len(seen) == len(set(seen))
            for sample in family.samples:
                assert ", ".join(sample.labels) == documented[family.name]
                assert math.isfinite(sample.value)

    def test_names_with_control_characters_cannot_break_the_metrics(self) -> None:
        run = {
            "number": 1,
            "name": 'a"b\\c',
            "file": "x\ny --token abc",
            "alive": True,
            "over": False,
            "states": {"waiting": 2},
            "accepted": 1.5,
            "expected": {"end": {"early": 1.0, "likely": 2.5, "late": 3.0}},
        }
        host = {"total": 1, "available": 1}
        facts = {"host": host, "gpus": [], "leases": [], "waiting": [], "runs": [run]}
        families = {f.name: f for f in text_string_to_metric_families(prometheus.text(facts))}
        (sample,) = families["scheduler_run_alive"].samples
        assert (sample.labels["name"], sample.value) == ('a"b\\c', 1.0)
        assert "abc" not in sample.labels["file"]
        ends = {s.labels["bound"]: s.value for s in families["scheduler_run_expected_end_timestamp_seconds"].samples}
        assert ends == {"early": 1.0, "likely": 2.5, "late": 3.0}


def test_reference_describes_every_shape() -> None:
    folder = Path(__file__).parents[3] / "docs/reference"
    shapes, metrics = (folder / "json.md").read_text(), (folder / "metrics.md").read_text()
    for verb in PRINTS:
        assert f"## scheduler {verb} --json" in shapes
    for family in prometheus.FAMILIES:
        assert f"`{family.name}`" in metrics
