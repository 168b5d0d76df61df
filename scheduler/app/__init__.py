"""Use cases: each joins concrete classes for one thing a user asks for.

No SQL, no printing, no decision about placement lives here: `store`, `ui` and `core` do that. Start at `run/session`.
"""
