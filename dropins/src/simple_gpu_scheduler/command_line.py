"""`python -m simple_gpu_scheduler.command_line` is the command `simple_gpu_scheduler`."""

from gpu_batch_scheduler_dropins import simple_gpu_scheduler as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
