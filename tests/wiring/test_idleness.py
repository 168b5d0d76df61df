"""Who is known to have done nothing, and since when."""

from __future__ import annotations

import json
import os
from pathlib import Path

from scheduler.wiring.idleness import Held, idle_for

HOURS = 2 * 3600.0


def test_an_attempt_has_not_idled_for_as_long_as_the_one_before_it_under_the_same_shim(tmp_path: Path) -> None:
    looks = tmp_path / "looks.json"
    first, second = (Held((os.getpid(),), since=since) for since in (1e9, 1e9 + HOURS))
    idle_for(looks, [first])
    ((key, (since, had)),) = json.loads(looks.read_text()).items()
    looks.write_text(json.dumps({key: [since - HOURS, had]}))
    assert [idle >= HOURS for _, idle in idle_for(looks, [first])] == [True]
    assert [idle for _, idle in idle_for(looks, [second])] == [0.0]
