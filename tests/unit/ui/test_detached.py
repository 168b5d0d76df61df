"""The hint that logging out ends a detached run."""

from __future__ import annotations

from scheduler.ui.terminal.detached import logging_out_hint
from tests.support.faults import fault


@fault(21)
def test_hint_about_a_session_that_kills_its_processes_names_a_scope_outside() -> None:
    hint = logging_out_hint("session-3.scope", "/etc/systemd/logind.conf", "ann", session=True)
    assert "KillUserProcesses=yes by /etc/systemd/logind.conf" in hint
    assert "systemd-run --user --scope scheduler run -d" in hint


def test_hint_about_a_user_manager_names_lingering() -> None:
    hint = logging_out_hint("user@1000.service", "", "ann", session=False)
    assert "user@1000.service" in hint
    assert hint.endswith("loginctl enable-linger prevents it")
