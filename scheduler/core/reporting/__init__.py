"""Reports of a run: tables, timelines and the live status, replayed from its events.

This package formats nothing for a screen. Start at `run_history`.
"""
