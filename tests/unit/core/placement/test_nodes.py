"""Several nodes: a task is on one of them, each has RAM and cores of its own, and a silent one starts nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.events import decode, encode
from scheduler.core.model import HOST, DeviceBudget, Machine, Placement, host_of, on_node
from scheduler.core.placement import fit
from scheduler.core.placement.node_choice import NodeFault, fault_of_nodes
from scheduler.core.placement.preemption import _without
from scheduler.core.queue.fair_share import ticket_of
from scheduler.units import GIB
from tests.support.builders import (
    brain,
    decide,
    exited,
    gpu,
    host,
    lease_of,
    machine,
    node,
    peaked,
    placed,
    reasons,
    resized,
    started,
    tasks,
    tell,
    terms,
)

TWO_OF_TWO = (*node("a", gpu(0), gpu(1), host()), *node("b", gpu(0), gpu(1), host()))


def where(*budgets: DeviceBudget, of: object = None, **said: object) -> dict[int, tuple[str, ...]]:
    """Return the devices of each placement of a decision, by task, with the node first."""
    decision = decide(of, *budgets, **said)  # type: ignore[arg-type]
    return {one.task: (one.node, *one.reservation) for one in decision.placements}


def away(*budgets: DeviceBudget) -> list[DeviceBudget]:
    return [replace(one, away="node b has not answered for 4 s") for one in budgets]


def with_features(budgets: Sequence[DeviceBudget], *names: str) -> list[DeviceBudget]:
    return [replace(one, device=replace(one.device, features=names)) for one in budgets]


class TestOneNode:
    def test_task_that_asks_for_features_starts_only_where_its_node_has_all_of_them(self) -> None:
        one = with_features(node("a", gpu(0), host()), "big")
        both = with_features(node("b", gpu(0, free="4GiB"), host("8GiB", cores=1)), "nvlink", "big")
        rows = tasks(1, "2GiB", gpus=1, features="big,nvlink") + tasks(1, "2GiB", gpus=0, features="nvlink")
        assert where(*one, *both, of=brain(rows)) == {1: ("b", "GPU-b-0", HOST), 2: ("b", HOST)}
        assert reasons(brain(tasks(1, "2GiB", gpus=1, features="nvlink")), *one) == {1: "device"}

    def test_gpus_of_a_task_are_never_of_two_nodes(self) -> None:
        assert where(*TWO_OF_TWO, of=brain(tasks(3, "20GiB", gpus=2))) == {
            1: ("a", "GPU-a-0", "GPU-a-1", HOST),
            2: ("b", "GPU-b-0", "GPU-b-1", HOST),
        }

    def test_task_on_two_gpus_waits_while_each_node_has_one_free(self) -> None:
        b = brain(tasks(1, "20GiB", gpus=1) + tasks(1, "20GiB", gpus=1) + tasks(1, "20GiB", gpus=2))
        tell(b, on("a", placed(1, "20GiB", device="GPU-a-0")), on("b", placed(2, "20GiB", device="GPU-b-1")))
        assert reasons(b, *TWO_OF_TWO) == {3: "memory"}

    def test_task_with_more_gpus_than_any_node_has_names_the_largest_number(self) -> None:
        nodes = (*TWO_OF_TWO, *node("c", gpu(0), gpu(1), gpu(2)))
        refusal = decide(brain(tasks(1, "1GiB", gpus=4)), *nodes).refusals[0]
        assert (refusal.reason, refusal.wanted, refusal.total) == ("gpus", 4, 3)

    def test_task_without_gpus_starts_on_the_host_with_the_most_cores_left(self) -> None:
        nodes = (*node("a", host(cores=2)), *node("b", host(cores=8)))
        assert where(*nodes, of=brain(tasks(1, "1GiB", gpus=0))) == {1: ("b", HOST)}

    def test_ram_beside_gpus_is_that_of_their_node(self) -> None:
        nodes = (*node("a", gpu(0), host(free="1GiB")), *node("b", gpu(0, free="12GiB"), host()))
        assert where(*nodes, of=brain(tasks(1, "4GiB", host_memory="4GiB", gpus=1))) == {1: ("b", "GPU-b-0", HOST)}

    def test_ram_and_cores_of_one_node_do_not_limit_another(self) -> None:
        nodes = (*node("a", host("8GiB", cores=1)), *node("b", host("8GiB", cores=1)))
        assert where(*nodes, of=brain(tasks(3, "1GiB", gpus=0, cpus=1))) == {1: ("a", HOST), 2: ("b", HOST)}


class TestNodeOfARow:
    @pytest.mark.parametrize("said", [{"node": "b"}, {"device": "b:"}, {"node": "b,c"}])
    def test_task_starts_on_its_node_only(self, said: dict[str, str]) -> None:
        b = brain(tasks(3, "20GiB", gpus=1, **said))
        assert where(*TWO_OF_TWO, of=b) == {1: ("b", "GPU-b-0", HOST), 2: ("b", "GPU-b-1", HOST)}
        assert reasons(b, *TWO_OF_TWO)[3] in ("memory", "busy"), "the GPUs of the other node stay empty"

    @pytest.mark.parametrize("said", [{"node": "a"}, {"device": "a:host"}, {"device": "a:"}])
    def test_task_without_gpus_starts_on_the_host_of_its_node(self, said: dict[str, str]) -> None:
        nodes = (*node("a", host(cores=2)), *node("b", host(cores=8)))
        assert where(*nodes, of=brain(tasks(1, "1GiB", gpus=0, **said))) == {1: ("a", HOST)}

    def test_task_starts_on_one_device_of_a_node(self) -> None:
        assert where(*TWO_OF_TWO, of=brain(tasks(1, "20GiB", gpus=1, device="b:1"))) == {1: ("b", "GPU-b-1", HOST)}

    def test_task_bypassed_too_often_keeps_devices_of_its_node_only(self) -> None:
        waits, later = tasks(1, "20GiB", gpus=1, node="b"), tasks(1, "2GiB", gpus=1, priority=1, prefer="b:")
        theirs = replace(lease_of({"GPU-b-0": 14 * GIB}, {"GPU-b-0": 14 * GIB}), node="b")
        nodes = (*node("a", gpu(0), host()), *node("b", gpu(0, free="10GiB"), host()))
        free = where(*nodes, of=brain(waits + later, bypass_limit=50), leases=(theirs,))
        kept = where(*nodes, of=brain(waits + later, bypass_limit=0), leases=(theirs,))
        assert (free, kept) == ({2: ("b", "GPU-b-0", HOST)}, {2: ("a", "GPU-a-0", HOST)})

    def test_ticket_names_the_devices_of_its_node_only(self) -> None:
        theirs = [replace(lease_of({f"GPU-{name}-0": 24 * GIB}), node=name) for name in "ab"]
        nodes = (*node("a", gpu(0), host()), *node("b", gpu(0), host()))
        decision = decide(brain(tasks(1, "20GiB", gpus=1, node="b")), *nodes, leases=tuple(theirs))
        assert decision.wait is not None
        assert decision.wait.devices == ("GPU-b-0",)

    @pytest.mark.parametrize(
        ("said", "column", "text"),
        [
            ({"node": "z"}, "Node", "names the node 'z'; this run has a, b"),
            ({"node": "a,z", "gpus": 0}, "Node", "names the node 'z'; this run has a, b"),
            ({"gpus": 3}, "GPUs", "needs 3 GPUs on one node; the most on one node is 2"),
            ({"gpus": 2, "node": "b"}, "GPUs", "needs 2 GPUs on one node; the most on one node of b is 1"),
        ],
    )
    def test_nodes_that_cannot_be_are_named(self, said: dict[str, Any], column: str, text: str) -> None:
        devices = [one.device for one in (*node("a", gpu(0), gpu(1), host()), *node("b", gpu(0), host()))]
        assert fault_of_nodes(terms(**said), devices) == NodeFault(column, text)

    def test_node_of_a_run_on_one_machine_says_what_to_do(self) -> None:
        found = fault_of_nodes(terms(node="a"), [gpu(0).device])
        assert found == NodeFault("Node", "names the node 'a'; this run has this machine only: name nodes with --on")

    @pytest.mark.parametrize(
        ("said", "text"),
        [
            ("h100", "asks for 'h100', which no node has; they have big, nvlink"),
            ("big,nvlink", ""),
            ("nvlink", ""),
        ],
    )
    def test_features_that_no_node_has_are_named(self, said: str, text: str) -> None:
        devices = [one.device for one in (*with_features(node("a", gpu(0), host()), "big", "nvlink"), *TWO_OF_TWO[3:])]
        assert fault_of_nodes(terms(features=said), devices) == (NodeFault("Features", text) if text else None)
        both = fault_of_nodes(terms(features="big", node="b"), devices)
        assert both == NodeFault("Features", "no node of b has all of big")
        more = fault_of_nodes(terms(features="big", gpus=2), devices)
        assert more == NodeFault("GPUs", "needs 2 GPUs on one node; the most on one node with big is 1")

    def test_features_on_one_machine_say_what_to_do(self) -> None:
        found = fault_of_nodes(terms(features="a100"), [gpu(0).device])
        said = "asks for features of nodes; this run has this machine only: name nodes with --on"
        assert found == NodeFault("Features", said)

    def test_rows_that_fit_have_no_fault(self) -> None:
        devices = [one.device for one in TWO_OF_TWO]
        assert not any(fault_of_nodes(terms(node=said), devices) for said in ("", "a", "b,a"))

    def test_row_larger_than_its_node_never_fits(self) -> None:
        nodes = (*node("a", host("8GiB")), *node("b", host("64GiB")))
        never = fit.never_fits(terms(host_memory=16 * GIB, gpus=0, node="a"), nodes)
        assert never is not None
        assert never.total == 8 * GIB


class TestAccounting:
    def test_reservation_counts_on_the_host_of_its_node(self) -> None:
        nodes = (*node("a", host("8GiB", cores=8)), *node("b", host("8GiB", cores=4)))
        b = tell(brain(tasks(2, "6GiB", gpus=0)), on("a", placed(1, "6GiB")), started(1), peaked(1, "5GiB"))
        assert where(*nodes, of=b) == {2: ("b", HOST)}
        tell(b, resized(1, "1GiB"))
        assert where(*nodes, of=b) == {2: ("a", HOST)}, "the smaller reservation counts there, too"
        tell(b, exited(1))
        assert where(*nodes, of=b) == {2: ("a", HOST)}

    def test_lease_of_another_run_counts_on_its_node_only(self) -> None:
        nodes = (*node("a", host("8GiB", cores=8)), *node("b", host("8GiB", cores=4)))
        theirs = replace(lease_of({HOST: 7 * GIB}, load={HOST: 1.0}), node="a")
        assert where(*nodes, of=brain(tasks(1, "6GiB", gpus=0)), leases=(theirs,)) == {1: ("b", HOST)}

    def test_use_of_other_tasks_is_given_back_on_their_node(self) -> None:
        theirs = replace(lease_of({HOST: 7 * GIB}, {HOST: 6 * GIB}), node="b")
        nodes = (*node("a", host(free="1GiB")), *node("b", host(free="2GiB")))
        after = _without(machine(*nodes, leases=(theirs,)), [], [theirs])
        assert [budget.free for budget in after.budgets] == [GIB, 8 * GIB]

    def test_ticket_names_the_hosts_of_all_nodes(self) -> None:
        need = brain(tasks(1, "1GiB", gpus=0)).need(1, 0)
        assert ticket_of(1, need, (), ("host@a", "host@b")).devices == ("host@a", "host@b")


class TestSilentNode:
    def test_nothing_starts_on_a_silent_node(self) -> None:
        nodes = (*node("a", gpu(0), host()), *away(*node("b", gpu(0), gpu(1), host(cores=64))))
        assert where(*nodes, of=brain(tasks(2, "20GiB", gpus=1))) == {1: ("a", "GPU-a-0", HOST)}

    def test_task_waits_where_every_node_is_silent(self) -> None:
        nodes = away(*node("b", gpu(0), host()))
        decision = decide(brain(tasks(1, "20GiB", gpus=1)), *nodes)
        assert [(one.reason, one.text) for one in decision.refusals] == [
            ("silent-node", "node b has not answered for 4 s")
        ]
        assert not decision.impossible

    def test_silent_host_starts_no_task_of_the_host(self) -> None:
        assert reasons(brain(tasks(1, "1GiB", gpus=0)), *away(*node("b", host()))) == {1: "silent-node"}


def on(node_: str, placement: Placement) -> Placement:
    return replace(placement, node=node_)


class TestNames:
    @pytest.mark.parametrize(("node_", "key"), [("", "host"), ("n1", "host@n1")])
    def test_key_of_a_host(self, node_: str, key: str) -> None:
        assert host_of(node_) == key == on_node(HOST, node_)
        assert on_node("GPU-7", node_) == "GPU-7"

    def test_placement_keeps_its_node_in_the_journal(self) -> None:
        placement = on("n1", placed(1, "1GiB"))
        data = encode(placement)
        assert data["node"] == "n1"
        assert decode("placed", {**data, "task": 1, "attempt": 1}) == placement
        assert "node" not in encode(placed(1, "1GiB"))

    def test_devices_of_a_placement_by_the_keys_of_the_run(self) -> None:
        assert dict(on("n1", placed(1, "1GiB")).by_device) == {"host@n1": GIB}
        assert dict(placed(1, "1GiB").by_device) == {HOST: GIB}

    def test_machine_without_names_has_one_node(self) -> None:
        b = brain(tasks(1, "1GiB", gpus=1))
        view = b.capacity.look(Machine(0.0, (gpu(0), gpu(1), host())))
        assert (view.nodes.names, view.nodes.hosts, view.nodes.fewest_gpus) == (("",), {"": HOST}, 2)
