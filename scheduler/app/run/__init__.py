"""Runs in this process, from the list to the last line: options, admission, start, resume, session, loop.

Looking at runs of other processes belongs to `app/observe`. Start at `run_loop`.
"""
