"""Modules that a run needs after its first launch are all loaded before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import scheduler
from scheduler.app.run.run_loop import NOT_IN_A_RUN

PACKAGE = Path(scheduler.__file__).parent
RUNNING = ("cli.run", "cli.resume", "cli.exec", "cli.experiment", "cli.grid", "cli.profiles", "compat.schedule")
"""The modules of verbs that run a scheduler."""
ENTRIES = (
    "scheduler.api", "scheduler.cli", "scheduler.compat", "scheduler.ui.terminal.live_view",
    "scheduler.ui.terminal.screen", "scheduler.ui.terminal.top", "scheduler.experiment", "scheduler.ui.live",
    "scheduler.app.live", "scheduler.app.queue.exec_client", "scheduler.app.cluster", "scheduler.cluster",
)  # fmt: skip
"""Modules that a run loads through these, before there is anything to launch."""


def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of all modules of the package, by name."""
    files = {path.relative_to(PACKAGE.parent): path for path in PACKAGE.rglob("*.py")}
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): path for file, path in files.items()}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in names.items()}


def imported(module: ast.Module) -> Iterator[str]:
    """Yield the modules that a module imports anywhere, except for types."""
    for node in ast.walk(module):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_nothing_that_a_run_reaches_is_left_out() -> None:
    ours = modules()
    todo = [*(f"scheduler.{where}" for where in RUNNING), "scheduler.api.run", "scheduler.api.map"]
    reached = set(todo)
    while todo:
        new = {name for name in imported(ours[todo.pop()]) if name in ours} - reached
        reached |= new
        todo += new
    assert [name for name in reached if name.startswith(NOT_IN_A_RUN) and not name.startswith(ENTRIES)] == []
