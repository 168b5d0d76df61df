"""The formats of files on disk, frozen: a change here needs a new number of the format."""

from __future__ import annotations

import json
import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from scheduler.app.run.options import RunOptions
from scheduler.core.events import FORMATS
from scheduler.core.leases import RoomCall
from scheduler.core.model import HOST, EstimateSource, Placement, Purpose, Terms, WaitTicket
from scheduler.core.placement.request import MemoryRequest, ResourceRequest
from scheduler.core.ports import Answer, Request
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.reporting.published_forecast import PublishedForecast, WaitingDemand
from scheduler.core.tasks.fields import RowForm, pack_terms
from scheduler.inputs.csv_reader import CsvMark
from scheduler.inputs.follow import FollowMark
from scheduler.runtime import shim
from scheduler.runtime.paths import RunPaths
from scheduler.runtime.settings import Settings
from scheduler.store.machine import device_reservations
from scheduler.store.machine.device_reservations import DeviceReservation
from scheduler.store.machine.lease_records import living, process_identity
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.store.profiles import ProfileStore
from scheduler.store.run import schema, shell_state
from scheduler.store.run.requests import RequestInbox, fetch, post
from scheduler.store.run.shell_state import ShellState

DATA = Path(__file__).parents[2] / "data"
GIB = 1 << 30


def journal_format() -> str:
    """Return the content of a journal as text: tables, events with their fields, options, settings."""
    tables = [" ".join(statement.split()) for statement in schema.CREATE]
    events = [f"{event.kind}: {' '.join(name for name, _ in names)}" for event, names in FORMATS.items()]
    facts = [f"{kind.__name__}: {' '.join(sorted(f.name for f in fields(kind)))}" for kind in (RunOptions, Settings)]
    return "\n".join([*tables, *events, *facts, ""])


def test_the_journal_has_format_8() -> None:
    assert schema.VERSION == 8
    assert journal_format() == (DATA / "journal-8.txt").read_text(encoding="utf-8")


def test_terms_and_forms_in_a_journal_are_frozen() -> None:
    assert json.loads(pack_terms(Terms(epochs=3, memory=GIB, priority=-1))) == {
        "epochs": 3, "memory": GIB, "priority": -1,
    }  # fmt: skip
    assert json.loads(RowForm(("Command", "Seed"), {"Env": "A=1"}).pack()) == {
        "columns": ["Command", "Seed"], "defaults": {"Env": "A=1"}, "append": "both",
    }  # fmt: skip


def test_profiles_have_format_3(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.db")
    store.learn(TaskClass("key", "a.py", probes=False), "host", Observation({HOST: GIB}, seconds=5.0), 1.0)
    text = store._db.execute(schema.GET_PROFILE, ("key",)).fetchone()[0]
    store.close()
    assert schema.PROFILES_VERSION == 3
    profile = json.loads(text)
    assert profile.pop("parts") == {HOST: {"full": [GIB], "lower": 0, "lower_by": "profile", "above": 0}}
    assert profile == {
        "epoch_seconds": 0.0, "whole_seconds": 5.0, "cores": 0.0, "busy": 0.0, "family": "", "slots": [],
        "relations": [],
    }  # fmt: skip


def test_files_of_requests_and_answers_are_frozen(tmp_path: Path) -> None:
    places = RunPaths(tmp_path, 1)
    inbox = RequestInbox(places)
    path = post(places, Request("set", (3, 4), {"priority": "1"}))
    assert json.loads(path.read_text()) == {"what": "set", "tasks": [3, 4], "changes": {"priority": "1"}}
    (request,) = inbox.collect()
    answers = [Answer((3,), True, "done", {"priority": 1})]
    inbox.answer(request, answers)
    assert json.loads(path.with_suffix(".answer").read_text()) == [
        {"tasks": [3], "done": True, "says": "done", "facts": {"priority": 1}}
    ]
    assert fetch(places, path) == answers
    inbox.close()


def test_the_shell_of_a_run_has_format_1(tmp_path: Path) -> None:
    path = tmp_path / "shell"
    shell_state.keep(path, ShellState({"A": "1", "A_TOKEN": "x"}, 0o22, {"RLIMIT_CORE": (0, -1)}))
    assert json.loads(path.read_text()) == {
        "format": 1, "environ": {"A": "1"}, "withheld": ["A_TOKEN"], "umask": 0o22, "limits": {"RLIMIT_CORE": [0, -1]},
    }  # fmt: skip


def test_marks_of_sources_in_a_journal_are_frozen() -> None:
    csv = CsvMark(1, 2, 3, 4, "digest", 5, 6, 7, ";")
    assert CsvMark.unpack(csv.pack()) == csv
    assert json.loads(csv.pack()) == {
        "offset": 1, "rows": 2, "lines": 3, "head": 4, "digest": "digest", "size": 5, "mtime_ns": 6, "inode": 7,
        "delimiter": ";",
    }  # fmt: skip
    followed = FollowMark(1, 2, 3, "digest", multiline=True)
    assert FollowMark.unpack(followed.pack()) == followed
    assert json.loads(followed.pack()) == {"inode": 1, "offset": 2, "lines": 3, "digest": "digest", "multiline": True}


def test_claims_and_exit_records_are_frozen() -> None:
    assert shim.Claim._fields == (
        "task", "attempt", "cookie", "shim", "shim_start", "pid", "start", "boot_id", "machine_id", "hostname",
        "fence", "group", "server", "server_start", "format",
    )  # fmt: skip
    assert shim.Record._fields == (
        "outcome", "code", "signal", "error", "pid", "start", "began", "ended", "seconds", "max_rss", "cpu_seconds",
        "leftovers", "oom_kills", "boot_id", "hindrance", "format",
    )  # fmt: skip


def record(path: Path) -> dict[str, Any]:
    """Return the only record in a directory."""
    (file,) = path.iterdir()
    return shim.unpack_block(file.read_bytes()) or {}


def test_leases_have_format_1(tmp_path: Path) -> None:
    registry = FileLeaseRegistry(tmp_path / "leases", "1-a", "a boot")
    with registry.deciding() as transaction:
        placement = Placement(7, 2, Purpose.RUN, {HOST: GIB}, 1.5, EstimateSource.DECLARED, alone=True, expected=9.0)
        os.close(transaction.take(placement).fd)
    said = record(tmp_path / "leases")
    assert said.pop("port") > 0
    assert time.time() - said.pop("since") < 60
    assert said == {
        "expected": 9.0, "locker": os.getpid(), "namespace": os.stat("/proc/self/ns/pid").st_ino, "alone": True,
        "version": 1, "shim": 0, "shim_id": "", "boot": "a boot", "bytes": {HOST: GIB}, "load": {HOST: 1.5},
        "offer": [None, None],
    }  # fmt: skip
    registry.close()


def test_a_lease_for_a_guest_names_its_pid_and_its_identity_and_keeps_them(tmp_path: Path) -> None:
    registry = FileLeaseRegistry(tmp_path / "leases", "1-a", "a boot")
    me = process_identity(os.getpid())
    placement = Placement(7, 2, Purpose.RUN, {HOST: GIB}, 1.5, EstimateSource.DECLARED)
    with registry.deciding() as transaction:
        held = transaction.take(placement, f"{os.getpid()}:{me}:ab-1")
    registry.rewrite(placement, 0)
    said = record(tmp_path / "leases")
    assert (said["version"], said["guest"], said["guest_id"]) == (1, os.getpid(), me)
    assert [lease.guest for lease in living(tmp_path / "leases")] == [os.getpid()]
    os.close(held.fd)
    registry.close()


def test_wait_tickets_have_format_3(tmp_path: Path) -> None:
    registry = FileLeaseRegistry(tmp_path / "leases", "1-a", "a boot")
    ticket = WaitTicket(
        3, ("GPU-a", HOST), (GIB, None), 5, 1.5, 0.5, alone=True, waited=9.0, closed=True, bare=(7,), last=1e9,
        urgent=True, call=RoomCall(3, -1, (("2-b", 4, 1),)),
    )  # fmt: skip
    with registry.deciding() as transaction:
        transaction.wait(ticket)
    said = record(tmp_path / "leases")
    assert said.pop("looked") - said.pop("since") == pytest.approx(9.0)
    assert said == {
        "version": 3, "task": 3, "devices": ["GPU-a", HOST], "gpus": [GIB, None], "host": 5, "cores": 1.5,
        "busy": 0.5, "alone": True, "closed": True, "bare": [7], "last": 1e9,
        "urgent": True, "call": [3, -1, [["2-b", 4, 1]]],
    }  # fmt: skip
    registry.close()


def test_published_forecasts_have_format_1(tmp_path: Path) -> None:
    registry = FileLeaseRegistry(tmp_path / "leases", "1-a", "a boot")
    need = ResourceRequest(MemoryRequest(5, 4), 1.5, EstimateSource.PROFILE, (MemoryRequest(GIB, 7),), 0.5, alone=True)
    waiting = (WaitingDemand(9, 60.0, need, "0"), WaitingDemand(1, None, need))
    registry.publish(PublishedForecast(os.getuid(), "1-a", 1e9, ("GPU-a",), 4, {(3, 1): 1e9 + 5}, waiting))
    each = {"gpus": [[GIB, 7]], "host": [5, 4], "cores": 1.5, "busy": 0.5, "alone": True}
    assert record(tmp_path / "leases") == {
        "version": 1, "since": 1e9, "devices": ["GPU-a"], "jobs": 4, "ends": {"3.1": 1e9 + 5},
        "waiting": [
            {"tasks": 9, "seconds": 60.0, **each, "device": "0"}, {"tasks": 1, "seconds": None, **each, "device": ""},
        ],
    }  # fmt: skip
    registry.close()


def test_device_reservations_have_format_1(tmp_path: Path) -> None:
    device_reservations.close(tmp_path, [DeviceReservation("GPU-a", os.getuid(), os.getuid(), 1e10, "a deadline")])
    assert record(tmp_path) == {
        "version": 1, "device": "GPU-a", "user": os.getuid(), "until": 1e10, "why": "a deadline",
    }  # fmt: skip


def test_a_claim_is_one_block_and_the_exit_record_the_next(tmp_path: Path) -> None:
    path = tmp_path / ".claim.1"
    claim, record = shim.Claim(7, 1, "a.7.1", shim=5), shim.Record("exited", 3)
    lock = shim.take_claim(str(path), claim)
    os.pwrite(lock, shim.pack_block(record._asdict()), shim.BLOCK)
    os.close(lock)
    assert path.stat().st_size == 2 * shim.BLOCK == 8192
    blocks = path.read_bytes()
    assert shim.unpack_block(blocks[:4096]) == claim._asdict()
    assert shim.unpack_block(blocks[4096:]) == record._asdict()
    assert (shim.read_claim(str(path)), shim.read_record(str(path))) == (claim, record)
