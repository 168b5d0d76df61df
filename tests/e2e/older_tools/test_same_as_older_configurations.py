"""The reader of configurations beside what the older tool's made of the same ones: recorded, and by a model of it.

tests/data/older-configurations.json holds 80 drawn configurations with what the older tool itself returned for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from scheduler import ConfigManager
from tests.e2e.older_tools import old_configurations as old
from tests.e2e.older_tools.contracts import contract
from tests.support.killing import ROOT

RECORDED = json.loads((ROOT / "tests/data/older-configurations.json").read_text(encoding="utf-8"))
DRAWN = 300


def recorded(number: int, folder: Path) -> dict[str, Any]:
    text = RECORDED[number]["said"].replace("{cwd}", str(folder))
    said: dict[str, Any] = eval(text, {"inf": float("inf")})  # our own data
    return said


def assert_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Compare to the letter, also the order of keys, which a task prints; only defaults may come in any order."""
    unordered = {"scheduler_config", "filled in place", "next"}
    assert {name: ours[name] for name in unordered - {"next"}} == {name: theirs[name] for name in unordered - {"next"}}
    assert [repr(ours[name]) for name in ours if name not in unordered] == [
        repr(theirs[name]) for name in ours if name not in unordered
    ]
    assert [repr(one) for one in without_suffixes(ours["next"], theirs["next"])] == [
        repr(one) for one in theirs["next"]
    ]


def without_suffixes(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take the suffix off a folder that the older tool would have given to two combinations (S4-D9)."""
    seen, found = set[str](), []
    for one, other in zip(ours, theirs, strict=True):
        folder, given = (each.get("test_config_string_filtered", "") for each in (other, one))
        if folder in seen and given != folder:
            assert re.fullmatch(re.escape(folder) + "~[0-9a-f]{8}", given)
            one = {**one, "test_config_string_filtered": folder, "work_dir": other["work_dir"]}
        seen.add(folder)
        found.append(one)
    return found


@contract("S4-01", "S4-02", "S4-05", "S4-06", "S4-07", "S4-08", "S4-09", "S4-10")
@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_config_manager_returns_what_the_older_tool_returned(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_same(old.observed(ConfigManager, RECORDED[number]["config"]), recorded(number, tmp_path))


def test_the_model_returns_what_the_older_tool_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, one in enumerate(RECORDED):
        assert_same(old.observed(old.OldConfigManager, one["config"]), recorded(number, tmp_path))


def test_config_manager_agrees_with_the_model_on_random_configurations() -> None:
    seed = SystemRandom().randrange(1 << 32)
    random = Random(seed)
    for _ in range(DRAWN):
        expression = old.drawn(random)
        print(f"seed {seed}: {expression}")  # pytest shows the last one where it fails
        assert_same(old.observed(ConfigManager, expression), old.observed(old.OldConfigManager, expression))
