"""The command `scheduler` as `python -m scheduler`.

Use `python -m gpu_batch_scheduler` where another package is named `scheduler`.
"""

from scheduler.cli.main import console

console()
