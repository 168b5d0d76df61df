"""The daemons of a running run: silent ones, faulty ones, and their clients."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.core.model import EstimateSource, Placement, Purpose
from scheduler.core.ports import Watched
from scheduler.devices.mps.daemon import MpsHome
from scheduler.devices.mps.sharing import MpsGpu, MpsSharing
from tests.support.standin import real_mps
from tests.support.waiting import wait_until

STANDIN = Path(real_mps.__file__).with_name("mps_control.py")
UUID = "GPU-1e2d3c4b-aaaa-bbbb-cccc-1234567890ab"
GIB = 1 << 30


class Bench:
    """One GPU under MPS."""

    def __init__(self, root: Path) -> None:
        self.root = root
        program = root / "nvidia-cuda-mps-control"
        program.write_text(f"#!{sys.executable} -S\n" + STANDIN.read_text())
        program.chmod(0o755)
        self.home = MpsHome(root, UUID, str(program), {**os.environ, "STANDIN_MPS": str(root / "notes")})
        self.mps = MpsSharing({UUID: MpsGpu("GPU 0", self.home.control, self.home)})
        self.held = 0
        self.mps.begin()
        self.mps.serve(root, lambda key, uuid: self.held)

    @contextlib.contextmanager
    def client(self, pid: int = 0) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.connect(f"{self.home.pipes}/control")
            end.send(b"client %d" % (pid or os.getpid()))
            assert end.recv(64) == b"ok"
            yield end

    def is_closed(self) -> bool:
        self.mps.collect()
        return bool(self.mps.closed())

    def looks(self) -> Callable[[], bool]:
        """Return a function that tells whether a whole look was made since the call."""
        notes = (self.root / "notes").read_text().count("get_server_list")
        return lambda: (self.root / "notes").read_text().count("get_server_list") >= notes + 2


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("b"))
    yield made
    made.mps.close()
    assert made.home._members() == {}


def test_task_is_launched_with_daemon_share_and_limit(bench: Bench) -> None:
    placement = Placement(
        7, 1, Purpose.RUN, {UUID: 3 * GIB}, 1.0, EstimateSource.DECLARED, percentage=25, fence=3 * GIB
    )
    attended = bench.mps.attend(placement)
    assert attended.environ == {
        "CUDA_MPS_PIPE_DIRECTORY": str(bench.home.pipes),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUID}=3072M",
    }
    assert os.readlink(f"/proc/self/fd/{attended.kept_fd}").startswith(str(bench.home.users))
    assert attended.ending[-2:] == (bench.home.control.program, str(bench.home.pipes))


@pytest.mark.parametrize("old", [False, True])
def test_faulty_server_closes_its_gpu_until_its_clients_have_ended(bench: Bench, old: bool) -> None:
    if old:
        (bench.root / "old").touch()
    with bench.client() as one:
        wait_until(lambda: bench.mps.collect() or bench.mps._gpus[UUID].look)
        wait_until(bench.looks())
        wait_until(lambda: (bench.mps.collect(), bench.mps._gpus[UUID].look.clients)[1])  # type: ignore[union-attr]
        one.send(b"fault")
        assert one.recv(64) == b"719"
        bench.mps.suspect(UUID, "a fault")
        wait_until(bench.looks())
        assert bench.is_closed()
        assert bench.mps.closed() == {UUID: "a fault"}
    wait_until(lambda: not bench.is_closed())


def test_suspicion_without_a_fault_ends_at_the_next_look(bench: Bench) -> None:
    bench.mps.suspect(UUID, "a fault")
    assert bench.mps.closed() == {UUID: "a fault"}
    wait_until(lambda: not bench.is_closed())


@pytest.mark.slow
def test_silent_daemon_closes_its_gpu_and_is_not_replaced_at_once(bench: Bench) -> None:
    (daemon,) = bench.home._members()
    (bench.root / "hang").touch()
    bench.mps._poked.set()
    wait_until(bench.is_closed, 60)
    assert "did not answer within 5 s" in bench.mps.closed()[UUID]
    (bench.root / "hang").unlink()
    wait_until(lambda: not bench.is_closed(), 60)
    assert list(bench.home._members()) == [daemon]


def test_client_is_reported_once(bench: Bench) -> None:
    with subprocess.Popen([sys.executable, "-c", "import os, time; os.fork(); time.sleep(60)"]) as shim:
        task = wait_until(lambda: Path(f"/proc/{shim.pid}/task/{shim.pid}/children").read_text().split())[0]
        bench.mps.watch({(7, 1): Watched(shim.pid, reservation={UUID: GIB}, mps=True)}, {})
        with bench.client(int(task)):
            (sample,) = wait_until(bench.mps.collect)
        shim.kill()
        os.kill(int(task), 9)
    assert (sample.task, sample.attempt, sample.mps) == (7, 1, "client")
    bench.mps.watch({(7, 1): Watched(shim.pid, reservation={UUID: GIB}, mps=True)}, {})
    wait_until(bench.looks())
    assert bench.mps.collect() == []
    assert bench.mps.troubles() == []
