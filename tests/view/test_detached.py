"""What is said where logging out ends a run."""

from __future__ import annotations

from scheduler.view.detached import logging_out_hint
from tests.faults import fault


@fault(21)
def test_a_session_that_is_killed_is_left_by_a_scope_of_ones_own() -> None:
    said = logging_out_hint("session-3.scope", "/etc/systemd/logind.conf", "ann", session=True)
    assert "KillUserProcesses=yes by /etc/systemd/logind.conf" in said
    assert "systemd-run --user --scope scheduler run -d" in said


def test_a_service_manager_that_ends_with_the_last_session_is_kept_by_lingering() -> None:
    said = logging_out_hint("user@1000.service", "", "ann", session=False)
    assert "user@1000.service" in said
    assert said.endswith("loginctl enable-linger keeps it")
