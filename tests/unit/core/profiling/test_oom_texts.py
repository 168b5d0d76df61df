"""Error lines from public issue threads: those of programs that ran out of memory, and those that look similar.

tests/data/oom/README.md says where they come from, and which were kept from the author of the patterns.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scheduler.core.profiling import oom_words
from scheduler.core.profiling.oom_patterns import what_ran_out

TEXTS = Path(__file__).parents[3] / "data" / "oom"


def texts(name: str) -> dict[str, tuple[str, str]]:
    """Return the lines and the expected memory of each text of a file, by its title."""
    found = {}
    for case in (TEXTS / name).read_text(encoding="utf-8").split("\n## ")[1:]:
        head, _, rest = case.partition("\n")
        title, _, part = head.rpartition(" = ")
        link, _, lines = rest.partition("\n")
        assert link.startswith("https://github.com/"), title
        assert title not in found, title
        found[title] = (part, lines)
    return found


LEARNED, KEPT = texts("learned.txt"), texts("kept.txt")
NONE = {"learned": texts("none.txt"), "kept": texts("kept-none.txt")}


def read(lines: str) -> str:
    found = what_ran_out(lines)
    return found.part if found else "nothing"


def is_right(part: str, lines: str) -> bool:
    return read(lines) in (("gpu", "host") if part == "either" else (part,))


@pytest.mark.parametrize("title", LEARNED)
def test_a_text_that_the_patterns_were_written_for_is_recognised(title: str) -> None:
    assert is_right(*LEARNED[title])


def test_at_least_95_of_100_kept_texts_are_recognised() -> None:
    missed = [title for title, case in KEPT.items() if not is_right(*case)]
    assert len(missed) <= 0.05 * len(KEPT), missed


def test_rules_that_name_no_product_recognise_nearly_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_words, "PRODUCTS", re.compile(r"(?!)"))
    cases = [*LEARNED.items(), *KEPT.items()]
    missed = [title for title, (_, lines) in cases if read(lines) == "nothing"]
    assert len(missed) <= 0.05 * len(cases), missed


@pytest.mark.parametrize("which", NONE)
def test_at_most_2_of_100_similar_texts_of_other_failures_are_recognised(which: str) -> None:
    taken = [title for title, (_, lines) in NONE[which].items() if read(lines) != "nothing"]
    assert len(taken) <= 0.02 * len(NONE[which]), taken


def test_there_are_as_many_texts_as_the_page_says() -> None:
    page = (TEXTS / "README.md").read_text(encoding="utf-8")
    for name in ("learned", "kept", "none", "kept-none"):
        assert f"| {name}.txt | {len(texts(f'{name}.txt'))} |" in page
