"""Whoever knows what users are called does not answer: nobody has to wait for that with all others behind him."""

from __future__ import annotations

from pathlib import Path

from tests.faults import fault
from tests.system.mounts import needs_mounts, run_apart

SILENT = """\
import os, subprocess, sys
from pathlib import Path
from scheduler.people import user_name_soon
from scheduler.store import closures
from scheduler.store.leases import Ledger
place, pipe = Path(sys.argv[1]), sys.argv[2]
closures.close(place, [closures.Closure("GPU-1", 0, user=12345)])
os.mkfifo(pipe)
subprocess.run(["mount", "--bind", pipe, "/etc/passwd"], check=True)
with Ledger(place, "1", "boot").deciding() as desk:
    print(dict(desk.house().closed))
os.close(os.open(pipe, os.O_WRONLY))
subprocess.run(["umount", "--lazy", "/etc/passwd"], check=True)
print(user_name_soon(0), user_name_soon(12345))
"""
"""Whoever reads the list of users opens a pipe, which waits until somebody opens its other end."""


@fault(55)
@needs_mounts
def test_a_silent_directory_of_users_does_not_stop_who_decides(tmp_path: Path) -> None:
    place = tmp_path / "leases"
    place.mkdir()
    place.chmod(0o1777)
    told = run_apart(SILENT, place, tmp_path / "pipe", timeout=60)
    assert told == "{'GPU-1': 'it is reserved for 12345'}\nroot 12345\n"
