"""What the sample training scripts share: their flags, data, checkpoints, the loop over the epochs."""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import sys
from array import array
from itertools import chain

import arrays


def train(model_class):
    """Train a model up to --epochs in total, continuing from the checkpoint of --id if there is one."""
    options = parse(model_class)
    checkpoint = Checkpoint(options)
    if checkpoint.epochs >= options.epochs:
        print(f"already trained {checkpoint.epochs} of {options.epochs} epochs: nothing to do", flush=True)
    else:
        run_epochs(model_class(options, arrays.choose()), options, checkpoint)
    leave_result(loss=checkpoint.loss, epochs=checkpoint.epochs)


def parse(model_class):
    parser = argparse.ArgumentParser(description=model_class.__doc__)
    parser.add_argument("-e", "--epochs", type=int, required=True, help="epochs in total")
    parser.add_argument("-i", "--id", required=True, help="names the checkpoint")
    parser.add_argument("--lr", type=float, default=model_class.lr, help="learning rate")
    parser.add_argument("--samples", type=int, default=model_class.samples, help="rows of the dataset")
    parser.add_argument("--width", type=int, default=model_class.width, help="size of the hidden layer")
    parser.add_argument("--steps", type=int, default=model_class.steps, help="batches in an epoch")
    parser.add_argument("--batch", type=int, default=model_class.batch, help="rows in a batch")
    return parser.parse_args()


def run_epochs(model, options, checkpoint):
    thrift = model.matrices.thrift
    steps, rows = options.steps, max(1, options.batch // thrift)
    if checkpoint.weights:
        model.weights = {name: model.matrices.matrix(kept) for name, kept in checkpoint.weights.items()}
    print(f"loaded {len(model.data)} rows, training with {model.matrices.name}", flush=True)
    for epoch in range(checkpoint.epochs, options.epochs):
        losses = [model.step((epoch * steps + step) * rows, rows) for step in range(steps)]
        loss = float(sum(losses)) / steps
        note = model.validate() if hasattr(model, "validate") else ""
        checkpoint.write(epoch + 1, loss, model.weights)
        print(f"epoch {epoch + 1}/{options.epochs} loss {loss:.4f}{note}", flush=True)


def gaussian(rows, columns, seed, scale=1.0):
    """Return random numbers that are the same on every machine and with every kind of matrices."""
    dice = random.Random(seed)
    return [[dice.gauss(0.0, scale) for _ in range(columns)] for _ in range(rows)]


def repeat(matrices, block, samples):
    """Return a dataset of at least that many rows: its size is real, its variety that of the block."""
    rows = block.tolist()
    return matrices.dataset(rows, -(-samples // len(rows)))


def batch_at(data, offset, rows):
    """Return where a batch begins, going round and round through the dataset."""
    return offset % max(1, len(data) - rows + 1)


class Checkpoint:
    """What a training has reached: a small file per id, replaced in one piece after every epoch."""

    def __init__(self, options):
        folder = os.environ.get("SCHEDULER_TASK_DIR") or "checkpoints"
        self.path = os.path.join(folder, f"{options.id}.json")
        self.model = f"{os.path.basename(sys.argv[0])} --width {options.width}"
        self.epochs, self.loss, self.weights = 0, None, {}
        self._read()

    def _read(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                kept = json.load(file)
        except FileNotFoundError:
            return
        if kept["model"] != self.model:
            print(f"{self.path} is of {kept['model']}, not of {self.model}: starting anew", flush=True)
            return
        self.epochs, self.loss = kept["epochs"], kept["loss"]
        self.weights = {name: unpacked(text) for name, text in kept["weights"].items()}

    def write(self, epochs, loss, weights):
        self.epochs, self.loss = epochs, round(loss, 6)
        packed_weights = {name: packed(matrix) for name, matrix in weights.items()}
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        replace(self.path, model=self.model, epochs=epochs, loss=self.loss, weights=packed_weights)


def packed(matrix):
    rows = matrix.tolist()
    return f"{len(rows)} {base64.b64encode(array('d', chain.from_iterable(rows)).tobytes()).decode()}"


def unpacked(text):
    height, body = text.split()
    values = array("d", base64.b64decode(body))
    width = len(values) // int(height)
    return [values[at : at + width].tolist() for at in range(0, len(values), width)]


def leave_result(**values):
    """Hand the numbers to the scheduler, where one has started this script."""
    if "SCHEDULER_RESULT" in os.environ:
        replace(os.environ["SCHEDULER_RESULT"], **values)


def replace(path, **values):
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(values, file)
    os.replace(f"{path}.part", path)
