"""Join orders with their customers."""

import numpy as np
import pandas as pd

SIZE = 1
draw = np.random.default_rng(8)
rows = 800_000 * SIZE
orders = pd.DataFrame({"customer": draw.integers(0, rows // 4, rows), "amount": draw.random(rows)})
customers = pd.DataFrame({"customer": np.arange(rows // 4), "region": draw.integers(0, 50, rows // 4)})
for _ in range(3):
    orders.merge(customers, on="customer").groupby("region")["amount"].sum()
