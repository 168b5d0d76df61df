"""Events as text: written to the journal and read again."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import events
from scheduler.core.causes import Action, DependencyStep, HaltCause, ResizeCause
from scheduler.core.events import Asked, Edge, Event, Exited, Halted, Resized, Submitted, decode, encode
from scheduler.core.model import EstimateSource, Outcome, Placement, Purpose, State

KINDS = [kind for kind in get_args(Event) if kind is not Submitted]
"""Kinds of events that are written; Submitted is not, since it is made again from the rows."""

IDS = st.integers(0, 1 << 40)
NAMES = st.text(min_size=1, max_size=8)
BYTES = st.dictionaries(NAMES, st.integers(0, 1 << 60), max_size=3)
SECONDS = st.floats(0, 1e12, allow_nan=False)
VALUES = st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | SECONDS | st.text(max_size=20)
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "int": IDS,
    "int | None": st.none() | IDS,
    "float": SECONDS,
    "float | None": st.none() | SECONDS,
    "str": st.text(max_size=40),
    "bool": st.booleans(),
    "Purpose": st.sampled_from(Purpose),
    "EstimateSource": st.sampled_from(EstimateSource),
    "Outcome": st.sampled_from(Outcome),
    "Edge": st.sampled_from(Edge),
    "ResizeCause": st.sampled_from(ResizeCause),
    "HaltCause": st.sampled_from(HaltCause),
    "Action": st.sampled_from(Action),
    "DependencyStep": st.sampled_from(DependencyStep),
    "State": st.sampled_from(State),
    "Mapping[str, int]": BYTES,
    "Mapping[str, Any]": st.dictionaries(NAMES, VALUES, max_size=3),
    "tuple[str, ...]": st.lists(NAMES, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(IDS, max_size=4).map(tuple),
}


def any_event() -> st.SearchStrategy[Event]:
    """Draw any event with any values that its fields allow."""
    return st.one_of(
        st.builds(kind, **{field.name: TYPES[str(field.type)] for field in fields(kind)}) for kind in KINDS
    )


@settings(max_examples=100)
@given(any_event())
def test_an_event_written_and_read_again_is_equal(event: Event) -> None:
    text = json.dumps(encode(event))
    assert decode(event.kind, json.loads(text)) == event


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_has_a_word_of_its_own(kind: type[Event]) -> None:
    word = "placed" if kind is Placement else kind.__name__.lower()
    assert kind.kind == word
    assert [other.kind for other in KINDS].count(kind.kind) == 1


def test_enumerated_words_keep_their_type() -> None:
    placed = decode("placed", encode(Placement(1, 1, Purpose.PROBE, {}, 1.0, EstimateSource.MEASURED)))
    exited = decode("exited", json.loads(json.dumps(encode(Exited(1, 1, Outcome.LOST)))))
    assert isinstance(placed, Placement)
    assert isinstance(exited, Exited)
    assert placed.purpose is Purpose.PROBE
    assert placed.source is EstimateSource.MEASURED
    assert exited.outcome is Outcome.LOST


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (Resized(1, 1, {}, ResizeCause.GREW), "cause"),
        (Asked(Action.HOLD, (1,)), "what"),
        (Halted(HaltCause.ALIKE, 1, 1, 5), "why"),
    ],
)
def test_causes_of_events_keep_their_type(event: Event, field: str) -> None:
    read = decode(event.kind, json.loads(json.dumps(encode(event))))
    assert getattr(read, field) is getattr(event, field)


def test_fields_at_their_default_are_not_written() -> None:
    assert encode(Exited(1, 1, Outcome.SUCCEEDED, code=0, seconds=2.5)) == {
        "task": 1, "attempt": 1, "outcome": "succeeded", "code": 0, "seconds": 2.5,
    }  # fmt: skip


def test_decode_refuses_a_field_that_it_does_not_know() -> None:
    with pytest.raises(TypeError):
        decode("asked", {"what": "stop", "tasks": [3], "because": "it is late"})


def test_the_table_of_each_event_has_all_of_its_fields_and_their_defaults() -> None:
    for kind in KINDS:
        defaults = {
            one.name: one.default_factory() if one.default_factory is not MISSING else one.default
            for one in fields(kind)
        }
        written = {name: MISSING if value is events._REQUIRED else value for name, value in events.FORMATS[kind]}
        assert written == defaults


def test_decode_takes_fields_that_are_missing_at_their_defaults() -> None:
    old = {"task": 1, "attempt": 1, "outcome": "succeeded"}
    assert decode("exited", old) == Exited(1, 1, Outcome.SUCCEEDED)
    old = {"task": 1, "attempt": 1, "purpose": "run", "reservation": {}, "cores": 1.0, "source": "measured"}
    assert decode("placed", old) == Placement(1, 1, Purpose.RUN, {}, 1.0, EstimateSource.MEASURED)


def test_a_value_shows_its_fields() -> None:
    one, same, other = (Exited(1, attempt, Outcome.LOST, signal=9) for attempt in (1, 1, 2))
    assert one == same != other
    assert repr(one).startswith("Exited(task=1, attempt=1, outcome=<Outcome.LOST: 'lost'>, code=None, signal=9, ")
    assert len({Asked("stop", (1,)), Asked("stop", (1,)), Asked("stop")}) == 2


def test_a_value_has_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        Exited(1, 1, Outcome.LOST).tusk = 2  # type: ignore[attr-defined]  # that is what is tried


def test_every_event_is_known_to_the_journal() -> None:
    assert set(events._BY_NAME) == {kind.kind for kind in KINDS}
