"""Devices: the memory that exists, the memory that is free, and the memory that each attempt uses.

This package decides nothing. Start at `pool`.
"""
