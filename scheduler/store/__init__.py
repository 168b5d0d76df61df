"""Storage: what survives a crash. It stores without interpreting.

Start at `run/run_store` and `machine/leases`.
"""
