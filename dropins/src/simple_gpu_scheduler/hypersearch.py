"""`python -m simple_gpu_scheduler.hypersearch` is the command `simple_hypersearch`."""

from gpu_batch_scheduler_dropins import simple_hypersearch as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
