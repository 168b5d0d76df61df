"""The pure core: events change its state, and for a given machine it decides which tasks start.

Nothing here reads a file or a clock, uses randomness or waits. Start at `run_state` and `brain`, then `lifecycle`.
"""
