"""The hardware on which the memory of a task depends, in words that are part of the keys of profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.core.model import Device, Terms
from scheduler.core.placement.request import gpus_of
from scheduler.units import GIB


class Hardware:
    """The models of the devices of a run.

    A run has one class for equal tasks, whose key contains the most frequent model among the run's devices. For later
    runs, an observation is stored under the model on which the attempt ran, as if the run had only devices of that
    model.
    """

    def __init__(
        self,
        discover: Callable[[], Sequence[Device]],
        drivers: Callable[[], Mapping[str, str]],
        usual: Callable[[], int] = lambda: 1,
    ) -> None:
        """Take functions that return the devices, the driver of each node, and the number of GPUs of a task whose row
        names none.

        These functions are called repeatedly, because their results may change while nodes join.
        """
        self._discover, self._drivers, self._usual = discover, drivers, usual
        self._seen: tuple[Sequence[Device], Mapping[str, str]] | None = None
        self._words: dict[str, str] = {}
        self._gpus: tuple[str, ...] = ()
        self._hosts: tuple[str, ...] = ()

    def _look(self) -> None:
        """Update the descriptions of all devices if the devices have changed."""
        seen = self._discover(), dict(self._drivers())
        if seen == self._seen:
            return
        self._seen = seen
        there, notes = [device for device in seen[0] if not device.is_slot], seen[1]
        self._words = {device.key: _words(device, notes) for device in there}
        self._gpus = _by_number(self._words[device.key] for device in there if device.is_gpu)
        self._hosts = _by_number(self._words[device.key] for device in there if not device.is_gpu) or ("",)

    def of(self, terms: Terms) -> tuple[str, ...]:
        """Return the hardware on which a task with these terms may run, the most frequent first."""
        self._look()
        some = bool(self._gpus)
        gpus = self._usual() if some and terms.gpus is None else gpus_of(terms, some)
        return tuple(f"{gpus} x {words}" for words in self._gpus or ("",)) if gpus else self._hosts

    def ran_on(self, keys: Sequence[str]) -> str:
        """Return the hardware on which an attempt ran, given its devices. The result describes the first of these
        devices, and does not contain the number of devices.
        """
        self._look()
        return self._words.get(keys[0], "") if keys else ""


def _words(device: Device, notes: Mapping[str, str]) -> str:
    gib = round(device.total / GIB)
    return f"{device.model} {gib}GiB{notes.get(device.node, '')}" if device.is_gpu else f"{device.key_there} {gib}GiB"


def _by_number(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words without repetitions, the most frequent first."""
    return tuple(sorted((counted := Counter(words)), key=lambda one: (-counted[one], one)))
