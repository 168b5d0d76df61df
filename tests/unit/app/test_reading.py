"""A view of a run while its scheduler goes on writing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.app.observe.run_reader import RunReader
from scheduler.core.events import Arrived
from scheduler.core.model import State
from scheduler.runtime.paths import find_places
from scheduler.store.run.catalog import RunCatalog
from scheduler.store.run.journal import Journal
from scheduler.store.run.journal_reader import Recorded, Row
from tests.support.builders import placed
from tests.support.killing import Home


class Meanwhile(Journal):
    """A journal that gets two more rows, one of them started, while a reader is about to read its events."""

    def events(self, after: int = 0) -> Iterator[Recorded]:
        if not after:
            self.add()
        return super().events(after)

    def add(self) -> None:
        writer = Journal.open(self.path)
        last = writer.last() or 0
        row = writer.row(last)
        with writer.transaction():
            writer.put_rows((last + n, 2, row.row + n, 0, row.terms, row.form, row.text) for n in (1, 2))
            writer.put_events([Arrived(2), placed(last + 1)], 0.0)
        writer.close()


class Afterwards(Meanwhile):
    """A journal that gets them while a reader is about to read its rows, after its events."""

    def events(self, after: int = 0) -> Iterator[Recorded]:
        return Journal.events(self, after)

    def rows(self) -> Iterator[tuple[int, int, Row]]:
        self.add()
        return super().rows()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.commands("true")
    made.call("run", "jobs.csv", "--devices", "host", code=0)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Meanwhile, Afterwards])
def test_rows_accepted_during_a_read_appear_at_the_next_read(home: Home, kind: type[Meanwhile]) -> None:
    info = RunCatalog(find_places(str(home.state))).find("r1")
    reader = RunReader(info, kind.read(info.places.journal))
    assert [row["state"] for row in reader.rows()] == ["succeeded"]
    reader.catch_up()
    assert reader.brain.state_counts == {State.SUCCEEDED: 1, State.RUNNING: 1, State.WAITING: 1}
