"""Bytes that are cut into commands, one for each line or each block of lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.inputs.lines import LONGEST, CommandLine, LineCutter
from tests.e2e.older_tools.contracts import contract


def cut(*pieces: bytes, multiline: bool = False) -> list[CommandLine]:
    cutter = LineCutter(multiline=multiline)
    return [line for piece in pieces for line in cutter.feed(piece)] + cutter.rest()


def texts(*pieces: bytes, multiline: bool = False) -> list[str]:
    return [line.text for line in cut(*pieces, multiline=multiline)]


class TestLines:
    @contract("S1-07")
    def test_a_line_is_a_command_without_its_trailing_blanks(self) -> None:
        assert texts(b"a b \t\n  c\n") == ["a b", "  c"]

    def test_the_last_line_needs_no_line_end(self) -> None:
        assert texts(b"a\nb") == ["a", "b"]

    def test_a_line_may_come_in_pieces(self) -> None:
        assert texts(b"ec", b"ho", b" a\nb", b"", b"\n") == ["echo a", "b"]

    @contract("S1-15")
    def test_blank_lines_and_comments_are_left_out_and_counted(self) -> None:
        assert [(line.number, line.text) for line in cut(b"# x\n\n \t\na\n  # y\nb # z\n")] == [(4, "a"), (6, "b # z")]

    @contract("S1-18")
    def test_a_backslash_at_the_end_continues_nothing(self) -> None:
        assert texts(b"echo a \\\n b\n") == ["echo a \\", " b"]

    @contract("S1-19")
    def test_any_bytes_survive_except_carriage_returns(self) -> None:
        assert [text.encode("utf-8", "surrogateescape") for text in texts(b"echo \xff\xfe \xc3\xa9\r\n")] == [
            b"echo \xff\xfe \xc3\xa9"
        ]

    def test_a_line_is_cut_at_the_longest_argument(self) -> None:
        (long, after) = cut(b"x" * LONGEST, b"y" * 500, b"z\n", b"a\n")
        assert (len(long.text), long.end) == (LONGEST, LONGEST + 502)
        assert after == CommandLine(2, "a", LONGEST + 504, 2)

    @given(st.binary(), st.lists(st.integers(min_value=1, max_value=9)), st.booleans())
    def test_commands_do_not_depend_on_where_the_pieces_end(
        self, data: bytes, sizes: list[int], multiline: bool
    ) -> None:
        pieces, rest = [], data
        for size in sizes:
            pieces.append(rest[:size])
            rest = rest[size:]
        assert cut(*pieces, rest, multiline=multiline) == cut(data, multiline=multiline)

    @given(st.lists(st.sampled_from([b"a\n", b"\n", b"# c\n", b"b c\r\n", b"\xff\n"])), st.booleans())
    def test_each_command_ends_where_another_reader_can_continue(self, lines: list[bytes], multiline: bool) -> None:
        data = b"".join(lines)
        whole = cut(data, multiline=multiline)
        for place, line in enumerate(whole):
            onward = LineCutter(multiline=multiline, offset=line.end, number=line.lines)
            assert onward.feed(data[line.end :]) + onward.rest() == whole[place + 1 :]


class TestSeveralLines:
    @contract("S1-18", "S1-D7")
    def test_a_blank_line_ends_a_command(self) -> None:
        assert texts(b"rm x\ntrain\n\n\necho b\n", multiline=True) == ["rm x\ntrain", "echo b"]

    def test_a_nul_ends_a_command(self) -> None:
        assert texts(b"a\nb\0c\0\0d", multiline=True) == ["a\nb", "c", "d"]

    def test_the_number_of_a_command_is_that_of_its_first_line(self) -> None:
        assert [line.number for line in cut(b"\na\nb\n\nc\n", multiline=True)] == [2, 5]

    def test_a_block_of_comments_is_no_command(self) -> None:
        assert texts(b"# a\n# b\n\n# c\nd\n", multiline=True) == ["# c\nd"]

    def test_a_block_is_cut_near_the_longest_argument(self) -> None:
        (text,) = texts(b"x" * 1000 + b"\n", *[b"y" * 1000 + b"\n"] * 600, multiline=True)
        assert LONGEST < len(text) < LONGEST + 2000
