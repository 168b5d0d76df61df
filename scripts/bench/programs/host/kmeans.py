"""Group random points around twelve centres."""

import numpy as np

SIZE = 1
draw = np.random.default_rng(3)
points = draw.random((300_000 * SIZE, 24))
centres = points[:12].copy()
for _ in range(3):
    distances = ((points**2).sum(1)[:, None] - 2 * points @ centres.T) + (centres**2).sum(1)
    nearest = distances.argmin(1)
    centres = np.stack([points[nearest == at].mean(0) for at in range(12)])
