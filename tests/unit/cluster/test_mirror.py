"""The files of attempts, copied from a node to the head."""

from __future__ import annotations

from pathlib import Path

from scheduler.cluster import mirror
from scheduler.cluster.mirror import PIECE, FileSender
from scheduler.runtime.paths import RunPaths

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
    sender = FileSender(node)
    sender.follow(KEY)
    assert copied(sender, head) == ""
    node.task_log(*KEY).write_text("one\n")
    Path(node.result(*KEY)).write_text('{"a": 1}')
    assert copied(sender, head) == "one\n"
    assert not Path(head.result(*KEY)).exists()
    node.task_log(*KEY).write_text("one\ntwo\n" + "x" * (2 * PIECE))
    assert copied(sender, head, ended=True) == node.task_log(*KEY).read_text()
    assert Path(head.result(*KEY)).read_text() == '{"a": 1}'


def test_a_new_agent_goes_on_where_the_head_has_the_log(tmp_path: Path) -> None:
    node, head = places(tmp_path / "node"), places(tmp_path / "head")
    node.task_log(*KEY).write_text("one\ntwo\n")
    head.task_log(*KEY).write_text("one\n")
    sender = FileSender(node)
    sender.follow(KEY, mirror.sizes(head, KEY))
    assert [message["file"][3] for message in sender.growth()] == [4]


def test_a_log_whose_middle_was_removed_is_copied_anew(tmp_path: Path) -> None:
    node, head = places(tmp_path / "node"), places(tmp_path / "head")
    sender = FileSender(node)
    sender.follow(KEY)
    node.task_log(*KEY).write_text("a long beginning\nand an end\n")
    copied(sender, head)
    node.task_log(*KEY).write_text("a long\n")
    assert copied(sender, head) == "a long\n"
