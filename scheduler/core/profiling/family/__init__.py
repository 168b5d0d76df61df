"""Families of task classes: which arguments of a script determine its memory.

Everything in this package is derived from observed peaks, and updated when they change. Start at `families`.
"""
