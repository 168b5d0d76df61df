"""Runs in this process, from reading the list to printing the last line: options, admission, start, resume, session,
loop.

Looking at runs of other processes belongs to `app/observe`. Start at `run_loop`.
"""
