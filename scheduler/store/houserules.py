"""The rules of the house as root's file says them: what each user may hold, who may close devices for others."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from scheduler import machinefile, units
from scheduler.core.house import NO_CAPS, Caps
from scheduler.errors import UsageError
from scheduler.machinefile import MachineFile
from scheduler.settings import READERS
from scheduler.values import dataclass

RESERVE, DISABLE = "reserve", "disable"
"""What root may allow others: to keep devices for themselves, to take them out of service."""
EVERYBODY = "*"
_TABLES = ("caps", "may")
_CAPS = ("gpus", "memory", "host_memory", "tasks")
_SIZES = frozenset({"memory", "host_memory"})


@dataclass(frozen=True, slots=True)
class People:
    """Users by their ids, and all who are in a group, be it the one of their account."""

    users: frozenset[int]
    groups: frozenset[int] = frozenset()

    def include(self, uid: int) -> bool:
        """Whether a user is one of them."""
        return uid in self.users or (bool(self.groups) and not self.groups.isdisjoint(_groups_of(uid)))


NO_PEOPLE = People(frozenset())


@cache
def _groups_of(uid: int) -> frozenset[int]:
    """As `id` tells them; asked for one user, as a directory service lists neither all users nor all members."""
    try:
        user = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return frozenset()


@dataclass(frozen=True, slots=True)
class HouseRules:
    """What root says, as far as it concerns one user."""

    path: str
    devices: str = ""
    """The GPUs that are offered, as `--devices` names them; empty: all of them."""
    caps: Caps = NO_CAPS
    may: Mapping[str, People | None] | None = None
    """Who may do what besides root; None behind a word: everybody."""
    unknown: tuple[str, ...] = ()
    """Users and groups that it names and this machine has not."""

    @property
    def names_groups(self) -> bool:
        """Whether it says of groups what they may do; who is in them is asked once for each user."""
        return any(people is not None and people.groups for people in (self.may or {}).values())

    def allows(self, uid: int, what: str) -> bool:
        """Whether a user may reserve or disable devices."""
        if uid == machinefile.ROOT:
            return True
        found = (self.may or {}).get(what, NO_PEOPLE)
        return found is None or found.include(uid)


def read(environ: Mapping[str, str], uid: int) -> HouseRules:
    """What holds for a user; raises UsageError with the line of the file that makes no sense."""
    return parse(machinefile.read(environ), uid)


def parse(file: MachineFile, uid: int) -> HouseRules:
    """The same of a file that was read."""
    _groups_of.cache_clear()
    said, unknown = file.said, list[str]()
    _known(file.path, said, {*READERS, *_TABLES, "devices"})
    caps, may = _table(file.path, said, "caps"), _table(file.path, said, "may")
    _known(f"{file.path}, [may]", may, {RESERVE, DISABLE})
    people = {what: _people(f"{file.path}, [may], {what}", may[what], unknown) for what in may}
    found = _caps(file.path, caps, uid, unknown)
    return HouseRules(file.path, str(said.get("devices", "")), found, people, tuple(unknown))


def _caps(path: str, table: Mapping[str, Any], uid: int, unknown: list[str]) -> Caps:
    """Those of everybody, with the user's own in their place where there are some."""
    _known(f"{path}, [caps]", table, {*_CAPS, "users"})
    numbers, where = _numbers(f"{path}, [caps]", table), "caps"
    for user, own in _table(path, table, "users", "caps.users").items():
        here = f"{path}, [caps.users.{user}]"
        if not isinstance(own, Mapping):
            raise UsageError(f"{path}: caps.users.{user} is a table: write [caps.users.{user}] above its lines")
        _known(here, own, _CAPS)
        said = _numbers(here, own)
        if _uid(user, unknown) == uid:
            numbers, where = {**numbers, **said}, f"caps.users.{user}"
    return Caps(**numbers, source=f"[{where}] in {path}")


def _numbers(place: str, table: Mapping[str, Any]) -> dict[str, int | None]:
    return {name: _number(f"{place}, {name}", name, table[name]) for name in _CAPS if name in table}


def _number(place: str, name: str, said: object) -> int | None:
    """A cap: a size, or how many; `none` takes one away that all others have."""
    if said == "none":
        return None
    try:
        number = units.parse_size(str(said)) if name in _SIZES else int(str(said))
    except ValueError as exc:
        raise UsageError(f"{place}: {exc}") from exc
    if number < 1:
        raise UsageError(f'{place}: {said} is below 1; "none" is no cap, and leaving it out is none either')
    return number


def _people(place: str, said: object, unknown: list[str]) -> People | None:
    """Whom a list names; `@staff` are all who are in that group, `*` is everybody."""
    words = [said] if isinstance(said, str) else said
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f'{place}: a list of users and groups is meant, like ["ben", "@staff"]')
    if EVERYBODY in words:
        return None
    users = (_uid(word, unknown) for word in words if not word.startswith("@"))
    groups = (_gid(word, unknown) for word in words if word.startswith("@"))
    return People(*(frozenset(one for one in some if one is not None) for some in (users, groups)))


def _gid(word: str, unknown: list[str]) -> int | None:
    try:
        return grp.getgrnam(word[1:]).gr_gid
    except KeyError:
        unknown.append(word)
        return None


def _uid(user: str, unknown: list[str]) -> int | None:
    """A user's number; an account that has gone must not stop everybody else, so it is only noted."""
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        unknown.append(user)
        return None


def _table(path: str, said: Mapping[str, Any], name: str, spelled: str = "") -> Mapping[str, Any]:
    found = said.get(name, {})
    if not isinstance(found, Mapping):
        raise UsageError(f"{path}: {name} is a table: write [{spelled or name}] above its lines")
    return found


def _known(place: str, said: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse what nobody would heed: a cap with a slip in its name caps nobody."""
    for name in said:
        if name not in names:
            raise UsageError(f"{place}: nobody knows {name!r}; there are {', '.join(sorted(names))}")


class Follower:
    """The rules as they are now: the file is read again once it is another one."""

    def __init__(self, uid: int, environ: Mapping[str, str] | None = None) -> None:
        self._uid = uid
        self._environ = os.environ if environ is None else environ
        self._path = machinefile.path(self._environ)
        self._seen = self._look()
        self._rules = read(self._environ, uid)

    def now(self) -> HouseRules:
        """What holds; what held before where the file has come to make no sense, which `doctor` says."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self._rules = read(self._environ, self._uid)
            except UsageError:
                return self._rules
        return self._rules

    def _look(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
