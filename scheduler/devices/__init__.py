"""Devices: which memory exists, what is free, and how much each attempt uses.

Nothing is decided here. Start at `pool`.
"""
