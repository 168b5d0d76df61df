"""Reports of a run: tables, timelines and the live status, replayed from its events.

Nothing is formatted for a screen here. Start at `run_history`.
"""
