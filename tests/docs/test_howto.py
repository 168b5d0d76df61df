"""The commands of how-to pages print what the pages show."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home

HOWTO = Path(__file__).parents[2] / "docs/howto"
SHOWN = ["queue.md", "other-queues.md", "dependencies.md", "tonight.md", "stop-early.md"]
"""The pages whose console blocks are run from top to bottom; `…` stands for any text."""

SWEEP = """\
import sys, time
for epoch in range(1, 10):
    time.sleep(0.3)
    print(f"epoch {epoch}/9 val_loss {float(sys.argv[2]) * epoch + 1 / epoch:.3f}", flush=True)
"""

PATH = "{prep.result.path}"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "train.py").write_text("import sys; print(*sys.argv)\n")
    made.write("jobs.csv", "Command", ["python train.py --lr 0.3"], ["python train.py --lr 0.4"])
    rows = [("evaluate", "evaluate.py", "train"), ("train", f"train.py --lr 0.1 --data {PATH}", "prep")]
    rows += [("train", f"train.py --lr 0.2 --data {PATH}", "prep"), ("prep", "prep.py", "")]
    made.write("pipeline.csv", "Name,Command,After", *((name, f"python {line}", after) for name, line, after in rows))
    result = "import json, os; json.dump({'path': 'data.bin'}, open(os.environ['SCHEDULER_RESULT'], 'w'))"
    (tmp_path / "prep.py").write_text(result)
    made.write("lrs.csv", "lr", *("0.01", "0.03", "0.1", "1", "3"))
    (tmp_path / "sweep.py").write_text(SWEEP)
    (tmp_path / "evaluate.py").write_text("")
    yield made
    made.end()


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a page with the lines that follow them."""
    for block in re.findall(r"^```console\n(.*?)^```", (HOWTO / page).read_text(), re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *printed = part.splitlines()
            yield command, printed


def matches(said: str, shown: list[str]) -> bool:
    """Tell whether a command printed what the page shows; blanks count as one."""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    patterns = [".*".join(re.escape(part.strip()) for part in line.split("…")) for line in shown]
    patterns = [re.sub(r"(\\ )+", " +", pattern) for pattern in patterns]
    return len(lines) == len(patterns) and all(map(re.fullmatch, patterns, lines))


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN)
def test_the_commands_of_a_how_to_print_what_it_shows(home: Home, page: str) -> None:
    call = home.root / "bin" / "scheduler"
    call.parent.mkdir()
    call.write_text(f'#!/bin/sh\nexec {" ".join(home.command)} "$@"\n')
    call.chmod(0o755)
    env = {**home.env, "PATH": f"{call.parent}:{home.env['PATH']}"}
    for command, shown in commands(page):
        done = subprocess.run(
            ["sh", "-c", command], cwd=home.root, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        assert matches(done.stdout, shown), (command, done.stdout, shown)
