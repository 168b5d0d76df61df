#!/usr/bin/env python3
"""Launcher: `scheduler.py --csv FILE` runs a CSV of training jobs, `scheduler.py "train.py --lr 0.1"` one task.

It has the flags of two older tools. Any Python 3.6 can read it, so that one that is too old is named.
"""

import os
import sys
from importlib import import_module

if __name__ == "__main__":
    here = os.path.dirname(os.path.realpath(__file__))
    if sys.version_info < (3, 11):
        found = f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}"
        sys.exit(f"scheduler: {found}, and 3.11 or newer is needed: {here}/scripts/run finds one")
    if not os.path.isfile(os.path.join(here, "gpu_batch_scheduler", "__init__.py")):
        sys.exit(f"scheduler: {__file__} needs the folders beside it: make a link to the one in the project (ln -s)")
    # No import statement: the import law would take it for one of the package of the same name.
    import_module("gpu_batch_scheduler").door("csv_scheduler")
