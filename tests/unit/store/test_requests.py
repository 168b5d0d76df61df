"""The files of requests to a run: which are still to be answered, and which are no requests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from scheduler.core.ports import Answer, Request
from scheduler.runtime.paths import RunPaths, StatePaths
from scheduler.store.run import requests
from scheduler.store.run.requests import RequestInbox, leave, post


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    places = StatePaths(tmp_path).run(1)
    places.root.mkdir(parents=True)
    return places


@pytest.fixture
def inbox(run: RunPaths) -> Iterator[RequestInbox]:
    """Yield the inbox of a scheduler that starts when this fixture is first used."""
    made = RequestInbox(run)
    yield made
    made.close()


def whats(inbox: RequestInbox) -> list[str]:
    return [request.what for request in inbox.collect()]


def test_requests_made_without_a_scheduler_reach_the_next_one_in_order(
    run: RunPaths, request: pytest.FixtureRequest
) -> None:
    for what in ("hold", "release", "cancel"):
        post(run, Request(what, (1,)))
    assert whats(request.getfixturevalue("inbox")) == ["hold", "release", "cancel"]


def test_requests_keep_their_order_when_the_clock_is_set_back(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["hold", "release", "hold", "cancel"]
    for number, what in enumerate(wanted):
        monkeypatch.setattr(time, "time_ns", lambda day=number: 10**18 - day * 86400 * 10**9)
        leave(run, Request(what, (1,)))
    assert [request.what for request in requests.pending(run)] == wanted


def test_requests_of_one_moment_are_all_kept(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_next_number", lambda folder: 1)
    all_there = Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda task: (all_there.wait(10), leave(run, Request("hold", (task,)))), range(4)))
    assert sorted(request.tasks for request in requests.pending(run)) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("what", ["drain", "stop", "leave"])
def test_a_stop_for_one_scheduler_does_not_reach_the_next(
    run: RunPaths, what: str, request: pytest.FixtureRequest
) -> None:
    path = post(run, Request(what))
    assert whats(request.getfixturevalue("inbox")) == []
    assert not path.exists()


def test_a_request_is_delivered_once_and_removed_when_it_is_answered(run: RunPaths, inbox: RequestInbox) -> None:
    path = post(run, Request("hold", (1,)))
    (asked,) = inbox.collect()
    assert (whats(inbox), path.exists()) == ([], True)
    inbox.answer(asked, [Answer((1,), True, "held")])
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"what": "hold"}', '{"what": "hold", "tasks": ["x"], "said": {}}'])
def test_an_invalid_request_is_removed(run: RunPaths, inbox: RequestInbox, text: str) -> None:
    path = post(run, Request("hold", (1,)))
    path.write_text(text)
    assert (whats(inbox), path.exists()) == ([], False)


def test_a_request_that_is_too_large_is_not_read(
    run: RunPaths, inbox: RequestInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = post(run, Request("hold", (1,)))
    monkeypatch.setattr(requests, "_LARGEST", path.stat().st_size - 1)
    assert (whats(inbox), path.exists()) == ([], False)


def test_pipe_with_the_name_of_a_request_keeps_no_scheduler_waiting(run: RunPaths, inbox: RequestInbox) -> None:
    os.mkfifo(run.requests / "1.request")
    leave(run, Request("hold", (1,)))
    assert whats(inbox) == ["hold"]
