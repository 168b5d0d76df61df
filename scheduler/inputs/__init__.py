"""Inputs: files, tables, grids, lines and Python objects, each turned into rows of task fields.

This package checks rows; `app/run` accepts them. Start at `csv_reader`.
"""
