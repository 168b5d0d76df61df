"""Simulated runs, and experiments that compare several runs of one list.

The simulated machine itself is in `simulation`. Start at `simulated_run` or at `experiment`.
"""
