"""An agent with the leases of a real directory, over real pipes, and an engine that only notes its orders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.cluster import agent as agent_module
from scheduler.cluster import forms
from scheduler.cluster.agent import Agent, NodeRun
from scheduler.cluster.frames import Channel, Message
from scheduler.core.model import HOST, Device, DeviceBudget, EstimateSource, Placement, Purpose
from scheduler.core.ports import Launch, Sample
from scheduler.core.site_policy import Caps, SitePolicy
from scheduler.runtime.paths import RunPaths
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.units import GIB
from tests.support.waiting import wait_until

WANTED = Placement(1, 1, Purpose.RUN, {HOST: GIB}, 1.0, EstimateSource.DECLARED)


class Quiet:
    """Devices, engine and samplers of a node on which nothing happens."""

    def __init__(self) -> None:
        self.launched: list[Launch] = []
        self.free, self.news = 20 * GIB, list[Any]()
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        return (DeviceBudget(Device(HOST, HOST, 24 * GIB, 4.0), self.free),)

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> dict[str, str]:
        return {"NUMBERS": str(numbers)}

    def cuda_numbers(self, placement: Placement) -> list[int]:
        return []

    def launch(self, order: Launch) -> None:
        os.close(order.lease_fd)
        self.launched.append(order)

    def collect(self) -> list[Any]:
        news, self.news = self.news, []
        return news

    def troubles(self) -> list[str]:
        return []

    def watch(self, *_: object) -> None:
        """Sample nothing."""

    def used_by(self, shim: int, whose: str = "") -> dict[str, int]:
        return {}

    def has_ended(self, task: int, attempt: int) -> bool:
        return False

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Bench:
    """An agent and the head's end of its link."""

    def __init__(self, root: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.fds = [*ours, *theirs]
        self.head, channel = Channel(theirs[0], ours[1]), Channel(ours[0], theirs[1])
        self.registry = FileLeaseRegistry(root / "leases", "1-aa", "this boot")
        self.other = FileLeaseRegistry(root / "leases", "2-bb", "this boot")
        self.node = node = Quiet()
        places: Any = RunPaths(root / "guest", 0)
        parts: Any = node
        guest = NodeRun(
            parts,
            parts,
            self.registry,
            parts,
            [],
            places,
            str(places.root),
            "/head",
            node.close,
            node.close,
            lambda said: [str(said)],
            lambda path: False,
        )
        self.agent = Agent(channel, guest)
        self.messages: list[Message] = []

    def hear(self, name: str) -> Any:
        """Return the next message with this name."""

        def heard() -> Any:
            self.agent.serve()
            self.messages += self.head.receive()
            found = [message for message in self.messages if name in message]
            self.messages = [message for message in self.messages if name not in message]
            return found

        found = [message[name] for message in wait_until(heard, 5)]
        return {key: one for said in found for key, one in said.items()} if name == "report" else found[-1]

    def take(self, view: int, *placements: Placement) -> Any:
        """Order reservations by a view, and return the answer."""
        said = [forms.event_to_dict(placement) for placement in placements]
        self.head.send({"take": {"number": 1, "view": view, "placements": said}})
        return self.hear("took")

    def reserve(self, placement: Placement) -> int:
        """Reserve something as another scheduler; return the descriptor that holds the lease."""
        with self.other.deciding() as transaction:
            return transaction.take(placement).fd

    def close(self) -> None:
        self.registry.close()
        self.other.close()
        self.node.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_an_agent_takes_what_was_decided_by_its_report_and_gives_the_variables_of_its_node(bench: Bench) -> None:
    view = bench.hear("report")["view"]
    took = bench.take(view, WANTED, replace(WANTED, task=2))
    assert not took["why"]
    assert [(task, attempt) for task, attempt, *_ in took["leases"]] == [(1, 1), (2, 1)]
    path, _, plain, numbered, _ = took["leases"][0][2:]
    assert os.path.exists(path)
    assert (plain, numbered) == ({"NUMBERS": "False"}, {"NUMBERS": "True"})


def test_an_agent_takes_nothing_once_another_scheduler_has_reserved_something(bench: Bench) -> None:
    view = bench.hear("report")["view"]
    held = bench.reserve(WANTED)
    took = bench.take(view, replace(WANTED, task=2))
    assert took["leases"] == []
    assert "another scheduler has reserved something" in took["why"]
    report = bench.hear("report")
    assert [lease["reserved"] for lease in report["leases"]] == [{HOST: GIB}]
    assert not bench.take(report["view"], replace(WANTED, task=2))["why"]
    os.close(held)


def test_an_agent_takes_what_was_decided_although_another_lease_has_ended_since(bench: Bench) -> None:
    held = bench.reserve(WANTED)
    view = bench.hear("report")["view"]
    os.close(held)
    assert not bench.take(view, replace(WANTED, task=2))["why"]


def test_a_reservation_without_a_launch_is_given_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "KEPT", 0.05)
    took = bench.take(bench.hear("report")["view"], WANTED)
    path = took["leases"][0][2]

    def given_back() -> bool:
        bench.agent.serve()
        return not os.path.exists(path)

    wait_until(given_back, 5)
    order = Launch(1, 1, Purpose.RUN, ("true",), "/", {})
    bench.head.send({"launch": forms.LAUNCH.to_dict(order)})
    kind, said = bench.hear("event")
    assert (kind, said["outcome"]) == ("exited", "unstarted")
    assert not bench.node.launched


def test_a_launch_gets_the_paths_of_the_node_and_the_lease_that_was_taken(bench: Bench) -> None:
    path = bench.take(bench.hear("report")["view"], WANTED)["leases"][0][2]
    env = {"SCHEDULER_RESULT": "/head/tasks/1/.result.1", "OTHER": "/head/tasks/1"}
    order = Launch(1, 1, Purpose.RUN, ("true",), "/", env, stderr="/head/tasks/1/1.err")
    bench.head.send({"launch": forms.LAUNCH.to_dict(order)})
    bench.hear("report")
    (launched,) = bench.node.launched
    tasks = str(RunPaths(Path(path).parent.parent / "guest", 0).tasks)
    assert launched.lease == path
    assert launched.env == {"SCHEDULER_RESULT": f"{tasks}/1/.result.1", "OTHER": "/head/tasks/1"}
    assert launched.stderr == f"{tasks}/1/1.err"


def test_an_agent_takes_nothing_above_the_quota_of_its_machine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SitePolicy(Caps(tasks=1, source="machine.toml"))
    monkeypatch.setattr(FileLeaseRegistry, "house", lambda _: policy)
    took = bench.take(bench.hear("report")["view"], WANTED, replace(WANTED, task=2))
    assert [task for task, *_ in took["leases"]] == [1]
    assert took["why"] == "the quota of tasks for one user (machine.toml) is used up"


def test_a_task_that_exceeds_a_quota_by_itself_is_named_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SitePolicy(Caps(host_memory=GIB // 2, source="machine.toml"))
    monkeypatch.setattr(FileLeaseRegistry, "house", lambda _: policy)
    for _ in range(2):
        assert not bench.take(bench.hear("report")["view"], replace(WANTED, task=7))["leases"]
    said = [message["trouble"] for message in bench.messages if "trouble" in message]
    (sentence,) = said
    assert sentence.startswith("task 7 alone exceeds the quota of RAM for one user (machine.toml), so it never starts")


def test_a_report_offers_no_more_than_the_quota_of_the_machine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SitePolicy(Caps(host_memory=2 * GIB, source="machine.toml"))
    monkeypatch.setattr(FileLeaseRegistry, "house", lambda _: policy)
    assert [budget["cap"] for budget in bench.hear("report")["budgets"]] == [2 * GIB]


def test_a_device_that_was_closed_since_the_report_takes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    view = bench.hear("report")["view"]
    monkeypatch.setattr(FileLeaseRegistry, "house", lambda _: SitePolicy(closed={HOST: "kept for ben"}))
    assert bench.take(view, WANTED)["why"] == "a device was closed"
    assert bench.hear("report")["closed"] == {HOST: "kept for ben"}


def test_a_call_whose_arguments_did_not_arrive_ends_as_one_that_never_started(bench: Bench) -> None:
    view = bench.hear("report")["view"]
    bench.take(view, WANTED, replace(WANTED, task=2))
    bench.head.send({"given": ["2.call", 0, 1, "eA=="]})
    for task in (1, 2):
        argv = ("python", "/head/code/l.py", f"/head/given/{task}.call@0")
        bench.head.send({"launch": forms.LAUNCH.to_dict(Launch(task, 1, Purpose.RUN, argv, "/", {}))})
    kind, said = bench.hear("event")
    assert (kind, said["task"], said["outcome"]) == ("exited", 1, "unstarted")
    root = bench.agent._guest.root
    assert [order.argv for order in bench.node.launched] == [("python", f"{root}/code/l.py", f"{root}/given/2.call@0")]


def test_an_agent_tells_what_is_free_before_samples_that_are_older(bench: Bench) -> None:
    bench.hear("report")
    bench.node.free, bench.node.news = 10 * GIB, [Sample(1, 1, {HOST: 10 * GIB}, {HOST: 10 * GIB})]
    told: list[str] = []

    def sampled() -> bool:
        bench.agent.serve()
        for message in bench.head.receive():
            ((name, said),) = message.items()
            told.append(f"{said['budgets'][0]['free'] >> 30} GiB" if said.get("budgets") else name)
        return "sample" in told

    wait_until(sampled, 5)
    assert "10 GiB" in told[: told.index("sample")]
