"""Experiments: one list run in several ways (arms), as ordinary or simulated runs, and a report of the results.

This package starts runs and reads their results as any other caller does; only `cli/experiment` imports this package.
Start at `measure`, which measures the arms that `arms` defines, in runs of `real_runs` or `simulated_runs`.
"""
