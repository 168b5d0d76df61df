"""Which Ray clusters are used, told by a stand-in of the package `ray` that the real bridge imports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.cluster import ray_cluster
from scheduler.cluster.ray_bridge import why_unusable
from scheduler.cluster.ray_cluster import RayCluster
from scheduler.errors import UsageError

RAY = """
import types
def init(**said): pass
def nodes(): return [{"NodeManagerHostname": "n1", "NodeID": "1", "Alive": True}]
def get_runtime_context(): return types.SimpleNamespace(gcs_address=open(__file__ + ".address").read())
"""


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield an address that takes connections, with the stand-in of Ray on the path and without a token."""
    (tmp_path / "ray.py").write_text(RAY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(("at", "insecure"), [("127.0.0.1:6379", False), ("192.0.2.2:6379", True)])
def test_a_cluster_without_a_token_is_used_on_loopback_or_where_it_is_said(
    listening: str, tmp_path: Path, at: str, *, insecure: bool
) -> None:
    (tmp_path / "ray.py.address").write_text(at)
    cluster = RayCluster(listening, insecure=insecure)
    cluster.connect()
    assert cluster.names() == ["n1"]
    cluster.close()


def test_a_cluster_without_a_token_is_refused_beyond_loopback(listening: str, tmp_path: Path) -> None:
    (tmp_path / "ray.py.address").write_text("192.0.2.2:6379")
    with pytest.raises(UsageError, match="takes orders from anyone who reaches it"):
        RayCluster(listening, insecure=False).connect()


def test_a_bridge_that_is_killed_while_it_connects_is_started_again(
    listening: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "AGAIN", 0.1)
    dies_once = """
import os
def init(**said):
    try:
        os.mkdir(__file__ + ".once")
    except FileExistsError:
        return
    os.kill(os.getpid(), 9)
"""
    (tmp_path / "ray.py").write_text(RAY.replace("def init(**said): pass", dies_once))
    (tmp_path / "ray.py.address").write_text("127.0.0.1:6379")
    cluster = RayCluster(listening, insecure=False)
    cluster.connect()
    assert cluster.names() == ["n1"]
    cluster.close()


MISMATCH = """\
Version mismatch: The cluster was started with:
    Ray: 2.52.0
    Python: 3.11.7
This process on node 10.0.0.1 was started with:
    Ray: 2.60.0
    Python: 3.12.1
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (MISMATCH, "started with Ray 2.52.0 of Python 3.11.7, and "),
        (MISMATCH, "has Ray 2.60.0 of Python 3.12.1: install the same Ray here (pip install ray==2.52.0)"),
        ("Could not find any running Ray instance. Please specify", "no Ray cluster runs on this machine: start one"),
        ("\nsomething else\nand more", "RuntimeError: something else"),
    ],
)
def test_why_a_cluster_cannot_be_used_is_said_with_the_cure(said: str, words: str) -> None:
    assert words in why_unusable(RuntimeError(said))


def test_ray_that_is_not_installed_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"not installed here: pip install 'gpu-batch-scheduler\[ray\]'"):
        RayCluster("auto", insecure=False).connect()
