"""Simulated runs of a list or a trace, with the decisions of a real run.

The simulated machine itself is in `simulation`. Start at `simulated_run`; `scenario` reads the rows.
"""
