"""A home on a mounted network file system: the place of the state."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.mounts import folders, needs_mounts, run_apart

BEGUN = """
import json, os, subprocess, sys
from pathlib import Path
from tests.support.killing import Home

root, far = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/var/tmp"], check=True)
serve = [sys.executable, "-m", "tests.support.standin.sshfs", str(far)]
with subprocess.Popen(serve, stdout=subprocess.PIPE) as server:
    assert server.stdout.readline() == b"mounted\\n"
    home = Home(root)
    home.env["HOME"] = str(far)
    del home.env["SCHEDULER_STATE"]
    home.env.pop("XDG_STATE_HOME", None)
    home.commands("sh -c 'exit 3'")
"""
RUN = (
    BEGUN
    + """
    ran = home.call("run", "jobs.csv", "--devices", "host", "--plain")
    again = home.call("results", "r1", "--json")
    journals = [str(path) for path in Path("/var/tmp").rglob("journal.db")]
    (task,) = json.loads(again.stdout)["tasks"]
    print(json.dumps([ran.returncode, ran.stdout + ran.stderr, task["exit_code"], journals]))
    subprocess.run(["umount", far], check=True)
"""
)
pytestmark = [
    pytest.mark.slow,
    needs_mounts,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs FUSE"),
]


@fault(26)
def test_the_state_of_a_network_home_is_kept_on_a_local_disk_with_a_reason(tmp_path: Path) -> None:
    code, said, exit_code, journals = json.loads(run_apart(RUN, *folders(tmp_path, "root", "far")))
    assert (code, exit_code) == (1, 3)
    assert "is on a network file system (fuse.sshfs)" in " ".join(said.split())
    assert [path.startswith(f"/var/tmp/gpu-batch-scheduler-{os.getuid()}/") for path in journals] == [True]


SQUATTED = (
    BEGUN
    + """
    mine = Path(f"/var/tmp/gpu-batch-scheduler-{os.getuid()}")
    mine.mkdir(mode=0o777)
    os.chown(mine, 61_002, 61_002)
    ran = home.call("run", "jobs.csv", "--devices", "host", "--plain")
    print(json.dumps([ran.returncode, ran.stderr, os.listdir(mine)]))
    subprocess.run(["umount", far], check=True)
"""
)


@fault(51)
def test_a_folder_for_code_that_another_user_made_is_not_used(tmp_path: Path) -> None:
    """The maker of the folder could replace the files in it, above all the code that is run."""
    code, said, made = json.loads(run_apart(SQUATTED, *folders(tmp_path, "root", "far")))
    assert (code, made) == (1, [])
    assert f"/var/tmp/gpu-batch-scheduler-{os.getuid()} belongs to user 61002, not to you" in said
