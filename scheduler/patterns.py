"""Regular expressions of modules: a command loads dozens of them, uses few, and compiling one takes up to 4 ms."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as lazy_pattern
else:

    def lazy_pattern(text: str, flags: int = 0) -> _LazyPattern:
        """Return a pattern like that of `re.compile`, which is compiled when it is first used."""
        return _LazyPattern(text, flags)


class _LazyPattern:
    """A pattern that is compiled when one of its methods is first asked for, and then keeps that method."""

    def __init__(self, text: str, flags: int) -> None:
        self._given = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._given), name)
        setattr(self, name, found)
        return found


__all__ = ["lazy_pattern"]
