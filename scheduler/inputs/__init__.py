"""Inputs: files, tables, grids, lines and Python objects, each turned into rows of task fields.

Rows are checked here, and accepted in `app/run`. Start at `csv_reader`.
"""
