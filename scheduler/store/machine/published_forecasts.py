"""Published forecasts: one record in the lease directory for each scheduler with unfinished tasks.

The record of a scheduler says when the running attempts are expected to end and what the waiting tasks request, in a
bounded number of groups, so that other schedulers can include them in their own forecasts. No decision depends on a
published forecast.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.core.model import EstimateSource
from scheduler.core.placement.request import MemoryRequest, ResourceRequest
from scheduler.core.reporting.other_runs import bounded
from scheduler.core.reporting.published_forecast import (
    MOST_DEMANDS,
    MOST_ENDS,
    PublishedForecast,
    WaitingDemand,
)
from scheduler.runtime.shim import BLOCK, pack_block
from scheduler.store.machine.records import OwnRecord, RecordDirectory, RecordFile, RecordKind, amount, read_all, size
from scheduler.values import replace

VERSION = 1
MOST_DEVICES = 32
"""The most devices of a run that a forecast names; a run with more devices is assumed to use all devices of the
machine.
"""
MOST_GPUS = 64
"""The most GPUs of one task that a forecast of another user may claim."""
LONGEST_WORD = 64
"""The most characters that a device's name may have."""


def to_dict(forecast: PublishedForecast) -> dict[str, Any]:
    """Return the record of a forecast. Its user and run are in the name of the file; times are in seconds since the
    epoch.
    """
    return {
        "version": VERSION,
        "since": round(forecast.since, 1),
        "devices": forecast.devices if len(forecast.devices) <= MOST_DEVICES else (),
        "jobs": forecast.jobs,
        "ends": {f"{task}.{attempt}": round(end, 1) for (task, attempt), end in forecast.ends.items()},
        "waiting": [_demand_to_dict(demand) for demand in forecast.waiting],
    }


def _demand_to_dict(demand: WaitingDemand) -> dict[str, Any]:
    need = demand.need
    return {
        "tasks": demand.tasks,
        "seconds": None if demand.seconds is None else round(demand.seconds, 2),
        "gpus": [[ask.bytes or 0, ask.bare] for ask in need.gpus],
        "host": [need.host.bytes or 0, need.host.bare],
        "cores": need.cores,
        "busy": round(need.busy, 3),
        "alone": need.alone,
        "device": demand.device[:LONGEST_WORD],
    }


def from_dict(said: Mapping[str, Any]) -> PublishedForecast:
    """Return the forecast in a record, without its user and run. Raise an error of NONSENSE if the record is
    invalid.
    """
    ends = {}
    for key, end in list(said["ends"].items())[:MOST_ENDS]:
        task, _, attempt = str(key).partition(".")
        ends[int(task), int(attempt)] = amount(end)
    return PublishedForecast(
        uid=-1,
        run="",
        since=amount(said["since"]),
        devices=tuple(map(str, said["devices"][:MOST_DEVICES])),
        jobs=None if said["jobs"] is None else size(said["jobs"]),
        ends=ends,
        waiting=tuple(map(_demand_from_dict, said["waiting"][:MOST_DEMANDS])),
    )


def _demand_from_dict(said: Mapping[str, Any]) -> WaitingDemand:
    need = ResourceRequest(
        _memory(said["host"]),
        amount(said["cores"]),
        EstimateSource.DECLARED,
        tuple(map(_memory, said["gpus"][:MOST_GPUS])),
        amount(said["busy"]),
        bool(said["alone"]),
    )
    seconds = None if said["seconds"] is None else amount(said["seconds"])
    return WaitingDemand(size(said["tasks"]), seconds, need, str(said["device"])[:LONGEST_WORD])


def _memory(said: Any) -> MemoryRequest:
    bytes_, bare = map(size, said)
    return MemoryRequest(bytes_, min(bytes_, bare))


class PublishedForecastKind(RecordKind[PublishedForecast]):
    """The published forecasts in a directory."""

    prefix = ("forecast.",)
    pattern = re.compile(r"forecast\.(\d+)\.([0-9a-f-]+)\.[0-9a-f]{16}\Z")
    most = 1024  # one for each run of a user
    plural = "forecasts"

    def parse(self, name: re.Match[str], said: Mapping[str, Any]) -> PublishedForecast | None:
        """Return a forecast with its user and run; None if it is invalid."""
        if said.get("version") != VERSION:
            return None
        return replace(from_dict(said), uid=int(name[1]), run=name[2], name=name.string)

    def judge(self, record: PublishedForecast, file: RecordFile) -> PublishedForecast | None:
        """Return a forecast while its scheduler lives; None afterwards."""
        return None if file.is_free else record


FORECASTS = PublishedForecastKind()


def others(directory: Path, uid: int, run: str) -> list[PublishedForecast]:
    """Return the forecasts of all other schedulers, without taking the directory's mutex."""
    return [one for one in read_all(directory, FORECASTS) if (one.uid, one.run) != (uid, run)]


class PublishedForecastFile(OwnRecord):
    """The record of this run's forecast."""

    def __init__(self, uid: int, run: str) -> None:
        super().__init__(f"forecast.{uid}.{run}.")

    @property
    def needs_mutex(self) -> bool:
        """True if there is no file, or if it was removed: the directory's mutex must be held to create a new one."""
        return self._fd < 0 or not os.fstat(self._fd).st_nlink

    def make(self, records: RecordDirectory, forecast: PublishedForecast) -> None:
        """Create the file, and remove dead files of this user; the caller must hold the mutex. Raise OSError if it
        cannot be created.
        """
        self.leave(records.fd)
        for _ in records.read(FORECASTS):
            pass
        self._name, self._fd = records.make(self._stem, _block(forecast))

    def rewrite(self, forecast: PublishedForecast) -> None:
        """Replace the record. This needs no mutex, because readers ignore a half-written record: its checksum is wrong.
        Raise OSError if it cannot be written.
        """
        os.pwrite(self._fd, _block(forecast), 0)


def _block(forecast: PublishedForecast) -> bytes:
    """Return the record in one block; if not all of its ends and groups fit, leave some of them out."""
    most = MOST_ENDS
    while True:
        ends = dict(list(forecast.ends.items())[:most])
        fewer = replace(forecast, ends=ends, waiting=bounded(forecast.waiting, most))
        try:
            return pack_block(to_dict(fewer))
        except ValueError:
            if not most:
                return bytes(BLOCK)
            most //= 2
