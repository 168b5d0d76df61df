"""Requests of users to a run, the reasons why tasks wait, and the sentences about them.

No file is read here. Start at `requests`, or at `why` for the reasons.
"""
