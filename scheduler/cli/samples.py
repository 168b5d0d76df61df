"""The sample tasks: found next to the package or inside it, and copied to the current directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from scheduler.errors import UsageError

TARGET = Path("scheduler_samples")
_PACKAGE = Path(__file__).parent.parent
_HOMES = (_PACKAGE / "_samples", _PACKAGE.parent / "scheduler_files")


LISTS = ("sweep.csv", "commands.csv")
"""The files of the samples: a sweep over two parameters, which takes less than a minute, and a list in the format of
the older tools.
"""


def unpack() -> str:
    """Copy missing sample files to ./scheduler_samples, and return the path of the sweep."""
    home = next((path for path in _HOMES if (path / LISTS[0]).is_file()), None)
    if home is None:
        raise UsageError("the sample tasks are missing from this installation: install gpu-batch-scheduler again")
    try:
        TARGET.mkdir(exist_ok=True)
        for source in sorted(home.glob("*.py")):
            if not (TARGET / source.name).exists():
                shutil.copyfile(source, TARGET / source.name)
        for name in LISTS:
            if not (TARGET / name).exists():
                text = (home / name).read_text(encoding="utf-8")
                (TARGET / name).write_text(text.replace("scheduler_files,", f"{TARGET},"), encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"cannot copy the sample tasks to {TARGET.absolute()}: {exc.strerror}") from exc
    return str(TARGET / LISTS[0])
