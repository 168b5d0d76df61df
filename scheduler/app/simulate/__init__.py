"""Simulated runs of a list or a trace, with the decisions that a real run would make.

The simulated machine itself is in `simulation`. Start at `simulated_run`; `scenario` reads the rows.
"""
