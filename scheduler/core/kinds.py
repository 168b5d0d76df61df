"""What determines a task's memory: the key under which its profile is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from scheduler.core.command import THIS_PYTHON
from scheduler.core.fields import words
from scheduler.core.model import Spec

_EPOCHS = ("--epochs", "--num_train_epochs", "--num-epochs", "--max_epochs")
_ID = ("--id",)


@dataclass(frozen=True, slots=True)
class Kind:
    """Tasks of one kind need the same memory, as far as anybody can tell before they run."""

    key: str
    what: str
    """What people call it: script and arguments."""
    probes: bool
    """Whether its command takes a number of epochs, so that a short one can be run to learn from."""
    family: str = ""
    """Equal for kinds that differ in the values of arguments only."""
    slots: tuple[tuple[str, str], ...] = ()
    """Those arguments: names and values."""


def script_of(spec: Spec) -> str:
    """The word that names the script whose content matters; empty where there is none."""
    said = words(spec.command or spec.filename)
    if not spec.command:
        return said[0] if said and not said[0].startswith("-") else ""
    return next((word for word in said if PurePath(word).suffix in (".py", ".sh")), "")


def kind(spec: Spec, append: str, python: str, digest: str, device: str) -> Kind:
    """The kind of a row: script content, arguments without epochs and id, interpreter, device kind and model."""
    from hashlib import blake2b  # 2 ms that no light verb pays

    text = spec.command or spec.filename
    said = words(text)
    script = script_of(spec)
    kept = _without(said, (*_EPOCHS, *_ID))
    if digest and script in kept:
        kept[kept.index(script)] = digest
    executable = "" if spec.command else python if spec.executable in THIS_PYTHON else spec.executable
    parts = (executable, *kept, repr(spec.env), device)
    key = blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()
    shown = [PurePath(word).name if word == script else word for word in _without(said, (*_EPOCHS, *_ID))]
    takes = "{epochs}" in text or (not spec.command and append in ("both", "epochs"))
    return Kind(key, " ".join(shown), takes and spec.terms.epochs is not None)


def _without(said: list[str], names: tuple[str, ...]) -> list[str]:
    """The words without these options and their values."""
    kept, skip = [], False
    for word in said:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in names)) and "{id}" not in word and "{epochs}" not in word:
            kept.append(word)
    return kept
