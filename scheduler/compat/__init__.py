"""The commands and classes of four older tools, implemented with the engine of this project.

Only `cli` and the public exports may depend on it. Start at `schedule` or `csv_scheduler`.
"""
