"""Sum sales by shop and day in a table."""

import numpy as np
import pandas as pd

SIZE = 1
draw = np.random.default_rng(7)
rows = 1_500_000 * SIZE
table = pd.DataFrame({
    "shop": draw.integers(0, 500, rows), "day": draw.integers(0, 365, rows), "amount": draw.random(rows),
})  # fmt: skip
for _ in range(1):
    table.groupby(["shop", "day"])["amount"].agg(["sum", "mean", "max"]).sort_values("sum")
