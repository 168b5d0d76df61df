"""The Python API: runs, calls of functions on many values, and their results.

This package may import `app`, `inputs` and the packages below them; `scheduler` exports the public names. Start at
`run`.
"""
