"""Requests of the live view to its run, and readers of tasks' files.
Start with `tasks`.
"""
