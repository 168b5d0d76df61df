"""What was asked of a run: by whom it is still to be done, and what is no question at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.ports import Answer, Request
from scheduler.paths import Places, RunPlaces
from scheduler.store import requests
from scheduler.store.requests import Requests, post


@pytest.fixture
def run(tmp_path: Path) -> RunPlaces:
    places = Places(tmp_path).run(1)
    places.root.mkdir(parents=True)
    return places


@pytest.fixture
def desk(run: RunPlaces) -> Iterator[Requests]:
    """A scheduler that comes up once this is asked for."""
    made = Requests(run)
    yield made
    made.close()


def whats(desk: Requests) -> list[str]:
    return [request.what for request in desk.collect()]


def test_what_was_asked_without_a_scheduler_is_told_to_the_next_in_order(
    run: RunPlaces, request: pytest.FixtureRequest
) -> None:
    for what in ("hold", "release", "cancel"):
        post(run, Request(what, (1,)))
    assert whats(request.getfixturevalue("desk")) == ["hold", "release", "cancel"]


@pytest.mark.parametrize("what", ["drain", "stop", "leave"])
def test_an_end_that_was_asked_of_one_scheduler_is_not_meant_for_the_next(
    run: RunPlaces, what: str, request: pytest.FixtureRequest
) -> None:
    path = post(run, Request(what))
    assert whats(request.getfixturevalue("desk")) == []
    assert not path.exists()


def test_each_is_told_once_and_taken_away_when_it_is_answered(run: RunPlaces, desk: Requests) -> None:
    path = post(run, Request("hold", (1,)))
    (asked,) = desk.collect()
    assert (whats(desk), path.exists()) == ([], True)
    desk.answer(asked, [Answer((1,), True, "held")])
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"what": "hold"}', '{"what": "hold", "tasks": ["x"], "said": {}}'])
def test_what_makes_no_sense_is_taken_away(run: RunPlaces, desk: Requests, text: str) -> None:
    path = post(run, Request("hold", (1,)))
    path.write_text(text)
    assert (whats(desk), path.exists()) == ([], False)


def test_what_is_too_large_is_not_read(run: RunPlaces, desk: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    path = post(run, Request("hold", (1,)))
    monkeypatch.setattr(requests, "_LARGEST", path.stat().st_size - 1)
    assert (whats(desk), path.exists()) == ([], False)
