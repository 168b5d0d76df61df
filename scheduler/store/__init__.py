"""Storage of everything that survives a crash; this package does not interpret what it stores.

Start at `run/run_store` and `machine/leases`.
"""
