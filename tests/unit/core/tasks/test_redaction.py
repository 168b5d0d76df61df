"""Redaction of values whose names look like secrets, in every way in which they are written."""

from __future__ import annotations

import pytest

from scheduler.core.tasks.command import name
from scheduler.core.tasks.redaction import masked, shown, without_secrets
from tests.support.builders import spec
from tests.support.faults import fault

CANARY = "c4n4ry"


@fault(61)
@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["train", "--hf_token", CANARY, "--lr", "1"], "train --hf_token *** --lr 1"),
        (["train", f"--hf-token={CANARY}"], "train --hf-token=***"),
        (["train", "--api-key", f"-{CANARY}"], "train --api-key ***"),
        (["train", "--apikey", CANARY], "train --apikey ***"),
        (["train", "--wandbKey", f"a {CANARY}"], "train --wandbKey ***"),
        (["train", f"--client_secret=a {CANARY}"], "train --client_secret=***"),
        (["train", "--db.password", CANARY], "train --db.password ***"),
        (["train", "-password", CANARY], "train -password ***"),
        (["train", f"model.api_key={CANARY}"], "train model.api_key=***"),
        (["env", f"WANDB_API_KEY={CANARY}", "train"], "env 'WANDB_API_KEY=***' train".replace("'", "")),
        (["sh", "-c", f"HF_TOKEN={CANARY} train --token '{CANARY} b'"], "sh -c 'HF_TOKEN=*** train --token ***'"),
        (["curl", "-H", f"Authorization: Bearer {CANARY}"], "curl -H 'Authorization: Bearer ***'"),
        (["train", f'{{"password": "{CANARY}", "lr": 1}}'], """train '{"password": "***", "lr": 1}'"""),
        (["git", "clone", f"https://me:{CANARY}@host/x"], "git clone https://me:***@host/x"),
        (["train", f"hf_{CANARY}0123456789"], "train ***"),
    ],
)
def test_a_value_whose_name_looks_secret_is_hidden(argv: list[str], line: str) -> None:
    said = shown(argv)
    assert CANARY not in said
    assert said.replace("'", "") == line.replace("'", "")
    assert shown(argv, secrets=True).count(CANARY) == " ".join(argv).count(CANARY)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --lr 0.1 --max_tokens 512 --tokenizer gpt2 --keypoints 17 --keyword x",
        "python monkey.py --passes=3 --path a/key/b --bypass",
        "sh -c 'echo token; cat key'",
        "python t.py --lr=1e-3 seed=7",
    ],
)
def test_values_of_names_that_only_resemble_secrets_are_shown(line: str) -> None:
    assert without_secrets(line) == line


def test_a_task_name_made_of_its_command_hides_secrets() -> None:
    assert name(spec(f"train.py --token {CANARY}")) == "train --token ***"


def test_secret_columns_of_the_user_are_hidden_and_task_fields_are_not() -> None:
    row = {"key": "abc", "command": f"x --token {CANARY}", "api_key": CANARY, "lr": "1", "n": 3, "result.key": "top"}
    assert masked(row, frozenset({"key", "command"}), ("command",)) == {
        "key": "abc", "command": "x --token ***", "api_key": "***", "lr": "1", "n": 3, "result.key": "top",
    }  # fmt: skip
