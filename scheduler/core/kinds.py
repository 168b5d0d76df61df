"""What determines a task's memory: the key under which its profile is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from scheduler.core.arguments import slots
from scheduler.core.command import THIS_PYTHON, meant, shell_line
from scheduler.core.fields import words
from scheduler.core.model import Spec
from scheduler.core.placeholders import takes
from scheduler.values import dataclass

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
    device: str = ""
    """What it runs on, in the words that people are shown."""


_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>|>\||<>|[<>]&?)")


def said_by(spec: Spec) -> list[str]:
    """The words of a row; of a line that a shell reads its own, but for where its output goes."""
    said = meant(words(spec.command or spec.filename))
    line = shell_line(said)
    try:
        return _without_redirections(words(line)) if line else said
    except ValueError:  # it takes a shell to read it
        return said


def _without_redirections(said: list[str]) -> list[str]:
    kept, skip = [], False
    for word in said:
        match = _REDIRECTION.match(word)
        if match is None and not skip:
            kept.append(word)
        skip = match is not None and match.end() == len(word)
    return kept


def script_of(spec: Spec) -> str:
    """The word that names what runs, whose content matters: a script, or a module; empty where there is none."""
    said = said_by(spec)
    if not spec.command and said and not said[0].startswith("-"):
        return said[0]
    script = next((word for word in said if PurePath(word).suffix in (".py", ".sh")), "")
    if not script and "-m" in said[:-1]:
        return said[said.index("-m") + 1]
    return script


def files_of(spec: Spec, script: str) -> tuple[str, ...]:
    """Where the content of a script lies, or may lie, seen from the directory that it runs in."""
    said = said_by(spec)
    if script in said and "-m" in said[: said.index(script)] and PurePath(script).suffix not in (".py", ".sh"):
        path = script.replace(".", "/")
        return (f"{path}.py", f"{path}/__main__.py")
    return (script,)


def kind(spec: Spec, append: str, python: str, digest: str, device: str) -> Kind:
    """The kind of a row: script content, arguments without epochs and id, interpreter, device kind and model."""
    text = spec.command or spec.filename
    said = said_by(spec)
    script = script_of(spec)
    kept = _without(said, (*_EPOCHS, *_ID))
    executable = "" if spec.command else python if spec.executable in THIS_PYTHON else spec.executable
    first = kept.index(script) + 1 if script in kept else 1
    named = [digest if digest and word == script else word for word in kept[:first]]
    same = (executable, *named, repr(spec.env), device)
    key = _hash((executable, *named, *kept[first:], repr(spec.env), device))
    shown = [PurePath(word).name if word == script else word for word in kept]
    tells = takes(text, "epochs") or (not spec.command and append in ("both", "epochs"))
    probes = tells and spec.terms.epochs is not None
    what = " ".join(shown).encode("utf-8", "replace").decode()
    return Kind(key, what, probes, _hash(same), slots(kept[first:]), device)


def _hash(parts: Sequence[str]) -> str:
    from hashlib import blake2b  # 2 ms that no light verb pays

    return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()


def _without(said: list[str], names: tuple[str, ...]) -> list[str]:
    """The words without these options and their values."""
    kept, skip = [], False
    for word in said:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in names)) and not (
            takes(word, "id") or takes(word, "epochs")
        ):
            kept.append(word)
    return kept
