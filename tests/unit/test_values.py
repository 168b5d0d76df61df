"""Values: what our dataclasses share with those of the standard library, and what not."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import ClassVar

import pytest

from scheduler.values import dataclass, field, names_of, replace


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


@dataclass(slots=True)
class Path:
    """A value with each kind of field, which its constructor has to set."""

    start: Point
    stops: list[Point] = field(default_factory=list)
    name: str = "way"
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.stops) + 1


@dataclass(slots=True)
class NamedPath(Path):
    color: str = "red"


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


def test_value_works_with_the_functions_of_the_standard_library() -> None:
    path = NamedPath(Point(1, seen=2), [], "loop")
    assert [one.name for one in dataclasses.fields(path)] == ["start", "stops", "name", "length", "color"]
    assert dataclasses.asdict(path) == {
        "start": {"x": 1, "y": 0, "seen": 2}, "stops": [], "name": "loop", "length": 1, "color": "red",
    }  # fmt: skip
    assert dataclasses.replace(path, color="blue") == replace(path, color="blue")
    assert not dataclasses.fields(Point)[2].compare


def test_field_of_the_class_itself_is_no_field_of_its_values() -> None:
    @dataclass(frozen=True, slots=True)
    class Unit:
        ALL: ClassVar[list[str]] = ["MiB"]
        name: str = "GiB"

    assert names_of(Unit) == ("name",)
    assert Unit.ALL == ["MiB"]


def test_replace_refuses_an_unknown_field_and_derives_again_what_is_derived() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        replace(Point(1), z=2)  # type: ignore[call-arg]
    assert replace(Path(Point(1)), stops=[Point(2)]).length == 2


def test_copies_and_pickles_of_a_value_are_equal_to_it() -> None:
    path = NamedPath(Point(1), [Point(2)], "loop", "blue")
    assert copy.deepcopy(path) == path
    assert pickle.loads(pickle.dumps(path)) == path


def test_constructor_sets_defaults_new_containers_and_derived_fields() -> None:
    one, other = Path(Point(1)), Path(Point(2), [Point(3)], name="loop")
    assert (one.start, one.stops, one.name, one.length) == (Point(1), [], "way", 1)
    assert (other.stops, other.name, other.length) == ([Point(3)], "loop", 2)
    assert Path(Point(1)).stops is not one.stops


def test_constructor_of_a_derived_class_takes_all_fields() -> None:
    path = NamedPath(Point(1), [Point(2)], "loop", "blue")
    assert (path.name, path.color, path.length) == ("loop", "blue", 2)


def test_constructor_refuses_missing_and_unknown_arguments_by_the_name_of_the_class() -> None:
    for _ in range(2):  # the first call compiles it
        with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required positional argument: 'x'"):
            Point()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"Point\.__init__\(\) got an unexpected keyword argument 'z'"):
            Point(1, z=2)  # type: ignore[call-arg]


def test_constructor_is_compiled_only_when_a_first_value_is_created() -> None:
    @dataclass(slots=True)
    class Late:
        x: int = 0

    waiting = Late.__init__
    assert Late(3).x == 3
    assert Late.__init__ is not waiting
    compiled = Late.__init__
    assert Late(4).x == 4
    assert Late.__init__ is compiled
