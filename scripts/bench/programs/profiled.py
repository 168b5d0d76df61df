"""The scheduler in this process, under cProfile: `python profiled.py OUT WORDS...`."""

import cProfile
import sys

from scheduler.cli.main import main

profile = cProfile.Profile()
sys.argv = ["scheduler", *sys.argv[2:], *sys.argv[1:2]]
code = profile.runcall(main, sys.argv[1:-1])
profile.dump_stats(sys.argv[-1])
sys.exit(code)
