"""Average the spectra of noisy signals."""

import numpy as np

SIZE = 1
draw = np.random.default_rng(4)
total = np.zeros(1 << 20)
for _ in range(2):
    signals = draw.random((4 * SIZE, 1 << 21))
    total += np.abs(np.fft.rfft(signals, axis=1)).mean(0)[: 1 << 20]
