"""The pure core: events change its state, and asked with a machine it decides.

No file, no clock, no randomness, no waiting. Start at `brain`, then `lifecycle`.
"""
