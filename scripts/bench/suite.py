"""Measures everything and writes docs/performance.md: `python scripts/bench/suite.py [--quick] [--only PART]`.

Parts are measured one by one; the figures of each are kept in docs/performance.json, of which the page is made, so
parts can be measured again one at a time. `--page` only writes the page anew. The machine should have nothing
else to do.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import ROOT, Bench, machine, today
from page import Section, load, written

PARTS = ("dispatch", "reaction", "startup", "queued", "decision", "accept", "policy", "gpu_pack", "light", "live")
"""In the order of the page; each is a module beside this one."""
STORED, PAGE, CHARTS = ROOT / "docs/performance.json", ROOT / "docs/performance.md", ROOT / "docs/performance"


def main() -> int:
    """Measure what was asked for, write the page; 1 where a figure is not what it is to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter lists and fewer turns")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--traces", type=Path, default=ROOT / "traces", help="folder of the measured traces")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="where page, charts and figures go (docs)")
    args = parser.parse_args()
    compileall.compile_dir(ROOT / "scheduler", quiet=1)  # as an installed one is, whatever this shell says of bytecode
    args.out.mkdir(parents=True, exist_ok=True)
    stored = load(args.out / STORED.name)
    for part in () if args.page else args.only:
        stored["machine"] = machine()
        stored["parts"][part] = measured(part, args.quick, args.traces)
        (args.out / STORED.name).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    sections = pages(stored)
    (args.out / PAGE.name).write_text(written(stored, sections, args.out / CHARTS.name), encoding="utf-8")
    bounds = [bound for one in sections for bound in one.bounds]
    for bound in bounds:
        print("ok  " if bound.kept else "MISS", *bound.row()[:3], sep="   ")
    return 0 if all(bound.kept for bound in bounds) else 1


def measured(part: str, quick: bool, traces: Path) -> dict[str, Any]:
    """The figures of a part, and when and how they were taken."""
    load_before, began = os.getloadavg()[0], time.monotonic()
    print(f"== {part}", flush=True)
    with tempfile.TemporaryDirectory(prefix=f"bench-{part}-") as folder:
        found = importlib.import_module(part).measure(Bench(Path(folder), quick, traces))
    took = round(time.monotonic() - began)
    print(f"   {took} s", flush=True)
    how = {"load": round(load_before, 1), "nice": os.nice(0), "quick": quick}
    return {"at": today(), "took": took, **how, "found": found}


def pages(stored: dict[str, Any]) -> list[Section]:
    """The sections of everything that was measured."""
    made = []
    for part in PARTS:
        if part not in stored["parts"]:
            continue
        kept = stored["parts"][part]
        sections = importlib.import_module(part).section(kept["found"])
        how = (", with `--quick`" if kept["quick"] else "") + (f", at nice {kept['nice']}" if kept.get("nice") else "")
        sections[-1].text.append(
            f"*Measured {kept['at']}{how}, in {kept['took']} s; the load of the minute before was {kept['load']:g}.*"
        )
        made += sections
    return made


if __name__ == "__main__":
    sys.exit(main())
