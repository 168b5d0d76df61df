"""The state directory of a node, which must be its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.app.cluster import agent
from scheduler.errors import StateError
from scheduler.runtime.settings import Settings


@pytest.mark.parametrize(("kind", "refused"), [("nfs4", True), ("ext4", False)])
def test_a_state_directory_on_a_network_file_system_is_refused_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: bool
) -> None:
    monkeypatch.setattr(agent, "file_system", lambda path: kind)
    settings = Settings(state=str(tmp_path))
    if not refused:
        assert agent._own_state(settings).root == tmp_path
        return
    with pytest.raises(StateError, match=r"is on a network file system \(nfs4\): name one on a local disk there"):
        agent._own_state(settings)
