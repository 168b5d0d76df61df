"""Task fields, command lines, placeholders, parameter grids and redaction.

What a task needs in memory is not known here. Start at `fields`.
"""
