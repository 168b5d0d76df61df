"""The command `scheduler` as `python -m gpu_batch_scheduler`, which works even if another module is called
scheduler.
"""

from gpu_batch_scheduler import console

console()
