"""Requests of the live view to its run, and a reader of tasks' files, both in threads.
Start with `tasks`.
"""
