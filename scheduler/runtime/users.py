"""The names of users. Looking them up may involve another machine, which takes time."""

from __future__ import annotations

PATIENCE = 0.05
"""The most seconds for which looking up a name may delay the caller."""

_names: dict[int, str] = {}
_asked: set[int] = set()


def user_name(uid: int) -> str:
    """Return the name of a user; the number if there is no name."""
    if uid not in _names:
        import pwd

        try:
            _names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            _names[uid] = str(uid)
    return _names[uid]


def user_name_soon(uid: int, patience: float = PATIENCE) -> str:
    """Return the name of a user without delay: the number until the name is known."""
    if uid not in _names and uid not in _asked:
        from scheduler.runtime.threads import start_thread

        asking = start_thread(lambda: user_name(uid))
        if asking is None:  # this user may have no more threads now
            return str(uid)
        _asked.add(uid)
        asking.join(patience)
    return _names.get(uid, str(uid))
