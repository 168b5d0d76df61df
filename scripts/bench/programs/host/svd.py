"""Compress random images by their largest singular values."""

import numpy as np

SIZE = 1
draw = np.random.default_rng(1)
images = draw.random((20 * SIZE, 700, 700))
for image in images[:3]:
    left, values, right = np.linalg.svd(image)
    images[0] += (left[:, :50] * values[:50]) @ right[:50]
