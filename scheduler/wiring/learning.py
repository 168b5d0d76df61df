"""What earlier runs learned, for a run on these devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from scheduler.core import packing
from scheduler.core.knowledge import Knowledge, Profile
from scheduler.core.model import Terms
from scheduler.environments import Programs
from scheduler.paths import Places
from scheduler.settings import Settings
from scheduler.store.profiles import Profiles
from scheduler.store.rundir import Book, Kinds
from scheduler.units import GIB
from scheduler.wiring.reading import places

if TYPE_CHECKING:
    from scheduler.devices.pool import Pool


def kinds_if_any(home: Places, programs: Programs, directory: str, pool: Pool) -> Kinds | None:
    """What earlier runs learned, where there were any; a plan makes no state."""
    return kinds_of(home, programs, directory, pool) if home.profiles.exists() else None


def kinds_of(home: Places, programs: Programs, directory: str, pool: Pool) -> Kinds:
    """Finds the kinds of tasks, and keeps what is learned of them."""
    return Kinds(Profiles(home.profiles), programs, directory, _models(pool))


def _models(pool: Pool) -> Callable[[Terms], str]:
    """What a task runs on, as far as its memory depends on that: the host, or how many GPUs of which models."""
    found = [device for device in pool.discover() if not device.is_slot]
    on_host = " ".join(f"{d.key} {round(d.total / GIB)}GiB" for d in found if not d.is_gpu)
    models = sorted({f"{d.model} {round(d.total / GIB)}GiB" for d in found if d.is_gpu})
    on_gpus = ", ".join(models) + (f" ({pool.driver}, by {pool.reads})" if models else "")

    def model(terms: Terms) -> str:
        gpus = pool.usual if models and terms.gpus is None else packing.gpus_of(terms, bool(models))
        return f"{gpus} x {on_gpus}" if gpus else on_host

    return model


def knowledge_for(book: Book, settings: Settings, directory: str, pool: Pool) -> Knowledge:
    """What earlier runs learned; the book learns on for later ones."""
    book.kinds = kinds_of(places(settings), book.programs, directory, pool)
    return knowledge(book.kinds.profiles.known(), settings)


def knowledge(known: Mapping[str, Profile], settings: Settings) -> Knowledge:
    """What is known, with the user's word on which arguments matter."""
    return Knowledge(known, ignore=_names(settings.ignore_args), only=_names(settings.memory_args))


def _names(said: str) -> list[str]:
    return [name.strip() for name in said.split(",") if name.strip()]
