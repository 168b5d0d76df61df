"""Hydra's launchers `gsched` and `submitit_gsched`. Hydra imports all of it at each start: it imports nothing heavy."""

__version__ = "0.1.0"
