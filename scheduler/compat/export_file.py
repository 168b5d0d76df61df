"""A file for other programs, written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.errors import StateError
from scheduler.runtime.paths import replace_file


def write_whole(path: str, facts: Mapping[str, Any]) -> None:
    """Write JSON with sorted keys. It is first written under another name, so that readers see only complete files.
    Raise StateError if that fails.
    """
    text = json.dumps(facts, indent=4, sort_keys=True) + "\n"
    try:
        replace_file(Path(path), text.encode("utf-8"), durable=False)
    except OSError as exc:
        raise StateError(f"{path} cannot be written ({(exc.strerror or str(exc)).lower()}): name another file") from exc
