"""The command `scheduler` as `python -m gpu_batch_scheduler`, also where another module is called scheduler."""

from gpu_batch_scheduler import console

console()
