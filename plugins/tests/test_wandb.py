"""The agent of Weights & Biases with `scheduler exec` as its command. Its server is three functions of this test."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plugins.tests.plugin_home import PluginHome

pytest.importorskip("wandb")
pytestmark = pytest.mark.slow

TRAIN = """\
import os, signal, sys, time
print("run", os.environ["WANDB_RUN_ID"], *sys.argv[1:], flush=True)

def save(*_):
    open("saved", "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
open("began", "a").write(os.environ["WANDB_RUN_ID"] + " ")
time.sleep(0 if "--lr=0.1" in sys.argv else 60)
"""
AGENT = """\
import os, queue
import wandb, yaml
from wandb import wandb_agent
from wandb.apis.public import sweeps

command = ["scheduler", "exec", "--grace", "20s", "--", "${interpreter}", "${program}", "${args}"]
runs = [("first", 0.1), ("second", 0.2)]
told = []

def heartbeat(api, agent, metrics, running):
    told.append(dict(running))
    if not running and runs:
        run, rate = runs.pop(0)
        return [{"type": "run", "run_id": run, "program": "train.py", "args": {"lr": {"value": rate}}}]
    if "second" in running and os.path.exists("began") and "second" in open("began").read():
        return [{"type": "stop", "run_id": "second"}]
    return [{"type": "exit"}] if not running else []

sweeps._sweep_with_runs = lambda api, sweep, runs: {"config": yaml.dump({"program": "train.py", "command": command})}
sweeps._register_agent = lambda api, host, sweep_id: {"id": "agent"}
sweeps._agent_heartbeat = heartbeat
wandb.Api = lambda: None
wandb_agent.Agent.POLL_INTERVAL = 0.2
os.environ["WANDB_SWEEP_ID"] = "sweep"
wandb_agent.Agent(None, queue.Queue(), sweep_id="sweep").run()
"""


def test_runs_of_an_agent_are_tasks_and_its_stop_ends_the_task(home: PluginHome) -> None:
    (home.root / "scheduler").write_text(f'#!/bin/sh\nexec {" ".join(home.command)} "$@"\n')
    (home.root / "scheduler").chmod(0o755)
    (home.root / "train.py").write_text(TRAIN)
    before = time.monotonic()
    home.program(AGENT, env={"PATH": f"{home.root}:{home.env['PATH']}"}, name="agent.py")
    assert time.monotonic() - before < 55  # not the whole second run
    first, second = home.tasks("1")
    assert (first["state"], second["state"]) == ("succeeded", "cancelled")
    assert (home.root / "saved").exists()
    assert Path(first["log"]).read_text() == "run first --lr=0.1\n"
    assert second["command"] == "python train.py --lr=0.2"
