"""The base of every process of the project: paths, settings, processes, signals, clocks, the loop, the shim.

Only `loop`, its helpers `look_ahead` and `notices`, and `event_sources` may import `core`. Start at `loop`; for
attempts at `shim`.
"""
