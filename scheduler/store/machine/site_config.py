"""The site's rules from a file that root writes: the quota of each user, and who may reserve or disable devices."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any

from scheduler import units
from scheduler.core.site_policy import NO_CAPS, Caps, UserQuotas
from scheduler.errors import UsageError
from scheduler.runtime import site_file
from scheduler.runtime.settings import READERS
from scheduler.runtime.site_file import SiteFile
from scheduler.runtime.threads import BoundedCalls
from scheduler.values import dataclass

RESERVE, DISABLE = "reserve", "disable"
"""The rights that root may give: to reserve devices, and to disable them."""
ALL_USERS = "*"
_TABLES = ("quotas", "may")
_CAPS = ("gpus", "memory", "host_memory", "tasks")
_SIZES = frozenset({"memory", "host_memory"})


@dataclass(frozen=True, slots=True)
class UserSet:
    """A set of users: user ids, and all members of groups, including users whose primary group is one of them."""

    users: frozenset[int]
    groups: frozenset[int] = frozenset()

    def include(self, uid: int) -> bool:
        """Tell whether a user is in the set."""
        return uid in self.users or (bool(self.groups) and not self.groups.isdisjoint(_groups_of(uid)))


NO_PEOPLE = UserSet(frozenset())


@cache
def _groups_of(uid: int) -> frozenset[int]:
    """Return a user's groups as `id` lists them; this works even if a directory service does not list all users or
    members.
    """
    try:
        user = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return frozenset()


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """The site's rules that apply to one user."""

    path: str
    devices: str = ""
    """The GPUs that users may use, in the form of `--devices`; empty: all of them."""
    caps: Caps = NO_CAPS
    """The quota of this user."""
    quotas: UserQuotas = UserQuotas()
    """The quotas of all users."""
    may: Mapping[str, UserSet | None] | None = None
    """The users who have each right, in addition to root; None: all users."""
    unknown: tuple[str, ...] = ()
    """Users and groups that the file names but that do not exist on this machine."""

    def allows(self, uid: int, what: str) -> bool:
        """Tell whether a user has a right: RESERVE or DISABLE."""
        if uid == site_file.ROOT:
            return True
        found = (self.may or {}).get(what, NO_PEOPLE)
        return found is None or found.include(uid)


def read(environ: Mapping[str, str], uid: int) -> SiteConfig:
    """Return the rules for a user. Raise UsageError that names the invalid place in the file."""
    return parse(site_file.read(environ), uid)


def parse(file: SiteFile, uid: int) -> SiteConfig:
    """Return a user's rules from the contents of a file. Raise a UsageError that names the invalid entry."""
    _groups_of.cache_clear()
    said, unknown = file.said, list[str]()
    _known(file.path, said, {*READERS, *_TABLES, "devices"})
    caps, may = _table(file.path, said, "quotas"), _table(file.path, said, "may")
    _known(f"{file.path}, [may]", may, {RESERVE, DISABLE})
    people = {what: _people(f"{file.path}, [may], {what}", may[what], unknown) for what in may}
    quotas = _quotas(file.path, caps, unknown)
    return SiteConfig(file.path, str(said.get("devices", "")), quotas.of(uid), quotas, people, tuple(unknown))


def _quotas(path: str, table: Mapping[str, Any], unknown: list[str]) -> UserQuotas:
    """Return the quotas of all users; a value in a user's own table replaces the general value."""
    _known(f"{path}, [quotas]", table, {*_CAPS, "users"})
    numbers = _numbers(f"{path}, [quotas]", table)
    users: dict[int, Caps] = {}
    for user, own in _table(path, table, "users", "quotas.users").items():
        here = f"{path}, [quotas.users.{user}]"
        if not isinstance(own, Mapping):
            raise UsageError(f"{path}: quotas.users.{user} is a table: write [quotas.users.{user}] above its lines")
        _known(here, own, _CAPS)
        said = _numbers(here, own)
        if (uid := _uid(user, unknown)) is not None:
            users[uid] = Caps(**{**numbers, **said}, source=f"[quotas.users.{user}] in {path}")
    return UserQuotas(Caps(**numbers, source=f"[quotas] in {path}"), users)


def _numbers(place: str, table: Mapping[str, Any]) -> dict[str, int | None]:
    return {name: _number(f"{place}, {name}", name, table[name]) for name in _CAPS if name in table}


def _number(place: str, name: str, said: object) -> int | None:
    """Return a count or a size; None for `none`, which exempts a user from the general quota."""
    if said == "none":
        return None
    try:
        number = units.parse_size(str(said)) if name in _SIZES else int(str(said))
    except ValueError as exc:
        raise UsageError(f"{place}: {exc}") from exc
    if number < 1:
        raise UsageError(f'{place}: {said} is below 1; "none", or leaving it out, means no limit')
    return number


def _people(place: str, said: object, unknown: list[str]) -> UserSet | None:
    """Return the users that a list names: `@staff` is a group, `*` (None) all users."""
    words = [said] if isinstance(said, str) else said
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f'{place}: give a list of users and groups, such as ["ben", "@staff"]')
    if ALL_USERS in words:
        return None
    users = (_uid(word, unknown) for word in words if not word.startswith("@"))
    groups = (_gid(word, unknown) for word in words if word.startswith("@"))
    return UserSet(*(frozenset(one for one in some if one is not None) for some in (users, groups)))


def _gid(word: str, unknown: list[str]) -> int | None:
    try:
        return grp.getgrnam(word[1:]).gr_gid
    except (KeyError, ValueError):
        unknown.append(word)
        return None


def _uid(user: str, unknown: list[str]) -> int | None:
    """Return a user's id; an account that does not exist is only added to `unknown`, because it must not stop other
    users.
    """
    try:
        return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):  # no account has such a name: a NUL byte, too many digits
        unknown.append(user)
        return None


def _table(path: str, said: Mapping[str, Any], name: str, spelled: str = "") -> Mapping[str, Any]:
    found = said.get(name, {})
    if not isinstance(found, Mapping):
        raise UsageError(f"{path}: {name} is a table: write [{spelled or name}] above its lines")
    return found


def _known(place: str, said: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise UsageError for unknown names: a quota with a misspelt name would have no effect."""
    for name in said:
        if name not in names:
            raise UsageError(f"{place}: {name!r} is unknown; known are {', '.join(sorted(names))}")


class SiteConfigReader:
    """The current rules; the file is read again when it has changed.

    Names in the file are looked up in a directory service, which may not answer; until it answers, the earlier rules
    apply.
    """

    def __init__(self, uid: int, environ: Mapping[str, str] | None = None) -> None:
        self._uid = uid
        self._environ = os.environ if environ is None else environ
        self._path = site_file.path(self._environ)
        self._seen = self._look()
        self._rules = read(self._environ, uid)
        self._calls = BoundedCalls()

    def now(self) -> SiteConfig:
        """Return the current rules; if the file has become invalid, return the last valid ones, and `doctor` reports
        the error.
        """
        seen = self._look()
        if seen != self._seen:
            with contextlib.suppress(TimeoutError):
                self._calls.call("rules", partial(self._renew, seen))
        return self._rules

    def allows(self, uid: int, what: str, patience: float) -> bool:
        """Tell whether a user has a right; False if the groups of that user cannot be looked up within `patience`
        seconds."""
        try:
            return self._calls.call(uid, partial(self._rules.allows, uid, what), patience)
        except TimeoutError:
            return False

    def _renew(self, seen: tuple[int, ...]) -> None:
        with contextlib.suppress(UsageError):
            self._rules = read(self._environ, self._uid)
        self._seen = seen

    def _look(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
