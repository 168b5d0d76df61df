"""Values: what our dataclasses share with those of the standard library, and what not."""

from __future__ import annotations

from dataclasses import field, replace

import pytest

from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0
    seen: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Place:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(slots=True)
class Box:
    held: int = 0


def test_values_are_equal_where_all_compared_fields_are() -> None:
    assert Point(1, 2) == Point(1, 2, seen=5)
    assert Point(1, 2) != Point(1, 3)
    assert Nothing() == Nothing()
    assert Box(1) == Box(1)
    assert Box(1) != Box(2)


def test_values_of_another_class_are_not_equal() -> None:
    assert Point(1, 2) != Place(1, 2)
    assert Place(1, 2) != (1, 2)


def test_frozen_value_has_a_hash_and_mutable_one_has_none() -> None:
    assert len({Point(1), Point(1, seen=3), Point(2), Nothing(), Nothing()}) == 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(Box())


def test_value_compared_by_identity_is_its_own_key() -> None:
    @dataclass(slots=True, eq=False)
    class Child:
        pid: int

    one, other = Child(1), Child(1)
    assert one != other
    assert len({one, other}) == 2


def test_value_is_shown_with_its_fields_and_can_be_replaced() -> None:
    assert repr(Point(1, 2)) == "Point(x=1, y=2, seen=0)"
    assert replace(Point(1, 2, seen=3), y=4) == Point(1, 4)
    assert replace(Point(1, 2, seen=3), y=4).seen == 3
