"""Count the pairs of words of a made-up text in dictionaries."""

import random
from collections import Counter
from itertools import pairwise

SIZE = 1
dice = random.Random(9)
words = [f"word{int(dice.paretovariate(0.7)) % 200_000}" for _ in range(700_000 * SIZE)]
pairs = Counter(pairwise(words))
print(pairs.most_common(3))
