"""Attempts: how they are launched, tracked, published in leases and judged at their end.

No process is started here. Start at `launch_spec`, then `attempt_tracker`.
"""
