"""Queues on disk: the link to the run, the shells of submitters, submissions as requests."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from scheduler.core.events import Submitted
from scheduler.core.model import TaskShell
from scheduler.core.ports import Request
from scheduler.core.tasks.fields import RowForm
from scheduler.errors import InputError, StateError, UsageError
from scheduler.runtime.paths import StatePaths
from scheduler.runtime.python_envs import Programs, Python
from scheduler.store.queue.queue_link import checked_name, find_queue, set_queue, start_lock
from scheduler.store.queue.submission import MOST_TOKENS, Submission, SubmissionReceiver
from scheduler.store.queue.submitted_shells import SubmittedShell, SubmittedShells, keep_shell
from scheduler.store.queue.visible_devices import VISIBLE, limited
from scheduler.store.run.run_store import SqliteRunStore
from scheduler.store.run.shell_state import ShellState

PYTHON = Python("/usr/bin/python3", "the first on PATH")


class StoreStub:
    """A store that accepts rows in memory, or fails as it is told."""

    def __init__(self) -> None:
        self.source = None
        self.shells = self
        self.journal = self
        self.batches: list[Submitted] = []
        self.mark = ""
        self.trouble: Exception | None = None
        self.changes: dict[str, str | None] = {}

    @property
    def next_batch(self) -> int:
        return len(self.batches) + 1

    def learn_secrets(self, digest: str, secrets: dict[str, str]) -> None:
        """Ignore secrets."""

    def of(self, digest: str) -> SubmittedShell:
        """Return the same shell always."""
        return SubmittedShell(TaskShell(self.changes, "", {}), Programs({}, "/"))

    def accept_more(self, form: RowForm, batches: Sequence[Sequence[Any]], facts: dict[str, str]) -> list[Submitted]:
        if self.trouble is not None:
            raise self.trouble
        first = sum(len(batch.terms) for batch in self.batches)
        new = [Submitted(self.next_batch, first, [0] * len(rows)) for rows in batches]
        self.batches += new
        self.mark = facts["mark"]
        return new

    def submissions(self, after: int) -> list[Submitted]:
        return [batch for batch in self.batches if batch.batch > after]


@pytest.fixture
def store() -> StoreStub:
    return StoreStub()


def receiver(store: StoreStub) -> SubmissionReceiver:
    return SubmissionReceiver(cast(SqliteRunStore, store), store.mark)


def request(token: str, rows: int = 1) -> Request:
    form = RowForm(("Command",), shell="abc")
    cells = [(row, ["true"], form.terms(["true"]), 0) for row in range(rows)]
    return Request("submit", (), Submission(token, form, cells).to_dict())


class TestSubmissions:
    def test_a_submission_survives_a_request(self) -> None:
        form = RowForm(("Command", "Memory", "lr"), {"Priority": "2"}, "none", (), "abc")
        cells = ["echo 'a\x1fb'", "1GiB", "0.1"]
        here = Submission("t", form, [(7, cells, form.terms(cells), 1)], "/proc/1/fd/3")
        there = Submission.from_dict(here.to_dict())
        assert (there.token, there.secrets, there.form.pack()) == ("t", "/proc/1/fd/3", form.pack())
        assert there.rows == [(7, cells, form.terms(cells), 1)]

    def test_a_submission_that_is_sent_again_is_accepted_once(self, store: StoreStub) -> None:
        first = receiver(store).accept(request("a", rows=3))
        receiver(store).accept(request("b"))
        again = receiver(store).accept(request("a", rows=3))  # after a crash: only the journal's mark is left
        assert (first.answer.tasks, again.answer.tasks, again.batches) == ((0, 1, 2), (0, 1, 2), ())
        assert len(store.batches) == 2

    def test_the_tokens_of_the_latest_submissions_are_kept(self, store: StoreStub) -> None:
        queue = receiver(store)
        for number in range(MOST_TOKENS + 5):
            queue.accept(request(f"t{number}"))
        assert len(json.loads(store.mark)) == MOST_TOKENS

    def test_a_refused_submission_is_not_remembered(self, store: StoreStub) -> None:
        store.trouble = InputError("queue", "needs too much", 2, "Memory")
        answer = receiver(store).accept(request("a")).answer
        assert (answer.done, answer.facts) == (False, {"message": "needs too much", "row": 2, "column": "Memory"})
        store.trouble = StateError("the disk is full")
        assert receiver(store).accept(request("a")).answer.says == "the disk is full"
        store.trouble = None
        assert receiver(store).accept(request("a")).answer.tasks == (0,)

    @pytest.mark.parametrize(
        ("here", "wanted", "sentence"),
        [
            ("", "ssh:a", "the queue runs on its own machine, and keeps its nodes until it has ended"),
            ("ssh:a", "ssh:a local", "the queue runs on ssh:a, and keeps its nodes"),
            ("ssh:a local", "local ssh:a", ""),
            ("ssh:a", "", ""),
        ],
    )
    def test_a_queue_keeps_its_nodes_and_refuses_submissions_that_name_others(
        self, store: StoreStub, here: str, wanted: str, sentence: str
    ) -> None:
        said = {**request("a").said, "on": wanted}
        answer = SubmissionReceiver(cast(SqliteRunStore, store), "", here).accept(Request("submit", (), said)).answer
        assert answer.done == (not sentence)
        assert sentence in answer.says
        assert answer.done == (answer.facts.get("on") == here)

    @pytest.mark.parametrize("said", [{}, {"format": "2"}, {**request("a").said, "rows": "no json"}])
    def test_a_submission_of_another_version_is_refused(self, store: StoreStub, said: dict[str, str]) -> None:
        assert "of another version" in receiver(store).accept(Request("submit", (), said)).answer.says
        assert store.batches == []


class TestVisibleDevices:
    @pytest.mark.parametrize(
        ("row", "shell", "devices"),
        [
            ({}, {VISIBLE: "1"}, ("1", None)),
            ({}, {VISIBLE: "GPU-a1b2c3d4, 0"}, ("GPU-a1b2c3d4,0", None)),
            ({"GPUs": "2"}, {VISIBLE: "0,1"}, ("0,1", 2)),
            ({"Device": "0"}, {VISIBLE: "1"}, ("0", None)),
            ({"GPUs": "0"}, {VISIBLE: "1"}, ("", 0)),
            ({}, {VISIBLE: ""}, ("", 0)),
            ({}, {VISIBLE: "-1"}, ("", 0)),
            ({"GPUs": "2"}, {VISIBLE: ""}, ("", 2)),
            ({}, {}, ("", None)),
            ({}, {VISIBLE: None}, ("", None)),
            ({}, {VISIBLE: "1", "SCHEDULER_TASK_ID": "7"}, ("", None)),
        ],
    )
    def test_rows_use_the_devices_that_their_shell_makes_visible(
        self, row: dict[str, str], shell: dict[str, str | None], devices: tuple[str, int | None]
    ) -> None:
        form, cells = RowForm(("Command", *row), shell="abc"), ["true", *row.values()]
        made, ((_, own, terms, _),), _ = limited(form, [(1, cells, form.terms(cells), 0)], shell)
        assert (terms.device, terms.gpus, made.shell) == (*devices, "abc")
        assert made.terms(own) == terms

    def test_a_device_that_is_not_there_is_refused_with_the_variable_that_names_it(self, store: StoreStub) -> None:
        store.trouble = InputError("queue", "there is no device '7' in this run", 1, "Device")
        store.changes = {VISIBLE: "7"}
        message = receiver(store).accept(request("a")).answer.facts["message"]
        assert message == "there is no device '7' in this run (CUDA_VISIBLE_DEVICES=7 in the shell that submits)"


class TestShells:
    def test_the_file_of_a_shell_has_no_secrets_and_is_shared(self, tmp_path: Path) -> None:
        shell = ShellState({"A": "1", "MY_TOKEN": "hidden"}, 0o22, {})
        digest = keep_shell(tmp_path / "shells", shell, PYTHON)
        assert keep_shell(tmp_path / "shells", shell, PYTHON) == digest
        [file] = (tmp_path / "shells").iterdir()
        assert "hidden" not in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        "other",
        [
            ShellState({"A": "2"}, 0o22, {}),
            ShellState({"A": "1"}, 0o77, {}),
            ShellState({"A": "1"}, 0o22, {"RLIMIT_AS": (1, 1)}),
        ],
    )
    def test_shells_that_differ_have_files_of_their_own(self, tmp_path: Path, other: ShellState) -> None:
        one = keep_shell(tmp_path, ShellState({"A": "1"}, 0o22, {}), PYTHON)
        assert keep_shell(tmp_path, other, PYTHON) != one
        assert keep_shell(tmp_path, ShellState({"A": "1"}, 0o22, {}), Python("/other")) != one

    def test_the_environment_of_a_task_is_its_change_of_the_runs(self, tmp_path: Path) -> None:
        digest = keep_shell(tmp_path, ShellState({"A": "1", "B": "new", "API_KEY": "k"}, 0o22, {}), PYTHON)
        shells = SubmittedShells(tmp_path, {"A": "1", "B": "old", "C": "x"})
        assert shells.of(digest).task_shell.environ == {"B": "new", "C": None}
        shells.learn_secrets(digest, {"API_KEY": "k"})
        assert shells.of(digest).task_shell.environ == {"B": "new", "C": None, "API_KEY": "k"}
        assert shells.of(digest).programs.python == PYTHON

    def test_a_task_on_a_node_gets_no_variable_that_means_the_machine_of_its_shell(self, tmp_path: Path) -> None:
        environ = {"A": "2", "HOME": "/home/me", "SSH_TTY": "/dev/pts/1", "SLURM_JOB_ID": "7"}
        digest = keep_shell(tmp_path, ShellState(environ, 0o22, {}), PYTHON)
        shells = SubmittedShells(tmp_path, {"A": "1", "CUDA_VISIBLE_DEVICES": "0"}, on_nodes=True)
        assert shells.of(digest).task_shell.environ == {"A": "2"}

    def test_a_damaged_file_of_a_shell_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "abc").write_text("{")
        with pytest.raises(StateError, match=r"abc, the environment that tasks were submitted with, cannot be read"):
            SubmittedShells(tmp_path, {}).of("abc")


class TestLink:
    @pytest.mark.parametrize("name", ["", "7", "a/b", "..", "-x", "a b", "x" * 65])
    def test_a_name_that_cannot_be_a_file_or_is_a_number_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError):
            checked_name(name)

    def test_the_link_names_the_last_run_that_exists(self, tmp_path: Path) -> None:
        home = StatePaths(tmp_path)
        assert find_queue(home, "queue") is None
        with start_lock(home, "queue"):
            set_queue(home, "queue", 3)
            set_queue(home, "queue", 4)
        assert find_queue(home, "queue") is None
        os.makedirs(home.run(4).root)
        home.run(4).journal.touch()
        found = find_queue(home, "queue")
        assert found is not None
        assert found.number == 4

    def test_one_process_at_a_time_starts_a_queue(self, tmp_path: Path) -> None:
        home, order = StatePaths(tmp_path), list[str]()
        with start_lock(home, "queue"):
            second = threading.Thread(target=lambda: self._note(home, order))
            second.start()
            order.append("first")
        second.join(30)
        assert order == ["first", "second"]

    @staticmethod
    def _note(home: StatePaths, order: list[str]) -> None:
        with start_lock(home, "queue"):
            order.append("second")
