"""Experiments: one list run in several ways (arms), as ordinary or simulated runs, and a report of what was measured.

It starts runs and reads their results as every other caller does; nothing else imports it but `cli/experiment`.
Start at `measure`: it measures the arms of `arms`, with the runs of `real_runs` or `simulated_runs`.
"""
