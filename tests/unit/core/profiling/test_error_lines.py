"""The lines of an output that are examined: without colours and frames, and of long lines both ends."""

from __future__ import annotations

import pytest

from scheduler.core.profiling.error_lines import LONGEST, SAID, clean, is_another_error, last_error, without_code
from scheduler.core.profiling.oom_patterns import OomMatch, what_ran_out

GPU = "CUDA out of memory. Tried to allocate 2.00 GiB"


def test_both_ends_of_a_long_line_are_kept() -> None:
    line = "".join(chr(ord("a") + number % 26) for number in range(10 * LONGEST))
    assert clean(line) == [f"{line[:LONGEST]} … {line[-LONGEST:]}"]
    assert clean(line[: 2 * LONGEST]) == [line[: 2 * LONGEST]]


@pytest.mark.parametrize(
    ("line", "without"),
    [
        ("╭──── Traceback ────╮", ""),
        ("+-------------------+", ""),
        ("└─────", ""),
        ("│ a message │", "a message"),
        ("┃ a message", "a message"),
        ("+ an added line", "+ an added line"),
        ("plain words │ and more", "plain words │ and more"),
        ("", ""),
    ],
)
def test_frames_are_taken_off(line: str, without: str) -> None:
    assert clean(line) == ([without] if line else [])


@pytest.mark.parametrize("line", [f"{GPU} {'x' * 100_000}", "x" * 100_000 + GPU])
def test_words_at_both_ends_of_a_line_without_breaks_are_recognised(line: str) -> None:
    assert what_ran_out(line) == OomMatch("gpu", 2 << 30)


def test_words_in_the_middle_of_a_line_without_breaks_are_not_examined() -> None:
    assert what_ran_out("x" * 100_000 + GPU + "x" * 100_000) is None


@pytest.mark.parametrize(
    "output",
    [
        "\x1b[31mRuntimeError\x1b[0m: \x1b[1mCUDA out of \x1b[31mmemory\x1b[0m. Tried to allocate 2.00 GiB",
        f"\x1b]8;;https://a.b\x07RuntimeError\x1b]8;;\x07: {GPU}",
        f"╭─ Traceback ─╮\n│ ❱ 12 x.cuda() │\n╰─────────────╯\n│ {GPU} │",
        "╭─ Error ─────────────────────╮\n│ CUDA out of memory. Tried to │\n│ allocate 2.00 GiB            │\n╰─╯",
        f"  5%|▌ | 1/20\r{GPU}\r",
    ],
    ids=["colours", "a link", "a frame below code", "a frame that breaks the words", "a progress bar"],
)
def test_decorations_of_a_terminal_hide_no_words(output: str) -> None:
    assert what_ran_out(output) == OomMatch("gpu", 2 << 30)


class TestWithoutCode:
    def test_the_source_lines_of_a_notebook_are_emptied(self) -> None:
        lines = [
            "Cell In[9], line 12",
            *(f"     {number} call({number})" for number in range(6, 12)),
            "---> 12 raise MemoryError()",
            *(f"     {number} call({number})" for number in range(13, 19)),
            "     12 of another listing",
            "MemoryError: no more",
        ]
        kept = without_code(lines)
        assert [line for line in kept if line] == [
            lines[0], "     6 call(6)", "     18 call(18)", "     12 of another listing", "MemoryError: no more",
        ]  # fmt: skip
        assert len(kept) == len(lines)

    def test_the_code_of_a_frame_ends_with_its_indentation(self) -> None:
        lines = [
            '  File "a.py", line 1, in f',
            "    raise MemoryError",
            "    ^^^^",
            "MemoryError",
            "    indented words",
        ]
        assert without_code(lines) == ["", "", "", "MemoryError", "    indented words"]

    def test_a_list_with_dashes_is_no_arrow(self) -> None:
        assert without_code(["- 12 epochs", "     12 batches"]) == ["- 12 epochs", "     12 batches"]


@pytest.mark.parametrize(
    ("lines", "another"),
    [
        ([], False),
        (["words without an error"], False),
        (["KeyError: 'x'"], True),
        (["During handling of the above exception, another exception occurred:", "KeyError: 'x'"], False),
        (["During handling of the above exception, another exception occurred:", "KeyError: 1", "KeyError: 2"], True),
        (["Exception ignored in: <function f>", "KeyError: 'x'"], False),
        (["ChildFailedError:", "  the first to fail was rank 0"], False),
    ],
)
def test_an_error_that_belongs_to_the_first_one_is_no_other(lines: list[str], another: bool) -> None:
    assert is_another_error(lines) is another


TRACEBACK = """epoch 3 loss 0.31
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    raise ValueError("not this line")
"""


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("one\ntwo\n", "two"),
        ("one\n\n  \r\n\n", "one"),
        ("one\n 10%\r 20%\r 30%", "30%"),
        ("one\r\ntwo\r\n", "two"),
        ("", ""),
        ("x" * 1000, "x" * SAID),
        (f"{TRACEBACK}ValueError: loss is nan\n", "ValueError: loss is nan"),
        (f"{TRACEBACK}ValueError: loss is nan\nwandb: run finished\nwandb: synced\n", "ValueError: loss is nan"),
        (f"{TRACEBACK}[rank0]: ValueError: loss is nan\n[rank0]: bye\n", "ValueError: loss is nan"),
        (
            f"{TRACEBACK}RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight\n",
            "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for fc.weight",
        ),
        (
            f"{TRACEBACK}KeyError: 'lr'\n{TRACEBACK}torch.distributed.elastic.errors.ChildFailedError:\n",
            "KeyError: 'lr'",
        ),
        ("usage: train.py [-h]\ntrain.py: error: unknown --lrr\nbye\n", "train.py: error: unknown --lrr"),
        ("ERROR: LoadError: no data\nStacktrace:\n [1] top-level scope\n", "LoadError: no data"),
        ("thread 'main' panicked at a.rs:2:5:\nno data\nnote: a note\n", "thread 'main' panicked at a.rs:2:5: no data"),
        ("\x1b[31mValueError\x1b[0m: red\x07\n", "ValueError: red"),
    ],
)  # fmt: skip
def test_the_last_error_of_an_output_is_its_last_exception_else_a_line_that_says_error_else_the_last_line(
    output: str, error: str
) -> None:
    assert last_error(output) == error
