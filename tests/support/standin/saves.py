"""A training that holds 20 GiB of a stand-in GPU, saves its step when it is asked to end, and begins at the saved one.

    saves.py STEPS

A step takes half a second, and is noted in the file `steps`: the number of the task and of the step.
"""

from __future__ import annotations

import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import client

SAVED = f"saved-{os.environ['SCHEDULER_TASK_ID']}"
STEP = 0.5


def main() -> None:
    """Work off the steps that are left."""
    step = 0
    if os.path.exists(SAVED):
        with open(SAVED) as file:
            step = int(file.read())

    def save(*_: object) -> None:
        with open(SAVED, "w") as file:
            file.write(str(step))
        sys.exit(75)

    signal.signal(signal.SIGTERM, save)
    client.Cuda().allocate(0, 20 << 30)
    while step < int(sys.argv[1]):
        with open("steps", "a") as file:
            file.write(f"{os.environ['SCHEDULER_TASK_ID']} {step}\n")
        time.sleep(STEP)
        step += 1


if __name__ == "__main__":
    main()
