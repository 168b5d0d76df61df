"""Real launchers side by side: torchrun, accelerate, DeepSpeed and Lightning, with torch on the CPU.

They are found on PATH, or in the folder that LAUNCHERS names; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.core.tasks import launchers
from scheduler.core.tasks.launchers import Launcher
from tests.support.standin.box import NO_COMPILER

ROOT = Path(__file__).parents[3]
FOLDER = os.environ.get("LAUNCHERS") or str(Path(shutil.which("deepspeed") or "/nowhere/deepspeed").parent)
PROGRAMS = ("python", "torchrun", "accelerate", "deepspeed")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER),
    pytest.mark.skipif(
        not all(os.access(f"{FOLDER}/{name}", os.X_OK) for name in PROGRAMS),
        reason="torch, accelerate, deepspeed and lightning are not installed together (LAUNCHERS=their folder)",
    ),
]
SWITCHES = """
import argparse, json
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser
parsers = {"accelerate launch": launch_command_parser(), "torchrun": get_args_parser()}
parse = argparse.ArgumentParser.parse_args
argparse.ArgumentParser.parse_args = lambda self, args=None: parsers.setdefault("deepspeed", self)
from deepspeed.launcher import runner
runner.parse_args([])
print(json.dumps({name: [option.replace("_", "-") for action in parser._actions if action.nargs == 0
    for option in action.option_strings] for name, parser in parsers.items()}))
"""


def test_seven_jobs_of_four_launchers_meet_at_the_same_moment() -> None:
    script = ROOT / "scripts/bench/launchers.py"
    done = subprocess.run(
        [sys.executable, script, "--bin", FOLDER, "--goes", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 met, 0 failed" in done.stdout


def test_every_option_without_a_value_is_known() -> None:
    done = subprocess.run([f"{FOLDER}/python", "-c", SWITCHES], capture_output=True, text=True, check=True)
    found = {name: set(said) - {"-h", "--help"} for name, said in json.loads(done.stdout.splitlines()[-1]).items()}
    assert {name: said - launchers._SWITCHES[Launcher(name)] for name, said in found.items()} == {
        name: set() for name in found
    }
    assert {*found} == {*Launcher}
