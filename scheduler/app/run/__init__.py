"""Runs in this process, from reading the list to printing the last line.

Looking at runs of other processes belongs to `app/observe`. Start at `run_loop`.
"""
