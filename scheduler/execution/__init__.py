"""Execution: starting and adopting shims, and reading how attempts ended.

No decision is made here. Start at `engine`.
"""
