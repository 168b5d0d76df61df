"""The Python API: runs, calls of functions on many values, and their results.

It may import `app`, `inputs` and what lies below them; `scheduler` exports the public names. Start at `run`.
"""
