"""Storage: what survives a crash. It stores; it does not interpret.

Start at `run/run_store` and `machine/leases`.
"""
