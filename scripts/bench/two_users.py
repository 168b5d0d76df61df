"""Two users launch on one machine while lease holders are killed: nothing is overcommitted, no dead lease lives.

    sudo python scripts/bench/two_users.py [--kills 300] [--shims 0.5] [--seed N]

Half of the victims are schedulers, at any moment of a decision; half are shims, which hold the leases of running tasks.
An observer reads all leases every few milliseconds, with the directory's mutex held. The last line tells; the exit code
is 1 where anything was overcommitted, stale, lost or left.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from measuring import ROOT

sys.path.insert(0, str(ROOT))

from tests.support.two_users import USERS, User, judge, reachable_python, storm  # found through the line above


def main() -> int:
    """Kill, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--shims", type=float, default=0.5, help="of the kills so many are of shims (default 0.5)")
    parser.add_argument("--tasks", type=int, default=0, help="of each user (default: enough for the kills)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root can be two users: sudo python scripts/bench/two_users.py")
    with tempfile.TemporaryDirectory(prefix="two-users-") as folder:
        return kills(Path(folder), args)


def kills(root: Path, args: argparse.Namespace) -> int:
    """Run the storm in a folder that all users can reach."""
    root.chmod(0o755)
    leases = root / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    python, code = reachable_python(root)
    users = [User(root / str(uid), uid, python, code, leases) for uid in USERS]
    try:
        for user in users:
            user.prepare(args.tasks or 4 * args.kills, random.Random(args.seed + user.uid))
        came = storm(users, args.seed, seconds=float(args.kills), kills=args.kills, shims=args.shims)
        line = came.line()
        for user in users:
            judge(user, line, once=not came.shims)
        left = [path.name for path in leases.iterdir()]
        print(f"{line}; {len(left)} leases left", *came.faults[:5], *came.stale[:5], sep="\n")
        return int(bool(came.faults or came.stale or left) or came.kills < args.kills)
    finally:
        for user in users:
            user.end()


if __name__ == "__main__":
    sys.exit(main())
