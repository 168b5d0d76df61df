"""Attempts: how they are described for launch, tracked, published in leases, and judged when they have ended.

No process is started here. Start at `launch_spec`, then `attempt_tracker`.
"""
