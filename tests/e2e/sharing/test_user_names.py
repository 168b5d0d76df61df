"""A directory of users that does not answer: no scheduler waits for it with the mutex held."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import fault
from tests.support.mounts import needs_mounts, run_apart

SILENT = """\
import os, subprocess, sys
from pathlib import Path
from scheduler.runtime.users import user_name_soon
from scheduler.store.machine import device_reservations
from scheduler.store.machine.leases import FileLeaseRegistry
place, pipe = Path(sys.argv[1]), sys.argv[2]
device_reservations.close(place, [device_reservations.DeviceReservation("GPU-1", 0, user=12345)])
os.mkfifo(pipe)
subprocess.run(["mount", "--bind", pipe, "/etc/passwd"], check=True)
with FileLeaseRegistry(place, "1", "boot").deciding() as transaction:
    print(dict(transaction.house().closed))
os.close(os.open(pipe, os.O_WRONLY))
subprocess.run(["umount", "--lazy", "/etc/passwd"], check=True)
print(user_name_soon(0), user_name_soon(12345))
"""
"""A script in which a reader of the list of users opens a pipe, and waits for its other end."""


@fault(55)
@needs_mounts
def test_a_silent_directory_of_users_does_not_stop_a_decision(tmp_path: Path) -> None:
    place = tmp_path / "leases"
    place.mkdir()
    place.chmod(0o1777)
    told = run_apart(SILENT, place, tmp_path / "pipe", timeout=60)
    assert told == "{'GPU-1': 'it is reserved for 12345'}\nroot 12345\n"
