"""Patterns that are compiled when they are first used."""

from __future__ import annotations

import re

import pytest

from scheduler.patterns import lazy_pattern


def test_pattern_is_compiled_at_its_first_use_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = re.compile
    monkeypatch.setattr(re, "compile", lambda text, flags: compiled.append(text) or real(text, flags))
    pattern = lazy_pattern(r"a(b+)", re.IGNORECASE)
    assert compiled == []
    assert [pattern.sub("x", "xABBx"), pattern.sub("y", "ab")] == ["xxx", "y"]
    assert compiled == ["a(b+)"]
    match = pattern.search("cabb")
    assert match is not None
    assert match[1] == "bb"


def test_pattern_with_an_error_is_refused_where_it_is_used() -> None:
    with pytest.raises(re.error):
        lazy_pattern("(").search("text")
