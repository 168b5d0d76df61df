"""The base class of Python tasks."""

from __future__ import annotations

from typing import Any


class GPUTask:
    """One combination of parameters; a task of one's own says in `main` what to do with it."""

    def __init__(self, config: dict[str, Any], work_dir: str) -> None:
        self._config = config
        """The parameters of this task."""
        self._work_dir = work_dir
        """The folder for its results."""

    def required_env(self) -> dict[str, str]:
        """Further variables that `main` needs; asked before it, with the folder there already."""
        return {}

    def main(self) -> None:
        """The work itself."""
