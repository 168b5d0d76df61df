"""Texts of other users and tasks cannot control the terminal on which they are shown."""

from __future__ import annotations

import pytest

from scheduler.ui.text import TextCleaner, clean, short
from tests.support.faults import fault

ESCAPES = {
    "colour": "\x1b[31m",
    "colour in one byte": "\x9b31m",
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "title ended otherwise": "\x1b]2;owned\x1b\\",
    "title in one byte": "\x9d0;owned\x9c",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "link": "\x1b]8;;http://evil\x1b\\",
    "device": "\x1bP+q544e\x1b\\",
    "application": "\x1b_Gf=100;AAAA\x1b\\",
    "message": "\x1b^private\x1b\\",
    "reset": "\x1bc",
    "charset": "\x1b(0",
    "bell and backspace": "\x07\x08\x7f",
    "turned round": "\u202e\u2066",
}


@fault(68)
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_clean_removes_escape_sequences_and_nothing_else(escape: str) -> None:
    assert clean(f"before{escape}after\tté\n") == "beforeafter\tté\n"


@fault(68)
def test_clean_removes_an_unterminated_string_to_its_end() -> None:
    assert clean("before\x1b]0;owned") == "before"


@fault(68)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_text_cleaner_gives_the_same_for_any_pieces(size: int) -> None:
    data = "".join(f"ab{escape}é\n" for escape in ESCAPES.values()).encode()
    cleaner = TextCleaner()
    pieces = [cleaner.clean(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join([*pieces, cleaner.clean(b"", last=True)]) == "abé\n" * len(ESCAPES)


@fault(68)
def test_text_cleaner_shows_an_escape_that_never_ends_after_its_limit() -> None:
    cleaner = TextCleaner()
    shown = cleaner.clean(b"\x1b]0;" + b"x" * 5000) + cleaner.clean(b"\nafter") + cleaner.clean(b"", last=True)
    assert shown.endswith("after")


def test_text_cleaner_keeps_carriage_returns() -> None:
    assert TextCleaner().clean(b" 10%\r 20%\r\n") == " 10%\r 20%\r\n"


@pytest.mark.parametrize(
    ("text", "shown"), [("abcde", "abcde"), ("abcdef", "abcd…"), ("a\nb", "a b"), ("\x1b[31mab\tcdefg", "ab c…")]
)
def test_short_marks_a_cut_text_with_an_ellipsis(text: str, shown: str) -> None:
    assert short(text, 5) == shown
