"""The base class of Python tasks."""

from __future__ import annotations

from typing import Any


class GPUTask:
    """One combination of parameters; a subclass does its work in `main`."""

    def __init__(self, config: dict[str, Any], work_dir: str) -> None:
        self._config = config
        """The parameters of this task."""
        self._work_dir = work_dir
        """The folder for its results."""

    def required_env(self) -> dict[str, str]:
        """Return further environment variables for `main`; called before it, when the folder exists."""
        return {}

    def main(self) -> None:
        """Do the work; a subclass overrides this."""
