"""A followed file: each appended command is read once, whatever happens to the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.errors import InputError
from scheduler.inputs.follow import FollowedFile, FollowMark
from scheduler.inputs.lines import MOST_ROWS, form_of_lines


class Reader:
    """A reader that looks until there is nothing more, and accepts the commands."""

    def __init__(self, path: Path, mark: FollowMark | None = None) -> None:
        self.source = FollowedFile(str(path), form_of_lines({}), mark or FollowMark())
        self.said: list[str] = []

    def take(self, *, accept: bool = True) -> list[str]:
        found: list[str] = []
        for _ in range(6):  # the end of a file that was moved away is believed at the second look
            rows, _, said = self.source.appended(last=False)
            found += [cells[0] for _, cells, _, _ in rows]
            self.said += [said] if said else []
            if accept:
                self.source.accepted()
        return found

    def again(self, path: Path) -> Reader:
        """Return the reader of the next scheduler, which knows only the journal's mark."""
        return Reader(path, FollowMark.unpack(self.source.mark))


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "gpu.queue"
    path.write_text("a\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


class TestGrowth:
    def test_present_and_appended_commands_are_read(self, queue: Path) -> None:
        reader = Reader(queue)
        assert reader.take() == ["a"]
        append(queue, "b\n# c\nd")
        assert reader.take() == ["b"]
        append(queue, " e\n")
        assert reader.take() == ["d e"]
        assert reader.said == []

    def test_commands_that_were_not_accepted_are_read_again(self, queue: Path) -> None:
        reader = Reader(queue)
        assert reader.take(accept=False) == ["a"] * 6
        assert reader.take() == ["a"]

    def test_a_large_addition_is_read_in_parts(self, tmp_path: Path) -> None:
        path = tmp_path / "queue"
        path.write_text("".join(f"{n}\n" for n in range(MOST_ROWS + 7)))
        source = FollowedFile(str(path), form_of_lines({}), FollowMark())
        sizes = []
        while source.fileno() >= 0 or not sizes:
            rows, _, _ = source.appended(last=False)
            sizes.append(len(rows))
            source.accepted()
        assert sizes == [MOST_ROWS, 7, 0]

    def test_a_file_that_does_not_exist_yet_is_awaited(self, tmp_path: Path) -> None:
        reader = Reader(tmp_path / "later")
        assert reader.take() == []
        (tmp_path / "later").write_text("a\n")
        assert reader.take() == ["a"]
        assert reader.said == [f"{tmp_path}/later does not exist yet: the run waits for it"]

    def test_commands_of_several_lines_are_read(self, queue: Path) -> None:
        reader = Reader(queue, FollowMark(multiline=True))
        append(queue, "b\n\nc\n")
        assert reader.take() == ["a\nb"]
        onward = reader.again(queue)
        append(queue, "d\n\n")
        assert onward.take() == ["c\nd"]

    def test_a_directory_cannot_be_followed(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="it is a directory"):
            Reader(tmp_path)


class TestRotation:
    def test_a_rotated_file_is_read_to_its_end_before_the_new_one(self, queue: Path) -> None:
        reader = Reader(queue)
        assert reader.take() == ["a"]
        queue.rename(f"{queue}.1")
        append(Path(f"{queue}.1"), "late\nunended")
        queue.write_text("b\n")
        assert reader.take() == ["late", "unended", "b"]
        assert reader.said == [f"{queue} was rotated after 3 lines: the new file is read from its beginning"]

    def test_no_command_is_lost_between_a_rotated_file_and_the_new_one(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take()
        queue.rename(f"{queue}.1")
        assert reader.take() == []
        queue.write_text("b\n")
        assert reader.take() == ["b"]

    def test_a_shortened_file_is_read_again(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take()
        queue.write_text("")
        reader.take()
        append(queue, "b\n")
        assert reader.take() == ["b"]
        assert reader.said == [f"{queue} was truncated: it is read again from its beginning"]

    def test_a_file_that_was_shortened_and_has_grown_again_is_read_again(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take()
        queue.write_text("b\nc\nd\n")
        assert reader.take() == ["b", "c", "d"]

    def test_a_file_rewritten_by_an_editor_is_read_on(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take()
        (queue.parent / "new").write_text("a\nb\n")
        (queue.parent / "new").rename(queue)
        assert reader.take() == ["b"]
        assert "was rewritten" in reader.said[0]


class TestNextScheduler:
    def test_the_next_scheduler_reads_on_where_the_last_one_was(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take()
        append(queue, "b\nc\n")
        assert reader.again(queue).take() == ["b", "c"]

    def test_the_next_scheduler_reads_commands_that_were_not_accepted(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take(accept=False)
        assert reader.again(queue).take() == ["a"]

    def test_the_next_scheduler_finds_the_file_that_was_rotated(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take()
        append(queue, "b\n")
        queue.rename(f"{queue}.1")
        queue.write_text("c\n")
        assert reader.again(queue).take() == ["b", "c"]

    def test_the_next_scheduler_reads_a_file_that_was_shortened(self, queue: Path) -> None:
        reader = Reader(queue)
        append(queue, "b\n")
        reader.take()
        queue.write_text("c\n")
        onward = reader.again(queue)
        assert onward.take() == ["c"]
        assert "2 lines were accepted, and that file is not in its directory: this one is read" in onward.said[0]

    def test_the_next_scheduler_reads_on_in_a_copy_of_the_file(self, queue: Path) -> None:
        reader = Reader(queue)
        reader.take()
        os.unlink(queue)
        (queue.parent / "other").write_text("x")  # so that no inode comes back by chance
        queue.write_text("a\nb\n")
        assert reader.again(queue).take() == ["b"]
