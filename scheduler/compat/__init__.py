"""The commands and classes of four older tools, implemented with this project's scheduler.

Only `cli` and the public exports may depend on this package. Start at `schedule` or `csv_scheduler`.
"""
