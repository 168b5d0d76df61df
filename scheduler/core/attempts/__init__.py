"""Attempts: how they are described for launch, tracked, published in leases and judged at their end.

No process is started here. Start at `launch_spec`, then `attempt_tracker`.
"""
