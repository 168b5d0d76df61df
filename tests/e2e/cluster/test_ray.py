"""Runs on the nodes of a Ray cluster, with the real Ray on stand-in machines. The tests share one cluster, in order."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator

import pytest

from tests.support import killing
from tests.support.standin import calls, nodes, ray_nodes
from tests.support.standin.box import build
from tests.support.standin.nodes import Lab
from tests.support.standin.ray_nodes import RayNodes
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(not nodes.can_be_made(), reason=nodes.MISSING),
    pytest.mark.skipif(not ray_nodes.is_here(), reason=ray_nodes.MISSING),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, RayNodes]]:
    """Yield a head, and a Ray cluster of two nodes with two GPUs each; a third one can join it."""
    lab = Lab(tmp_path_factory.mktemp("lab"), "n1", "n2", "n3", gpus=2)
    with contextlib.closing(RayNodes(lab, late="n3")) as made:
        lab.env = {**lab.env, **made.env}
        yield lab, made
    lab.end()


@pytest.fixture
def lab(cluster: tuple[Lab, RayNodes]) -> Lab:
    """Return the head, without the runs and the notes of earlier tests."""
    lab, _ = cluster
    shutil.rmtree(lab.state)
    lab.state.mkdir(mode=0o700)
    (lab.root / "told").unlink(missing_ok=True)
    shutil.rmtree(lab.root / "lives", ignore_errors=True)
    return lab


@pytest.fixture
def ray(cluster: tuple[Lab, RayNodes]) -> RayNodes:
    """Return the cluster."""
    return cluster[1]


def on(lab: Lab) -> set[str]:
    """Return the machines on which tasks have begun."""
    return {line.split()[1] for line in lab.told("begin")}


def test_a_node_that_joins_the_cluster_joins_the_run_and_nothing_stays_there(lab: Lab, ray: RayNodes) -> None:
    lab.once(40, 1.0)
    with lab.going("run", "jobs.csv", "--on", f"ray://{ray.address}", "--plain"):
        wait_until(lambda: on(lab) == {"n1", "n2"}, 20)
        ray.start_node(lab.nodes["n3"])
    lab.check_once(40)
    assert on(lab) == {"n1", "n2", "n3"}
    for node in lab.nodes.values():
        assert not node.agents()
        assert not node.processes("ray::Carrier")


def test_tasks_run_on_while_the_bridge_and_the_raylet_of_a_node_are_killed(lab: Lab, ray: RayNodes) -> None:
    lab.once(18, 1.0)
    with lab.going("run", "jobs.csv", "--on", f"ray://{ray.address}", "--plain"):
        wait_until(lambda: "n2" in on(lab), 20)
        (bridge,) = [pid for pid in killing.processes() if "cluster.ray_bridge" in killing.command_line(pid)]
        killing.kill(bridge)
        ray.kill("raylet/raylet", lab.nodes["n2"])
        ray.start_node(lab.nodes["n2"])
    lab.check_once(18)


def test_a_killed_head_is_resumed_on_the_cluster(lab: Lab, ray: RayNodes) -> None:
    lab.once(12, 1.0)
    with lab.going("run", "jobs.csv", "--on", f"ray://{ray.address}", "--plain", code=None):
        wait_until(lambda: len(lab.told("begin")) >= 3, 20)
        killing.kill(lab.scheduler())
    lab.call("resume", "--plain", code=0)
    lab.check_once(12)


def test_calls_of_an_executor_are_made_on_the_cluster(lab: Lab, ray: RayNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(lab, "command", [sys.executable])
    (lab.root / "program.py").write_text(calls.PROGRAM)
    assert lab.call("program.py", f"ray://{ray.address}", code=0).stdout == calls.SAID


OTHER_RAY = """\
import sys, types
sys.modules["ray._version"] = types.SimpleNamespace(version="2.1.0", commit="")
"""


def test_a_cluster_that_cannot_be_used_is_refused_with_the_reason(lab: Lab, ray: RayNodes) -> None:
    lab.once(1)
    (lab.root / "other").mkdir()
    (lab.root / "other" / "sitecustomize.py").write_text(OTHER_RAY)
    other = {"PYTHONPATH": f"{lab.root / 'other'}:{killing.ROOT}"}
    for address, env, words in (
        ("ray://127.0.0.1:9", {}, "no Ray cluster answers there (Connection refused)"),
        (f"ray://{ray.address}", {"RAY_AUTH_TOKEN": "0" * 32}, "the cluster refuses this token"),
        (f"ray://{ray.address}", other, "has Ray 2.1.0 of Python 3."),
        (f"ray://{ray.address}", other, ": install the same Ray here (pip install ray==2."),
        (f"ray://{ray.address}", {"RAY_AUTH_MODE": "disabled"}, "the cluster refuses this token"),
        ("ray:x", {}, "write ray for the cluster of this machine, or ray://HOST:PORT"),
    ):
        told = lab.call("run", "jobs.csv", "--on", address, "--plain", code=2, env={**lab.env, **env})
        assert words in told.stderr
