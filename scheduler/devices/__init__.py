"""Devices: what memory exists, what is free, and which attempt uses how much.

Devices decide nothing. Start at `pool`.
"""
