"""Two users on stand-in GPUs, with real schedulers and real processes: who gets a turn, and how soon.

    sudo python scripts/bench/fairness.py [large] [share] [--seconds 4.0] [--ends 400]

large: Ann keeps tasks of 2 GiB coming from four runs; how many of them end before Ben's task of 20 of 24 GiB starts,
and his on both GPUs. share: both keep such tasks coming; what part of all ends is Ann's with one run, and with four.
The last line of each tells, with the bound; the exit code is 1 where one is not kept. tests/unit/runtime/test_turns.py
does the same with real loops on a simulated machine.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import ROOT

sys.path.insert(0, str(ROOT))

from scheduler.core.events import Exited  # found through the line above
from scheduler.core.model import Placement
from scheduler.errors import StateError
from scheduler.store.run.journal_reader import JournalReader
from tests.support.standin import box
from tests.support.two_users import USERS, User, reachable_python
from tests.support.waiting import wait_until

MOST_ENDS = 60
BLOCK = 50
"""Ends whose parts are compared with each other, to know how sure their mean is."""
PATIENCE = 600.0


class Person(User):
    """A user with GPUs, and lists of tasks."""

    def __init__(self, root: Path, uid: int, python: str, code: Path, leases: Path, gpus: box.Box) -> None:
        super().__init__(root, uid, python, code, leases)
        root.mkdir()
        os.chown(root, uid, uid)
        self.env |= gpus.env
        self._train = f"{python} -S -E {root.parent}/standin/train.py"

    def train(self, memory: str, seconds: float, gpus: int = 1) -> str:
        """The command of a task that takes its time with so much memory on each of its GPUs."""
        peaks = ",".join([memory] * gpus)
        return f"{self._train} --peak {peaks} --seconds {seconds:g} --busy 0.5 --profile flat"

    def keeps_coming(self, runs: int, tasks: int, seconds: float) -> None:
        """So many lists of small tasks, all running."""
        for number in range(runs):
            rows = [[self.train("1900MiB", seconds + 0.01 * (row % 20)), "2GiB"] for row in range(tasks)]
            name = self.write(f"jobs{number}.csv", "Command,Memory", *rows)
            os.chown(self.root / name, self.uid, self.uid)
            self.start("run", name, "--profile", "off")

    def one(self, gpus: int, seconds: float) -> None:
        """Start one large task that waits with all others."""
        words = self.train("19GiB", seconds, gpus).split()
        self.start("exec", "--memory", "20GiB", "--gpus", str(gpus), "--", *words)

    def times(self, kind: type[Placement] | type[Exited]) -> list[float]:
        """When attempts of this user began, or ended."""
        found = []
        for path in self.state.glob("runs/[0-9]*/journal.db"):
            with contextlib.suppress(StateError):
                journal = JournalReader.read(path)
                found += [one.at for one in journal.events() if isinstance(one.event, kind)]
                journal.close()
        return sorted(found)


@contextlib.contextmanager
def town(name: str) -> Iterator[tuple[Person, Person]]:
    """A machine of two GPUs of 24 GiB, and two users who have nothing running."""
    with contextlib.ExitStack() as kept:
        root = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix=f"fairness-{name}-")))
        root.chmod(0o755)
        shutil.copytree(box.HERE, root / "standin", ignore=shutil.ignore_patterns(".built", "__pycache__"))
        leases = root / "leases"
        leases.mkdir()
        leases.chmod(0o1777)
        python, code = reachable_python(root)
        gpus = kept.enter_context(box.Box(root / "gpus", gpus=2, cache=root / "built"))
        for path in (root / "gpus", root / "built"):
            path.chmod(0o755)
        ann, ben = (Person(root / str(uid), uid, python, code, leases, gpus) for uid in USERS)
        kept.callback(ann.end)
        kept.callback(ben.end)
        yield ann, ben


def large(args: argparse.Namespace) -> bool:
    """Ann's ends between Ben's coming and his start."""
    with town("large") as (ann, ben):
        ann.keeps_coming(4, 75, args.seconds)
        wait_until(lambda: len(ann.times(Exited)) >= 20, PATIENCE, pause=0.2)
        ben.one(1, args.seconds)
        ben.one(2, args.seconds)
        wait_until(lambda: len([*ben.leases.glob(f"ticket.{ben.uid}.*")]) == 2, PATIENCE, pause=0.02)
        came = len(ann.times(Exited))
        wait_until(lambda: len(ben.times(Placement)) == 2, PATIENCE, pause=0.2)
        ends = ann.times(Exited)
        waited = [sum(at <= start for at in ends) - came for start in ben.times(Placement)]
    print(f"large: Ben's two tasks started within {waited} ends of Ann's ({MOST_ENDS} at most)", flush=True)
    return max(waited) <= MOST_ENDS


def share(args: argparse.Namespace) -> bool:
    """Ann's part of all ends, with one run and with four."""
    parts = []
    for runs in (1, 4):
        with town(f"share{runs}") as (ann, ben):
            ann.keeps_coming(runs, 2 * args.ends // runs, args.seconds)
            ben.keeps_coming(1, 2 * args.ends, args.seconds)
            wait_until(lambda ann=ann, ben=ben: ann.times(Placement) and ben.times(Placement), PATIENCE, pause=0.2)
            since = max(ann.times(Placement)[0], ben.times(Placement)[0])

            def ends(ann: Person = ann, ben: Person = ben, since: float = since) -> list[bool]:
                both = ((at, one is ann) for one in (ann, ben) for at in one.times(Exited))
                return [anns for at, anns in sorted(both) if at > since]

            wait_until(lambda: len(ends()) >= args.ends, PATIENCE, pause=0.5)
            whose = ends()[: args.ends]
            parts.append(_part(whose))
            print(f"share: with {runs} runs Ann had {sum(whose)} of {len(whose)} ends", flush=True)
    (one, one_error), (four, four_error) = parts
    unsure = 2 * math.hypot(one_error, four_error)
    more = f"{four - one:+.3f}, and {unsure:.3f} may be chance (twice the standard error)"
    print(f"share: {one:.3f} with one run, {four:.3f} with four: {more}", flush=True)
    return four - one <= unsure


def _part(whose: list[bool]) -> tuple[float, float]:
    """Her part of the ends, and its standard error: of blocks, as ends that follow each other depend on each other."""
    blocks = [sum(whose[at : at + BLOCK]) / BLOCK for at in range(0, len(whose) - BLOCK + 1, BLOCK)]
    error = statistics.stdev(blocks) / math.sqrt(len(blocks)) if len(blocks) > 1 else 0.5
    return sum(whose) / len(whose), error


def main() -> int:
    """Run the benchmarks that were named, or both; return 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", nargs="*", default=["large", "share"], help="large, share")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a task (default 4)")
    parser.add_argument("--ends", type=int, default=400, help="of tasks, for a share (default 400)")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root can be two users: sudo python scripts/bench/fairness.py")
    good = [{"large": large, "share": share}[name](args) for name in args.what]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
