"""Looking at runs and at the machine: readers of journals, leases and devices.

Nothing here changes a run. Start at `run_reader`.
"""
