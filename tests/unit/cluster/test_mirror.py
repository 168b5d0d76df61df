"""The files of attempts, copied from a node to the head."""

from __future__ import annotations

from pathlib import Path

from scheduler.cluster import mirror
from scheduler.cluster.mirror import PIECE, CallSender, FileSender, GivenFiles
from scheduler.runtime.paths import RunPaths
from scheduler.store.result_file import has_lines

KEY = (3, 1)


def places(root: Path) -> RunPaths:
    made = RunPaths(root, 1)
    Path(made.task(3)).mkdir(parents=True)
    return made


def copied(sender: FileSender, head: RunPaths, *, ended: bool = False) -> str:
    """Copy what is new, and return the log at the head."""
    for message in [*(sender.rest(KEY) if ended else sender.growth())]:
        mirror.write(head, *message["file"])
    path = head.task_log(*KEY)
    return path.read_text() if path.exists() else ""


def test_a_log_is_copied_while_it_grows_and_its_result_at_the_end(tmp_path: Path) -> None:
    node, head = places(tmp_path / "node"), RunPaths(tmp_path / "head", 1)
    sender = FileSender(node, has_lines)
    sender.follow(KEY)
    assert copied(sender, head) == ""
    node.task_log(*KEY).write_text("one\n")
    Path(node.result(*KEY)).write_text('{"a": 1}')
    assert copied(sender, head) == "one\n"
    assert not Path(head.result(*KEY)).exists()
    node.task_log(*KEY).write_text("one\ntwo\n" + "x" * (2 * PIECE))
    assert copied(sender, head, ended=True) == node.task_log(*KEY).read_text()
    assert Path(head.result(*KEY)).read_text() == '{"a": 1}'


def test_json_lines_of_a_result_are_copied_as_they_come_and_as_a_whole_at_the_end(tmp_path: Path) -> None:
    node, head = places(tmp_path / "node"), RunPaths(tmp_path / "head", 1)
    here, there = Path(node.result(*KEY)), Path(head.result(*KEY))
    sender = FileSender(node, has_lines)
    sender.follow(KEY)
    lines = '{"loss": 2}\n{"loss": 1}\n'
    for text in (lines, lines + '{"loss": 0}\n'):
        here.write_text(text)
        copied(sender, head)
        assert there.read_text() == text
    here.write_text('{"best": 12345, "loss": 3}\n' * 4)  # another file, and longer
    copied(sender, head, ended=True)
    assert there.read_text() == here.read_text()


def test_a_new_agent_goes_on_where_the_head_has_the_log(tmp_path: Path) -> None:
    node, head = places(tmp_path / "node"), places(tmp_path / "head")
    node.task_log(*KEY).write_text("one\ntwo\n")
    head.task_log(*KEY).write_text("one\n")
    sender = FileSender(node, has_lines)
    sender.follow(KEY, mirror.sizes(head, KEY))
    assert [message["file"][3] for message in sender.growth()] == [4]


def test_a_log_whose_middle_was_removed_is_copied_anew(tmp_path: Path) -> None:
    node, head = places(tmp_path / "node"), places(tmp_path / "head")
    sender = FileSender(node, has_lines)
    sender.follow(KEY)
    node.task_log(*KEY).write_text("a long beginning\nand an end\n")
    copied(sender, head)
    node.task_log(*KEY).write_text("a long\n")
    assert copied(sender, head) == "a long\n"


def carried(sender: CallSender) -> list[str]:
    """Return the names of the messages that are sent."""
    return [name for message in iter(sender.next, None) for name in message]


def test_a_call_is_launched_after_its_files_and_stopped_after_its_launch(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    for name in ("1.call", "calls"):
        (tmp_path / "given" / name).write_bytes(b"x" * (PIECE + 1))
    root, sender = str(tmp_path), CallSender()
    assert mirror.given_to(["python", f"{root}/code/l.py", f"{root}/given/1.call@0", "f"], root) == ["1.call"]
    assert not sender.put_behind(KEY, {"stop": 1})
    for _ in range(2):
        sender.add(KEY, ["1.call", "calls"], root, {"launch": 1})
    assert sender.put_behind(KEY, {"stop": 1})
    assert carried(sender) == ["given"] * 4 + ["launch"] + ["given"] * 2 + ["launch", "stop"]  # `calls` is sent once
    sender.drop()
    sender.add(KEY, ["calls"], root, {"launch": 1})
    assert carried(sender) == ["given"] * 2 + ["launch"]


def test_the_arguments_of_a_call_are_there_once_they_are_complete_and_go_with_its_attempt(tmp_path: Path) -> None:
    head, node = tmp_path / "head", tmp_path / "node"
    (head / "given").mkdir(parents=True)
    (head / "given" / "1.call").write_bytes(b"0" * PIECE + b"1")
    argv = ["python", "l.py", f"{head}/given/1.call@0"]
    sender, files = CallSender(), GivenFiles(str(node))
    sender.add(KEY, ["1.call"], str(head), {})
    assert files.missing(KEY, argv, str(head)) == "1.call"
    for message in (sender.next(), sender.next()):
        assert message is not None
        assert not (node / "given" / "1.call").exists()
        files.write(*message["given"])
    assert not files.missing(KEY, argv, str(head))
    assert (node / "given" / "1.call").read_bytes() == (head / "given" / "1.call").read_bytes()
    assert (node / "given" / "1.call").stat().st_mode & 0o777 == 0o600
    files.forget(KEY)
    assert not [*(node / "given").iterdir()]


def test_a_piece_after_one_that_was_lost_is_not_taken(tmp_path: Path) -> None:
    files = GivenFiles(str(tmp_path))
    files.write("1.call", 5, 6, "eA==")
    assert not (tmp_path / "given" / "1.call").exists()
