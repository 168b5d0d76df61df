"""The queue of waiting tasks: their table, their rank, the turns among users, quotas.

Whether a task fits is decided in `core/placement`. Start at `wait_queue`.
"""
