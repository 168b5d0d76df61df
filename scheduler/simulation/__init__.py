"""A simulated machine with its devices, its tasks and its workloads, for `simulate`, tests and benchmarks.

No real time passes here, and no file but a trace is read. Start at `machine`.
"""
