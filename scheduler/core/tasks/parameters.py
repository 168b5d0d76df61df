"""The parameters of tasks: the user's own columns and the arguments of commands, and which of them vary in a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.model import Spec
from scheduler.core.profiling.family.arguments import labels, plain_name, slots
from scheduler.core.tasks.placeholders import takes

MOST_VARYING = 16
"""The most parameters that count as varying in one list."""
MOST_IN_NAME, LONGEST_VALUE = 8, 60
_SET = "yes"
"""The value that stands for an option without a value."""
_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_LAUNCHERS = frozenset({
    "torchrun", "accelerate", "deepspeed", "uv", "poetry", "conda", "mamba", "micromamba", "pixi", "srun", "mpirun",
    "mpiexec", "nohup", "nice", "env", "time", "numactl", "taskset", "bash", "sh", "ionice", "stdbuf", "horovodrun",
    "ipython", "coverage", "jupyter",
})  # fmt: skip
"""Programs that only start another program, which gives a task its name."""
_SCRIPTS = (".py", ".sh", ".ipynb", ".jl", ".R", ".lua")


def last_part(path: str) -> str:
    """Return the last part of a path: the name of a file or folder. This function is fast, because it is called for
    each task of a long list.
    """
    return path.rstrip("/").rpartition("/")[2]


def stem(path: str) -> str:
    """Return the name of a file without its last suffix."""
    name = last_part(path)
    front, _, suffix = name.rpartition(".")
    return front if front and suffix else name


def script_of(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the name of the script that a command runs, and the script's arguments; arguments of launchers are left
    out.
    """
    if not words:
        return "", ()
    program = last_part(words[0])
    if program.startswith("python"):
        return _of_python(words)
    if program in _LAUNCHERS:
        for at, word in enumerate(words[1:], 1):
            if word.endswith(_SCRIPTS):
                return stem(word), words[at + 1 :]
            if last_part(word).startswith("python") and at + 1 < len(words):
                return _of_python(words[at:])
    return stem(words[0]), words[1:]


def _of_python(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    at = 1
    while at < len(words):
        word = words[at]
        if word == "-m" and at + 1 < len(words):
            return words[at + 1].rpartition(".")[2] or words[at + 1], words[at + 2 :]
        if word == "-c" or not word.startswith("-"):
            break
        at += 2 if word in _WITH_VALUE else 1
    if at >= len(words) or words[at] == "-c":
        return stem(words[0]), words[1:]
    return stem(words[at]), words[at + 1 :]


def parameters(spec: Spec, words: Sequence[str], line: str = "") -> dict[str, str]:
    """Return the parameters of a row by name: its own columns, then the named arguments among the `words` of its
    command.

    A column that contains the whole command line is not a parameter, nor is an argument with the placeholder `{id}`.
    """
    found = {name: value.strip() for name, value in spec.own if value != line}
    taken = {plain_name(name).lower() for name in found}
    _, arguments = script_of(words)
    for name, value in slots(arguments):
        plain = plain_name(name)
        if name.isdigit() or not plain or plain.lower() in taken or takes(value, "id"):
            continue
        taken.add(plain.lower())
        found[plain] = value or _SET
    return found


def varying(rows: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the names of the parameters that differ between rows, in their order.

    If two parameters have the same value in each row, only the first one counts. Arguments that only label the output
    of a task are left out, if other parameters vary.
    """
    known = list(rows)
    names = dict.fromkeys(name for row in known for name in row)
    seen: dict[tuple[str, ...], str] = {}
    for name in names:
        values = tuple(row.get(name, "") for row in known)
        if any(value != values[0] for value in values):
            seen.setdefault(values, name)
    found = tuple(seen.values())
    meant = tuple(name for name in found if not labels(name) or name.lower() == "seed")
    return (meant or found)[:MOST_VARYING]


def told(script: str, values: Mapping[str, str], varies: Sequence[str]) -> str:
    """Return the name of a task, made of its script and of the parameters that vary in its list."""
    parts = [f"{name}={_short(values[name])}" for name in varies[:MOST_IN_NAME] if values.get(name)]
    return " ".join([script, *parts])


def _short(value: str) -> str:
    """Return a value without the folders of a path. Blanks are replaced, because they would look like the end of the
    value.
    """
    last = value.rstrip("/").rpartition("/")[2] if value.startswith(("/", "./", "../", "~")) else value
    return "_".join(last.split())[:LONGEST_VALUE]


class ParameterSample:
    """A sample of the rows of a list, from which the varying parameters are found.

    The first rows are taken, then fewer and fewer. So a long list costs little, and a parameter that changes only after
    many rows is found as well.
    """

    FIRST = 256

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []
        self._number = 0

    def wants_next(self) -> bool:
        """Tell whether the next row belongs to the sample, and count the row."""
        number = self._number
        self._number += 1
        return number < self.FIRST or number % (1 << (number // (self.FIRST // 2)).bit_length() - 2) == 0
