"""What people call users: whoever knows that may be another machine, which takes its time."""

from __future__ import annotations

PATIENCE = 0.05
"""Seconds for which all others may wait for a name."""

_names: dict[int, str] = {}
_asked: set[int] = set()


def user_name(uid: int) -> str:
    """The name of a user; the number where it has none."""
    if uid not in _names:
        import pwd

        try:
            _names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            _names[uid] = str(uid)
    return _names[uid]


def user_name_soon(uid: int, patience: float = PATIENCE) -> str:
    """The same while others wait for us: the number, too, until the name has come."""
    if uid not in _names and uid not in _asked:
        import threading

        asking = threading.Thread(target=user_name, args=(uid,), daemon=True)
        try:
            asking.start()
        except RuntimeError:  # this user may have no more of them now
            return str(uid)
        _asked.add(uid)
        asking.join(patience)
    return _names.get(uid, str(uid))
