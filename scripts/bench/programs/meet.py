"""One process of a distributed job on the CPU: it meets the others, and stays until all jobs of the list have met.

Its launcher has set the variables of torch's `env://`. Lightning starts its own processes: `meet.py --lightning`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def stay(rank: int) -> None:
    """Add up the ranks, say that this job has met, and wait for the others."""
    world = dist.get_world_size()
    total = torch.ones(1) * (rank + 1)
    dist.all_reduce(total)
    if total.item() != world * (world + 1) / 2:
        sys.exit(f"the ranks add up to {total.item()}: other processes than those of this job have met")
    gate, jobs = Path(os.environ["MEET_GATE"]), int(os.environ["MEET_JOBS"])
    if rank == 0:
        (gate / f"{os.environ.get('SCHEDULER_TASK_ID', os.getpid())}.{os.environ['MASTER_PORT']}").touch()
    deadline = time.monotonic() + float(os.environ["MEET_PATIENCE"])
    while len(os.listdir(gate)) < jobs and time.monotonic() < deadline:
        time.sleep(0.1)
    dist.barrier()
    print(f"met: rank {rank} of {world} at port {os.environ['MASTER_PORT']}", flush=True)


def lightning() -> None:
    """Train one step with two processes that Lightning starts."""
    from lightning.pytorch import LightningModule, Trainer

    class Model(LightningModule):  # type: ignore[misc]  # Lightning is not installed where this is checked
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

        def on_train_end(self) -> None:
            stay(self.global_rank)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet)
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 4)))


def main() -> None:
    """Meet the other processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lightning", action="store_true")
    parser.add_argument("--local_rank")  # DeepSpeed says it
    if parser.parse_args().lightning:
        lightning()
        return
    dist.init_process_group("gloo")
    stay(dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
