"""How far the words for a lack of memory carry to programs that they were not written for: leave-one-product-out.

    python scripts/bench/oom_words.py [--missed] [--rules]

A text of tests/data/oom is carried if a rule recognises it that also recognises a text of another product: without
this product, the rule would be there all the same. The sentences of single products count for nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler.core.profiling import oom_words
from scheduler.core.profiling.oom_patterns import what_ran_out
from tests.unit.core.profiling.test_oom_texts import KEPT, LEARNED, NONE

NEVER = re.compile(r"(?!)")
GROUPS = {"SHORT": oom_words.SHORTAGE, "REFUSES": oom_words.REFUSED, "CODE": oom_words.CODES}
"""The compiled pattern of each group of rules, by its name in the module."""


@contextmanager
def only(name: str, rule: str | None) -> Iterator[None]:
    """Put out all rules but this one (None: those of its whole group)."""
    names = [*GROUPS, "TRANSLATED", "PRODUCTS"]
    before = {each: getattr(oom_words, each) for each in names}
    try:
        for each in names:
            setattr(oom_words, each, NEVER)
        setattr(oom_words, name, before[name] if rule is None else re.compile(rule, before[name].flags))
        yield
    finally:
        for each, pattern in before.items():
            setattr(oom_words, each, pattern)


def product(title: str) -> str:
    """Return the product of a text: its title begins with it."""
    return re.split(r" below |,| of \d| on | in | with ", title)[0].partition(" ")[0 if title[:2] != "a " else 2]


def recognised(texts: dict[str, str]) -> dict[str, set[str]]:
    """Return, for each rule, the texts that it recognises by itself."""
    found: dict[str, set[str]] = {}
    rules = [(name, rule) for name, group in GROUPS.items() for rule in group]
    for name, rule in [*rules, ("TRANSLATED", None)]:
        with only(name, rule):
            found[rule or name] = {title for title, lines in texts.items() if what_ran_out(lines)}
    return found


def main() -> int:
    """Measure, print the shares, and return 0."""
    parser = argparse.ArgumentParser(description="Measure the words for a lack of memory, leave-one-product-out.")
    parser.add_argument("--missed", action="store_true", help="name the texts that no general rule carries")
    parser.add_argument("--rules", action="store_true", help="show how many products each rule is supported by")
    options = parser.parse_args()
    texts = {title: lines for title, (_, lines) in {**LEARNED, **KEPT}.items()}
    found = recognised(texts)
    products = {rule: {product(title) for title in titles} for rule, titles in found.items()}
    carriers: dict[str, list[str]] = defaultdict(list)
    for rule, titles in found.items():
        for title in titles:
            if products[rule] - {product(title)}:
                carriers[title].append(rule)
    missed = sorted(set(texts) - set(carriers))
    false = [title for cases in NONE.values() for title, (_, lines) in cases.items() if what_ran_out(lines)]
    others = sum(map(len, NONE.values()))
    number = len({product(title) for title in texts})
    print(f"{len(texts)} texts of {number} products, {len(found)} rules")
    print(f"carried by rules of other products: {len(carriers)} ({len(carriers) / len(texts):.1%})")
    print(f"taken wrongly: {len(false)} of {others} ({len(false) / others:.1%})")
    if options.rules:
        for rule in sorted(found, key=lambda one: len(products[one])):
            print(f"{len(products[rule]):4} products, {len(found[rule]):4} texts  {rule[:100]}")
    if options.missed:
        print(*missed, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
