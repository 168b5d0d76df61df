"""Task fields, command lines, placeholders, parameter grids and redaction.

How much memory a task needs is not decided here. Start at `fields`.
"""
