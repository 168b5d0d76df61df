"""Use cases: each module joins concrete classes for one thing that users can ask for.

This package contains no SQL, no printing and no decisions about placement: they belong to `store`, `ui` and `core`.
Start at `run/session`.
"""
