"""The head's view of its nodes, whose agents are small programs over real pipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from scheduler.cluster import fence, forms, head
from scheduler.cluster.devices import ClusterDevices
from scheduler.cluster.engine import ClusterLeases
from scheduler.cluster.forms import FACTS, NodeFacts
from scheduler.cluster.head import Nodes
from scheduler.cluster.link import NodeName
from scheduler.cluster.node import Node, take_report
from scheduler.cluster.node_sources import NodeSources
from scheduler.core.events import Exited
from scheduler.core.model import HOST, Device, DeviceBudget, EstimateSource, Outcome, Placement, Purpose, WaitTicket
from scheduler.errors import UsageError
from scheduler.runtime.paths import RunPaths
from scheduler.units import GIB
from scheduler.values import replace
from tests.support.waiting import wait_until

BUDGET = DeviceBudget(Device(HOST, HOST, 24 * GIB, 4.0), 20 * GIB)
PLACED = Placement(1, 1, Purpose.RUN, {HOST: GIB}, 1.0, EstimateSource.DECLARED, node="n1")
REPORT = {
    "view": 1, "clock": 1.0, "budgets": [forms.BUDGET.to_dict(BUDGET)], "leases": [], "waiters": [],
    "closed": {},
}  # fmt: skip


def program(
    *, machine: str = "m1", after_join: list[Any], silent: bool = False, lacks: list[str] | None = None
) -> list[str]:
    """Return an agent that greets, says what it lacks when asked, and tells some messages once the run begins."""
    facts = FACTS.to_dict(NodeFacts("h", machine, "b", 0, 1, "", "process", (BUDGET,)))
    script = f"""
import json, sys, time
print({json.dumps(json.dumps({"here": facts}))}, flush=True)
for line in sys.stdin:
    if "compare" in json.loads(line):
        print({json.dumps(json.dumps({"lacks": lacks or []}))}, flush=True)
    if "join" in json.loads(line):
        for message in {json.dumps([json.dumps(one) for one in after_join])}:
            print(message, flush=True)
        if {silent}:
            time.sleep(60)
"""
    return [sys.executable, "-S", "-c", script]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Nodes]]:
    """Yield a function that makes nodes, each with its program."""
    made: list[Nodes] = []

    def make(**programs: list[str]) -> Nodes:
        monkeypatch.setattr(NodeName, "argv", property(lambda self: programs[self.name]))
        made.append(Nodes(NodeSources([f"ssh:{','.join(programs)}"]), {}))
        return made[-1]

    yield make
    for one in made:
        one.close(over=False)


def test_an_end_that_is_told_twice_is_heard_once(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    end = {"event": forms.event_to_dict(Exited(1, 1, Outcome.SUCCEEDED, 0))}
    made = nodes(n1=program(after_join=[end, end, {"report": REPORT}]))
    made.connect()
    made.join(RunPaths(tmp_path, 1), {})
    made.adopt(PLACED)
    heard: list[Any] = []
    wait_until(lambda: heard.extend(made.collect()) or made.nodes["n1"].view, 10)
    assert heard == [Exited(1, 1, Outcome.SUCCEEDED, 0)]


def test_a_node_that_says_nothing_is_away_and_its_attempts_stay_its_own(
    nodes: Callable[..., Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "SILENCE", 0.2)
    made = nodes(n1=program(after_join=[{"report": REPORT}], silent=True))
    made.connect()
    made.join(RunPaths(tmp_path, 1), {})
    made.adopt(PLACED)
    node = made.nodes["n1"]
    wait_until(lambda: made.collect() or node.view, 10)
    assert not node.away
    wait_until(lambda: made.collect() or node.away, 10)
    assert "not heard" in node.away
    assert list(node.living) == [(1, 1)]


def test_attempts_behind_a_fence_are_lost_after_the_fence_their_grace_and_a_margin(
    nodes: Callable[..., Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = nodes(n1=program(after_join=[{"report": REPORT}]))
    made.connect()
    made.join(RunPaths(tmp_path, 1), {})
    made._fence, made.grace_of = 8.0, lambda _: 2.0
    made.adopt(PLACED)
    node = made.nodes["n1"]
    wait_until(lambda: made.collect() or node.view, 10)
    made._lose(node, "cut")
    node.due = inf  # no new link can be made
    assert made.sentences()[-1].endswith("nothing starts there until it answers; 1 task there must end within 8.0s")
    began = node.reported
    node.reported = began - 8.0 - 2.0 - fence.MARGIN + 5.0
    assert made.collect() == []
    node.reported -= 5.0
    (lost,) = made.collect()
    assert (lost.outcome, lost.node_lost) == (Outcome.LOST, True)
    assert not node.living
    assert "1 task of it" in made.sentences()[-1]


def test_nodes_that_serve_a_run_say_what_they_lack_for_new_tasks(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    made = nodes(n1=program(after_join=[{"report": REPORT}], lacks=["there is no file x"]))
    made.connect()
    assert made.compare({}) == {"n1": ["there is no file x"]}
    made.join(RunPaths(tmp_path, 1), {})
    made.await_reports()
    assert made.nodes["n1"].view
    assert made.compare({"directories": ["/x"]}) == {"n1": ["there is no file x"]}
    assert not made.nodes["n1"].away


@pytest.mark.parametrize("lacks", [[], ["there is no file x"]])
def test_a_node_that_answers_first_during_a_run_joins_it_if_it_has_what_waiting_tasks_need(
    nodes: Callable[..., Nodes], tmp_path: Path, lacks: list[str]
) -> None:
    here = program(after_join=[{"report": REPORT}])
    made = nodes(n1=here, n2=["false"])
    made.connect()
    made.needs = lambda: {"scripts": {"x": "1"}}
    made.join(RunPaths(tmp_path, 1), {})
    node = made.nodes["n2"]
    node.named = made.nodes["n1"].named  # it can be reached from now on, as another machine
    node.due = 0.0
    asked = program(machine="m2", after_join=[{"report": REPORT}], lacks=lacks)
    here[:] = asked
    wait_until(lambda: made.collect() or node.view or "no file" in node.why_away, 10)
    assert node.joined == (not lacks)


def test_two_names_of_one_machine_are_refused(nodes: Callable[..., Nodes]) -> None:
    made = nodes(n1=program(after_join=[]), n2=program(after_join=[]))
    with pytest.raises(Exception, match="n1 and n2 are the same machine"):
        made.connect()


@pytest.mark.parametrize("said", ["ray:1", "ssh:", "ssh:a,", "ssh:a b", "local:x", "gpu1"])
def test_a_word_for_nodes_that_makes_no_sense_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match="--on"):
        NodeSources([said])


def test_a_file_of_an_attempt_that_is_not_expected_there_is_not_written(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    piece = {"file": ["../../x", 1, "log", 0, "eA=="]}
    made = nodes(n1=program(after_join=[piece, {"file": [2, 1, "log", 0, "eA=="]}, {"report": REPORT}]))
    made.connect()
    made.join(RunPaths(tmp_path / "run", 1), {})
    wait_until(lambda: made.collect() or made.nodes["n1"].view, 10)
    assert not list(tmp_path.rglob("*.log"))


def test_a_device_of_which_a_node_reports_nothing_new_stays_the_same_object(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    gpu = DeviceBudget(Device("GPU-1", "GPU 0", 24 * GIB, 1.0, 0), 24 * GIB)
    changes = forms.ReportChanges()
    both, less = [BUDGET, gpu], [replace(BUDGET, free=GIB), gpu]
    reports = [{"view": view, "clock": 1.0, **changes.of(view, said)} for view, said in ((1, both), (2, less))]
    made = nodes(n1=program(after_join=[{"report": reports[0]}]))
    made.connect()
    made.join(RunPaths(tmp_path, 1), {})
    node, devices = made.nodes["n1"], ClusterDevices(made)
    wait_until(lambda: made.collect() or node.view, 10)
    host, first = devices.snapshot()
    take_report(node, reports[1])
    host_then, then = devices.snapshot()
    assert (host.free, host_then.free) == (20 * GIB, GIB)
    assert then is first
    node.reported -= 5
    assert [round(budget.age) for budget in devices.snapshot()] == [5, 5]
    assert devices.labels == {"host@n1": "n1 host", "GPU-1": "n1 GPU 0"}


def test_a_ticket_that_only_waits_longer_is_sent_once_a_second(
    nodes: Callable[..., Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = nodes(n1=program(after_join=[{"report": REPORT}]))
    made.connect()
    made.join(RunPaths(tmp_path, 1), {})
    node, leases = made.nodes["n1"], ClusterLeases(made, "t")
    wait_until(lambda: made.collect() or node.view, 10)
    sent: list[Any] = []
    monkeypatch.setattr(Node, "order", lambda _, message, **__: sent.append(message["ticket"]))
    for waited in (1.0, 2.0):
        leases.wait(WaitTicket(1, ("host@n1",), (), GIB, waited=waited))
    leases.wait(WaitTicket(2, ("host@n1",), (), GIB))
    leases.leave()
    leases.leave()
    assert [one and one["task"] for one in sent] == [1, 2, None]
