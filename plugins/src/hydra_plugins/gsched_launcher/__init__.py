"""Hydra's launchers `gsched` and `submitit_gsched`. Hydra imports the whole package at each start, so nothing here
imports a heavy module.
"""

__version__ = "0.1.0"
