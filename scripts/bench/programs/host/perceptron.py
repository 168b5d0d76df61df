"""Train a network with one hidden layer on random data, epoch by epoch."""

import numpy as np

SIZE = 1
draw = np.random.default_rng(2)
inputs, targets = draw.random((20_000 * SIZE, 512)), draw.random((20_000 * SIZE, 1))
first, second = draw.normal(size=(512, 128)) / 20, draw.normal(size=(128, 1)) / 10
for _ in range(2):
    for start in range(0, len(inputs), 500):
        rows, wanted = inputs[start : start + 500], targets[start : start + 500]
        hidden = np.maximum(rows @ first, 0)
        error = hidden @ second - wanted
        change = rows.T @ (error @ second.T * (hidden > 0))
        second -= hidden.T @ error / 5e4
        first -= change / 5e4
