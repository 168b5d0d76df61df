"""The Python API: runs, functions on many values, and what they return.

It may import `app`, `inputs` and what lies below them; `scheduler` exports the public names. Start at `run`.
"""
