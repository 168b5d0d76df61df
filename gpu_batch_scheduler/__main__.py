"""`python -m gpu_batch_scheduler` is the command `scheduler`, whatever else bears that name."""

from gpu_batch_scheduler import console

console()
