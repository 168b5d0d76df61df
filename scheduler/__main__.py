"""The command `scheduler` as `python -m scheduler`; `python -m gpu_batch_scheduler` also works beside a namesake."""

from scheduler.cli.main import console

console()
