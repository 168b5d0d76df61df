"""Keep a stock in a database in memory, and ask it by an index."""

import random
import sqlite3

SIZE = 1
dice = random.Random(10)
stock = sqlite3.connect(":memory:")
stock.execute("CREATE TABLE items (number INTEGER, shelf INTEGER, text TEXT)")
rows = ((number, dice.randrange(1000), f"item {number} " * 8) for number in range(600_000 * SIZE))
stock.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
stock.execute("CREATE INDEX shelves ON items (shelf, number)")
for shelf in range(1000):
    stock.execute("SELECT count(*), max(number) FROM items WHERE shelf = ?", (shelf,)).fetchone()
