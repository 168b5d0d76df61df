"""Launcher: `python scheduler.py --csv FILE` runs a CSV of training jobs, with the flags of the batch-by-batch tool."""

import sys

from scheduler.compat.csv_scheduler import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
