"""A run over the real ssh and the real sshd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import killing
from tests.support.standin import sshd
from tests.support.standin.nodes import MISSING, Lab, can_be_made
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not can_be_made(), reason=MISSING),
    pytest.mark.skipif(not (sshd.SSHD and sshd.SSH), reason=sshd.MISSING),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, "n1", gpus=2)
    try:
        server = sshd.serve(made, "n1")
        yield made
    finally:
        made.end()
    server.wait(10)


def test_a_killed_connection_of_sshd_and_a_killed_scheduler_lose_no_task_and_start_none_twice(lab: Lab) -> None:
    lab.once(20, 0.5)
    with lab.going("run", "jobs.csv", *lab.on, "--plain", "--max-per-device", "2", code=None):
        wait_until(lambda: len(lab.told("begin")) >= 3, 20)
        for session in sshd.sessions(lab, "n1"):
            killing.kill(session)
        wait_until(lambda: "n1 has answered again" in lab.log(), 15)
        wait_until(lambda: len(lab.told("end")) >= 6, 20)
        killing.kill(lab.scheduler())
    lab.call("resume", "--plain", code=0)
    lab.check_once(20)
    wait_until(lambda: not lab.nodes["n1"].agents(), 8)  # those of dead links stay for a while
    wait_until(lambda: not sshd.sessions(lab, "n1"), 5)


def test_a_key_that_sshd_refuses_is_named_with_the_words_of_ssh(lab: Lab) -> None:
    lab.once(1)
    (lab.root / "sshd-n1" / "user.pub").write_text("")
    said = lab.call("run", "jobs.csv", *lab.on, code=2).stderr
    assert "no node can be used: n1: " in said
    assert "Permission denied (publickey" in said
