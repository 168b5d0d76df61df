"""The commands and classes of four older tools, on the engine of this project.

Only `cli` and the public exports may depend on it. Start at `schedule` or `csv_scheduler`.
"""
