"""Every value that travels over a link comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.cluster import forms
from scheduler.core.events import Exited, Started
from scheduler.core.leases import Lease, RoomCall, RoomOffer
from scheduler.core.model import (
    HOST,
    Device,
    DeviceBudget,
    EstimateSource,
    Outcome,
    Placement,
    Purpose,
    UnmanagedUse,
    Waiter,
    WaitTicket,
    Warn,
)
from scheduler.core.ports import Launch, Sample, Watched
from scheduler.values import replace

GPU = Device("GPU-1", "GPU 0", 24, 1.0, 0, "model", cards=("GPU-1",))
TICKET = WaitTicket(3, ("GPU-1",), (None, 5), None, call=RoomCall(3, 1, (("2-ab", 4, 1),)), bare=(1,))
VALUES: list[tuple[forms.Form[Any], Any]] = [
    (forms.BUDGET, DeviceBudget(GPU, 7, unmanaged=(UnmanagedUse(2, "ben"),), strayed=((1, 2),), least=1, busy=0.5)),
    (forms.LEASE, Lease("n", 1, "2-ab", 3, 1, 77, {"host": 1}, {"host": 1.0}, offer=RoomOffer(2), used={"host": 1})),
    (forms.WAITER, Waiter("n", 1, "2-ab", TICKET)),
    (forms.SAMPLE, Sample(1, 2, {"host": 1}, {"host": 2}, 3.0, absent=("GPU-1",), readings=(("loss", 0.5, 1.0),))),
    (forms.WATCHED, Watched(7, ("a", "b", "c", "d", "e", "f"), {"host": 1})),
    (
        forms.LAUNCH,
        Launch(1, 2, Purpose.PROBE, ("sh", "-c", "x"), "/", {"A": None, "B": "b"}, 3.0, warn=Warn(10, 5.0), stdout="o"),
    ),
]


@pytest.mark.parametrize(("form", "value"), VALUES, ids=lambda one: type(one).__name__)
def test_a_value_comes_back_as_it_was(form: forms.Form[Any], value: Any) -> None:
    assert form.from_dict(json.loads(json.dumps(form.to_dict(value)))) == value


@pytest.mark.parametrize(
    "event",
    [
        Started(1, 2, 3, 4, 5),
        Exited(1, 2, Outcome.OOM, 1, part="gpu", result={"a": 1}),
        Placement(1, 2, Purpose.RUN, {"GPU-1": 1, "host": 2}, 1.0, EstimateSource.PROFILE, node="n1"),
    ],
)
def test_an_event_comes_back_as_it_was(event: Any) -> None:
    assert forms.event_from_dict(json.loads(json.dumps(forms.event_to_dict(event)))) == event


def test_a_report_tells_at_once_what_decisions_depend_on_and_the_rest_once_a_second() -> None:
    changes, host, gpu = forms.ReportChanges(), DeviceBudget(HOST_, 20 << 30), DeviceBudget(GPU_, 24 << 30, busy=0.5)

    def keys(said: dict[str, Any]) -> list[str]:
        return [one["device"]["key"] for one in said.get("budgets", [])]

    first = changes.of(1.0, [host, gpu], closed={})
    assert (keys(first), first["whole"], first["closed"]) == ([HOST_.key, GPU_.key], True, {})
    assert changes.of(1.2, [replace(host, free=(20 << 30) - 5), replace(gpu, busy=0.7)], closed={}) == {}
    assert keys(changes.of(1.4, [host, replace(gpu, free=1 << 30)], closed={})) == [GPU_.key]
    assert keys(changes.of(1.5, [host, replace(gpu, free=1 << 30, closed="lost")], closed={})) == [GPU_.key]
    gpu = replace(gpu, free=1 << 30, closed="lost", busy=0.9)
    assert keys(changes.of(2.1, [replace(host, free=(20 << 30) - 5), gpu], closed={GPU_.key: "kept"})) == [
        HOST_.key, GPU_.key,
    ]  # fmt: skip
    assert changes.of(2.2, [host], closed={GPU_.key: "kept"}).keys() == {"whole", "budgets"}


HOST_, GPU_ = Device(HOST, HOST, 24 << 30, 4.0), Device("GPU-1", "GPU 0", 24 << 30, 1.0, 0)
