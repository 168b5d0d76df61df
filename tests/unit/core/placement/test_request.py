"""Requests of tasks: what they request, and what is known of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import EstimateSource
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, declared, gpus_of
from tests.support.builders import terms

BYTES = st.integers(0, 1 << 40)


@pytest.mark.parametrize("said", [{"retried": True}, {"had": 1}, {"least": 1}, {"enough": 1}])
def test_a_number_of_bytes_with_one_further_condition_is_not_plain(said: dict[str, Any]) -> None:
    assert MemoryRequest(5).is_plain
    assert not MemoryRequest(None).is_plain
    assert not MemoryRequest(5, **said).is_plain


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (MemoryRequest(None), True),
        (MemoryRequest(None, bare=5, retried=True), True),
        (MemoryRequest(5, least=5), True),
        (MemoryRequest(5, least=5, bare=1), False),
        (MemoryRequest(5, least=5, retried=True), False),
        (MemoryRequest(5), False),
    ],
)
def test_a_request_is_expected_if_nothing_of_it_was_declared_or_measured(
    request_: MemoryRequest, expected: bool
) -> None:
    assert request_.is_expected is expected


@given(st.none() | BYTES, BYTES)
def test_a_task_starts_with_what_is_enough_or_else_with_all_of_it(bytes_: int | None, enough: int) -> None:
    assert MemoryRequest(bytes_, enough=enough).starts_with == (enough or bytes_ or 0)


@pytest.mark.parametrize(
    ("gpus", "host", "unknown"),
    [
        ((None,), 5, True),
        ((5,), None, False),
        ((5, None), 5, True),
        ((), None, True),
        ((), 5, False),
    ],
)
def test_a_need_is_unknown_if_that_on_one_of_its_own_devices_is(
    gpus: tuple[int | None, ...], host: int | None, unknown: bool
) -> None:
    asks = tuple(MemoryRequest(bytes_) for bytes_ in gpus)
    assert ResourceRequest(MemoryRequest(host), 1.0, EstimateSource.DECLARED, asks).unknown is unknown


def test_memory_is_that_of_each_gpu_and_without_gpus_that_of_the_host() -> None:
    both, host = terms("3GiB", host_memory="5GiB"), terms(host_memory="5GiB")
    assert [declared(both, gpus) for gpus in (0, 1, 2)] == [3 << 30] * 3
    assert [declared(host, gpus) for gpus in (0, 1, 2)] == [5 << 30, None, None]
    assert declared(host) == 5 << 30


@pytest.mark.parametrize(("said", "some", "number"), [(2, True, 2), (0, True, 0), (None, True, 1), (None, False, 0)])
def test_a_task_uses_one_gpu_where_there_are_some_unless_its_row_says_otherwise(
    said: int | None, some: bool, number: int
) -> None:
    assert gpus_of(terms(gpus=said), some) == number
