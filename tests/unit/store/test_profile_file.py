"""The file that takes profiles to another machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import HOST
from scheduler.core.profiling.class_profile import Peaks, Profile, StoredProfile
from scheduler.errors import InputError
from scheduler.store.profile_records import from_file, to_file
from scheduler.store.profiles import ProfileStore
from scheduler.units import GIB

KEPT = StoredProfile(
    "k1",
    "train.py --lr 1 --api-key sk-123",
    "1 x A100",
    7.0,
    Profile(
        {"0": Peaks([2 * GIB]), HOST: Peaks([GIB], above=3)},
        epoch_seconds=2.0,
        earlier=True,
        family="f",
        slots=(("--lr", "1"), ("--api-key", "sk-123")),
        relations=("p", "c"),
        updated=7.0,
    ),
)


def text(**changes: Any) -> str:
    said = to_file([KEPT])
    said["profiles"][0] |= changes
    return json.dumps(said)


def test_a_file_of_profiles_comes_back_as_it_was_without_secrets() -> None:
    (back,) = from_file(text(), "known.json")
    assert (back.key, back.device, back.profile.parts, back.profile.relations) == (
        "k1", "1 x A100", KEPT.profile.parts, ("p", "c"),
    )  # fmt: skip
    assert "sk-123" not in text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"parts": {"0": {"full": [-1], "lower": 0, "lower_by": "profile", "above": 0}, "host": 3}},
            "a peak is too low",
        ),
        ({"parts": {"0": {"full": [10**30], "lower": 0, "lower_by": "profile", "above": 0}}}, "no machine has"),
        ({"epoch_seconds": float("nan")}, "nan is no amount"),
        ({"slots": [["--a", "1"]] * 1001}, "too long"),
        ({"what": "x" * 5000}, "too long"),
        ({"key": 7}, "too long"),
        ({"relations": None}, "another type"),
    ],
)
def test_a_damaged_profile_is_refused_with_its_number(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=rf"known\.json: profile 1 is damaged: .*{said}"):
        from_file(text(**changes), "known.json")


@pytest.mark.parametrize("content", ["", "[]", "7", '{"format": 1}', "[" * 100_000, '{"format": 1, "profiles": [7]}'])
def test_another_file_is_refused_as_a_file_of_profiles(content: str) -> None:
    with pytest.raises(InputError, match=r"known\.json: "):
        from_file(content, "known.json")


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(InputError, match="its format is 2; this version reads format 1"):
        from_file('{"format": 2, "profiles": []}', "known.json")


def test_imported_profiles_never_replace_own_ones(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.db")
    other = StoredProfile("k1", "train.py", "1 x A100", 9.0, Profile({"0": Peaks([9 * GIB])}))
    assert store.add([KEPT]) == 1
    assert store.add([other, StoredProfile("k2", "b.py", "1 x A100", 9.0, other.profile)]) == 1
    assert store.known()["k1"].peaks == KEPT.profile.peaks
    store.close()
    assert os.stat(tmp_path / "profiles.db").st_mode & 0o777 == 0o600
