"""The pure core: events change its state, and for a given machine it decides.

No file, no clock, no randomness, no waiting. Start at `run_state` and `brain`, then `lifecycle`.
"""
