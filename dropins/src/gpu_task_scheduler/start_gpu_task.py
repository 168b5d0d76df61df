"""`python -m gpu_task_scheduler.start_gpu_task` is the command `start_gpu_task`."""

from gpu_batch_scheduler_dropins import start_gpu_task as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
