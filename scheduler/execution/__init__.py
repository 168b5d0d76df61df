"""Execution: shims are started and adopted, and the ends of attempts are read.

No decision is made here. Start at `engine`.
"""
