"""Families of task classes: which arguments of a script determine its memory.

Everything here is derived from observed peaks whenever they change. Start at `families`.
"""
