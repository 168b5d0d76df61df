"""Runs the command as `python -m scheduler`; use `python -m gpu_batch_scheduler` where another package is named
`scheduler`.
"""

from scheduler.cli.main import console

console()
