"""The class of a task, whose key is the profile key: tasks of one class are assumed to need equal memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from scheduler.core.model import Spec
from scheduler.core.profiling.family.arguments import slots
from scheduler.core.tasks.command import meant, shell_line
from scheduler.core.tasks.fields import THIS_PYTHON, words
from scheduler.core.tasks.placeholders import takes
from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass, replace

_EPOCHS = ("--epochs", "--num_train_epochs", "--num-epochs", "--max_epochs")
_ID = ("--id",)


@dataclass(frozen=True, slots=True)
class TaskClass:
    """Tasks that are assumed to need the same memory until measurements show otherwise."""

    key: str
    what: str
    """The name of the class for users: its script and its arguments."""
    probes: bool
    """True if the command takes a number of epochs, so that a short probe is possible."""
    family: str = ""
    """The key of the family: equal for classes that differ only in the values of their arguments."""
    slots: tuple[tuple[str, str], ...] = ()
    """The names and values of the arguments, by which the classes of a family differ."""
    device: str = ""
    """The type and model of the device on which tasks of the class run, in words for users."""
    relations: tuple[str, ...] = ()
    """Two keys that all versions of the script share, whatever device they run on: one for its path, one for its
    content."""
    elsewhere: tuple[tuple[str, str, str], ...] = ()
    """For each other model of device in the run: the device, the key and the family that the class would have there."""

    def on(self, hardware: str) -> TaskClass | None:
        """Return the class as it would be in a run with this hardware alone; None if it is not known.

        `hardware` does not contain the number of GPUs. If it is empty, the hardware is unknown, and the class itself is
        returned.
        """
        words = (hardware, f"{self.device.partition(' x ')[0]} x {hardware}")
        if not hardware or self.device in words:
            return self
        there = (replace(self, device=one[0], key=one[1], family=one[2]) for one in self.elsewhere if one[0] in words)
        return next(there, None)


@dataclass(frozen=True, slots=True)
class ScriptPlace:
    """The place of a script. Paths in profile keys do not depend on the place, so that a copy of the script elsewhere
    has the same profiles.
    """

    path: str = ""
    """The absolute path of the script; empty if it is unknown."""
    folder: str = ""
    """The folder of the script; if that is unknown, the directory of the task."""
    home: str = ""
    """The home directory of the user."""

    def portable(self, word: str) -> str:
        """Return a word of a command as it would be for a copy of the script: paths in the folder or the home are made
        relative.
        """
        name, equals, path = word.rpartition("=")
        for root, sign in ((self.folder, "."), (self.home, "~")):
            if len(root) > 1 and (path == root or path.startswith(f"{root}/")):
                return f"{name}{equals}{sign}{path[len(root) :]}"
        return word

    def interpreter(self, path: str) -> str:
        """Return the path of a Python as it would be for a copy of the project. If the Python is in an environment of
        the project, its path is relative to the project.
        """
        environment = PurePath(path).parent.parent
        project = str(environment.parent)
        above = project != "/" and f"{self.folder}/".startswith(f"{project}/")
        if above and not f"{self.home}/".startswith(f"{project}/"):
            return str(PurePath(path).relative_to(project))
        return self.portable(path)


NOWHERE = ScriptPlace()


_REDIRECTION = lazy_pattern(r"(?:\d*|&)(?:>>|>\||<>|[<>]&?)")


def said_by(spec: Spec) -> list[str]:
    """Return the words of a row's command. For a shell line they are its words without redirections, if any are
    left.
    """
    said = meant(words(spec.command))
    line = shell_line(said)
    try:
        return (_without_redirections(words(line)) if line else said) or said
    except ValueError:  # only a shell can read it
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
    """Return the word that names a row's script or module, whose content matters; empty if there is none."""
    said = said_by(spec)
    if not spec.is_whole and said and not said[0].startswith("-"):
        return said[0]
    script = next((word for word in said if PurePath(word).suffix in (".py", ".sh")), "")
    if not script and "-m" in said[:-1]:
        return said[said.index("-m") + 1]
    return script


def files_of(spec: Spec, script: str) -> tuple[str, ...]:
    """Return the possible paths of a script, relative to the directory of the task."""
    said = said_by(spec)
    if script in said and "-m" in said[: said.index(script)] and PurePath(script).suffix not in (".py", ".sh"):
        path = script.replace(".", "/")
        return (f"{path}.py", f"{path}/__main__.py")
    return (script,)


def kind(
    spec: Spec,
    append: str,
    python: str,
    digest: str,
    device: str,
    place: ScriptPlace = NOWHERE,
    other_devices: Sequence[str] = (),
) -> TaskClass:
    """Return the class of a row.

    Its key, the profile key, is a hash of all that may change the memory: script content, arguments without epochs and
    id, interpreter, type and model of the device.
    """
    script = script_of(spec)
    kept = _without(said_by(spec), (*_EPOCHS, *_ID))
    first = kept.index(script) + 1 if script in kept else 1
    arguments = [place.portable(word) for word in kept[first:]]
    executable = (
        "" if spec.is_whole else place.interpreter(python if spec.executable in THIS_PYTHON else spec.executable)
    )
    named = [digest if digest and word == script else _named(word, place) for word in kept[:first]]

    def keys(device: str) -> tuple[str, str, str]:
        same, env = (executable, *named), repr(spec.env)
        return device, _hash((*same, *arguments, env, device)), _hash((*same, env, device))

    _, key, family = keys(device)
    elsewhere = tuple(map(keys, other_devices))
    shown = [PurePath(word).name if word == script else word for word in kept]
    tells = takes(spec.command, "epochs") or (not spec.is_whole and append in ("both", "epochs"))
    probes = tells and spec.terms.epochs is not None
    what = " ".join(shown).encode("utf-8", "replace").decode()
    relations = _relations(spec, kept[:first], script, digest, device, place)
    return TaskClass(key, what, probes, family, slots(arguments), device, relations, elsewhere)


def _named(word: str, place: ScriptPlace) -> str:
    return place.interpreter(word) if is_python(word) else place.portable(word)


def is_python(word: str) -> bool:
    """Tell whether a word is the path or name of a Python."""
    return PurePath(word).name.startswith("python")


def _relations(
    spec: Spec, named: Sequence[str], script: str, digest: str, device: str, place: ScriptPlace
) -> tuple[str, ...]:
    """Return the two keys that all versions of a script share: for its path and its content. They depend on no
    interpreter, driver or model of device.
    """
    program = "python" if not spec.is_whole or is_python(named[0]) else PurePath(named[0]).name
    others = [place.portable(word) for word in named[1 if spec.is_whole else 0 :] if word != script]
    number, sign, _ = device.partition(" x ")
    same = (program, *others, repr(spec.env), number if sign else "")
    path = ScriptPlace(home=place.home).portable(place.path) or script or place.portable(named[0])
    return tuple(_hash((*root, *same)) for root in (("path", path), ("content", digest)) if root[1])


def _hash(parts: Sequence[str]) -> str:
    from hashlib import blake2b  # takes 2 ms, which light verbs do not need

    return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()


def _without(said: list[str], names: tuple[str, ...]) -> list[str]:
    """Return the words without the options in `names` and their values."""
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
