"""The base class of Python tasks."""

from __future__ import annotations

from typing import Any


class GPUTask:
    """The base class of a task; `main` of a subclass does the work for one combination of parameters."""

    def __init__(self, config: dict[str, Any], work_dir: str) -> None:
        self._config = config
        """The parameters of this task."""
        self._work_dir = work_dir
        """The folder for the task's results."""

    def required_env(self) -> dict[str, str]:
        """Return additional environment variables for `main`; it is called after the folder was created and before
        `main`.
        """
        return {}

    def main(self) -> None:
        """Do the work; a subclass overrides this."""
