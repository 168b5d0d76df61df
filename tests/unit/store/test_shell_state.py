"""The shell that a run was started from: what is kept of it, and what of it applies elsewhere."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from scheduler.core.tasks.redaction import looks_secret
from scheduler.store.run.shell_state import ShellState, keep, kept, this_shell, with_secrets

NONE = resource.RLIM_INFINITY


def shell(files: tuple[int, int] = (1024, 4096), umask: int = 0o022, **environ: str) -> ShellState:
    return ShellState(environ, umask, {"RLIMIT_NOFILE": files})


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "DB_PASS",
        "GIT_CREDENTIALS",
        "my_auth_header",
    ],
)
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "WANDB_PROJECT", "OMP_NUM_THREADS"])
def test_names_that_only_resemble_secrets_are_not_secret(name: str) -> None:
    assert not looks_secret(name)


def test_a_kept_environment_is_read_without_secrets(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\n")
    keep(tmp_path / "env", shell(PATH="/bin", HF_TOKEN="canary", ODD=odd))
    assert kept(tmp_path / "env") == ShellState(
        {"PATH": "/bin", "ODD": odd}, 0o022, {"RLIMIT_NOFILE": (1024, 4096)}, ("HF_TOKEN",)
    )
    assert "canary" not in (tmp_path / "env").read_text()
    assert os.listdir(tmp_path) == ["env"]


def test_a_missing_file_gives_no_environment(tmp_path: Path) -> None:
    assert kept(tmp_path / "env") is None


def test_the_state_of_this_shell_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_SINCE", "yes")
    keep(tmp_path / "env", this_shell())
    back = kept(tmp_path / "env")
    assert back is not None
    mask = os.umask(0)
    os.umask(mask)
    assert (back.environ["SET_SINCE"], back.umask) == ("yes", mask)
    assert back.limits["RLIMIT_NOFILE"] == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert back.beyond(this_shell()) == {}


def test_secrets_come_from_the_current_shell() -> None:
    first = ShellState({"PATH": "/first"}, 0, {}, ("HF_TOKEN", "WANDB_API_KEY"))
    now = with_secrets(first, {"PATH": "/now", "HF_TOKEN": "t"})
    assert (now.environ, now.withheld) == ({"PATH": "/first", "HF_TOKEN": "t"}, ("WANDB_API_KEY",))


def test_only_limits_and_umask_that_differ_are_set() -> None:
    assert shell().beyond(shell()) == {}
    assert shell(umask=0o077).beyond(shell()) == {"umask": 0o077}
    assert shell((300, 4096)).beyond(shell()) == {"limits": {"RLIMIT_NOFILE": (300, 4096)}}


@pytest.mark.parametrize(
    ("first", "here", "got"),
    [
        ((1024, NONE), (256, 512), (512, 512)),
        ((1024, 4096), (256, NONE), (1024, 4096)),
        ((NONE, NONE), (256, 512), (512, 512)),
        ((NONE, NONE), (256, NONE), (NONE, NONE)),
        ((300, 400), (NONE, NONE), (300, 400)),
    ],
)
def test_a_limit_is_raised_as_far_as_the_hard_limit_allows(
    first: tuple[int, int], here: tuple[int, int], got: tuple[int, int]
) -> None:
    assert shell(first).beyond(shell(here))["limits"] == {"RLIMIT_NOFILE": got}


def test_a_limit_out_of_reach_is_named_with_both_numbers() -> None:
    (said,) = shell((NONE, NONE)).out_of_reach(shell((256, 512)))
    assert said == "the run was started with no limit of nofile; this shell allows at most 512, which its tasks get"
    (said,) = shell((800, 800)).out_of_reach(shell((256, 512)))
    assert said == "the run was started with nofile limited to 800; this shell allows at most 512, which its tasks get"
    assert shell((512, NONE)).out_of_reach(shell((256, 512))) == []
