"""A file for other programs, written completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from scheduler.errors import StateError


def write_whole(path: str, facts: Mapping[str, Any]) -> None:
    """Write JSON with sorted keys, under another name first, so that readers see whole files; raise StateError."""
    part = f"{path}.{os.getpid()}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(facts, indent=4, sort_keys=True) + "\n")
        os.rename(part, path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise StateError(f"{path} cannot be written ({(exc.strerror or str(exc)).lower()}): name another file") from exc
