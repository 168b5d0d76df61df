"""`python -m scheduler` is the command `scheduler`; `python -m gpu_batch_scheduler` is it under any circumstances."""

from scheduler.cli.main import console

console()
