"""The command of a row: the argument list, the name of the task, and the key of the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile
from pathlib import PurePath

from scheduler.core.model import Spec
from scheduler.core.tasks.fields import THIS_PYTHON, words
from scheduler.core.tasks.parameters import ParameterSample, last_part, parameters, script_of, stem, told, varying
from scheduler.core.tasks.placeholders import Results, launched, takes
from scheduler.core.tasks.redaction import without_secrets

APPEND = ("both", "none", "epochs", "id")
ONE_SHOT = "one-shot"
"""The value of `append` for the older one-shot tool. Nothing is added to a command, as with `none`, but a placeholder
in it is replaced by a number that depends on the GPU."""
FIRST_NUMBER, NUMBERS = 3600, 100
LAUNCHER = "/code/scheduler/runtime/task_launcher.py"
"""The end of the path of the launcher that a run has for Python tasks. In a command, the next word is a file of the
run."""
HOLDER = "/scheduler/execution/lease_holder.py"
"""The end of the path of the program that holds a lease. In a command, the next word is the guest of the task, and then
comes the command of the guest."""
PLAIN_PYTHON = "python"
"""The name of a program that some systems lack. On such a system it means the interpreter of the run, as `-1` does."""
SHELL = ("/bin/sh", "-c")
"""The words before a command line that pass the line to a shell."""
LONGEST_NAME = 200
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
SHELL_SIGNS = frozenset(";|&`$(){}*?<\n")


def argv(
    spec: Spec, task: int, epochs: int | None, python: str, append: str = "both", results: Results | None = None
) -> tuple[str, ...]:
    """Return the argument list of one attempt; no shell reads it. `results` returns values from the results of the
    task's parents.

    For a row of five columns, the list has the executable, the words of Filename and Args, and `--epochs=N --id=I`. The
    last two are not added if `{epochs}` or `{id}` is among the words, or if `append` excludes them. Nothing is added to
    a Command.
    """
    if append == ONE_SHOT:
        return tuple(words(spec.command))
    count = "" if epochs is None else str(epochs)
    said = [launched(word, count, str(task), results) for word in words(spec.command)]
    if spec.is_whole:
        return tuple(said)
    executable = python if spec.executable in THIS_PYTHON else spec.executable
    tail = []
    if epochs is not None and append in ("both", "epochs") and not takes(spec.command, "epochs"):
        tail.append(f"--epochs={epochs}")
    if append in ("both", "id") and not takes(spec.command, "id"):
        tail.append(f"--id={task}")
    return (executable, *said, *tail)


def shell_line(said: Sequence[str]) -> str:
    """Return the line that a command passes to a shell; empty if the command uses no shell."""
    return said[2] if len(said) == 3 and tuple(said[:2]) == SHELL else ""


def meant(said: list[str]) -> list[str]:
    """Return the words of a command without the run's own launcher and its arguments.

    For a lease, return the words of the command that its guest runs.
    """
    for place, word in enumerate(said[1:7], 1):
        if word.endswith(HOLDER):
            return said[place + 2 :] or said
    return [said[0], *said[3:]] if len(said) > 3 and said[1].endswith(LAUNCHER) else said


def numbered(said: tuple[str, ...], indices: str) -> tuple[str, ...]:
    """Return the words of a command, with a port in place of each word `__num__`.

    The port is 3600 + 100 x the index of the first GPU.
    """
    first = indices.partition(",")[0]
    number = str(FIRST_NUMBER + NUMBERS * int(first or 0))
    return tuple(number if word == "__num__" else word for word in said)


def name(spec: Spec, *, varies: Sequence[str] = (), secrets: bool = False) -> str:
    """Return the name of a task: its Name, else its script and the parameters that vary in its list, else its script
    and its arguments, else the beginning of its command line.
    """
    called = _name(spec, varies)
    return called if secrets else without_secrets(called)


def _name(spec: Spec, varies: Sequence[str]) -> str:
    if spec.name:
        return spec.name
    said = words(spec.command)
    line = shell_line(said)
    if varies and spec.is_whole:  # a row of five columns is named as in the older tools
        script, _ = script_of(_command_words(spec)[0])
        if script:
            return told(script, row_parameters(spec), varies)
    if line:
        return line[:LONGEST_NAME]
    if not said:
        return f"row {spec.row}"
    script, rest = script_of(meant(said)) if spec.is_whole else (stem(said[0]), said[1:])
    return " ".join([script, *rest])


def varying_of(specs: Iterable[Spec]) -> tuple[str, ...]:
    """Return the parameters that vary over the rows of a list."""
    sample = ParameterSample()
    return varying([row_parameters(spec) for spec in specs if sample.wants_next()])


def row_parameters(spec: Spec) -> dict[str, str]:
    """Return the parameters of a row by name: its own columns, and the named arguments of its command."""
    return parameters(spec, *_command_words(spec))


def _command_words(spec: Spec) -> tuple[Sequence[str], str]:
    """Return the words of a row's command, and the line that the command passes to a shell.

    If there is such a line, return the words of the line, or no words if only a shell can read it.
    """
    line = ""
    try:
        said = words(spec.command)
        if last_part(said[0]) in SHELLS and len(said) > 2 and said[1] in ("-c", "-lc"):
            line = said[2]
            return (() if _needs_shell(line) else list(dropwhile(_is_assignment, words(line)))), line
        return meant(said) if spec.is_whole else said, ""
    except (ValueError, IndexError):  # a quotation that only a shell can read, or no word at all
        return (), line


def _needs_shell(line: str) -> bool:
    """Tell whether only a shell can run a command line: it has more than one command, or characters that a shell
    replaces.
    """
    return any(letter in SHELL_SIGNS for letter in line.replace("2>&1", "").replace("&>", ""))


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


Content = tuple[object, ...]


def content(spec: Spec, nth: int, append: str, directory: str) -> Content:
    """Return a value that identifies a row in other runs: its command, its directory and its requests.

    Priority, retries and timeouts are left out. Relative directories start from `directory`.
    """
    terms = spec.terms
    own = tuple(value for name, value in spec.own if f"{{{name}}}" in spec.command)
    nodes = (terms.node, terms.features) if terms.features else (terms.node,)
    needs = (terms.gpus, terms.memory, terms.host_memory, terms.cpus, terms.device, terms.exclusive, *nodes)
    place = str(PurePath(directory, spec.directory))
    return (place, spec.executable, spec.command, spec.env, terms.epochs, own, nth, append, needs)


def key(spec: Spec, nth: int) -> str:
    """Return a key that is equal for all attempts of a row, also in later runs.

    It is a hash of its command, directory, environment and epochs, and of its number among equal rows.
    """
    from hashlib import blake2b  # takes 2 ms, which only readers of tasks need

    own = LAUNCHER in spec.command or HOLDER in spec.command
    said = " ".join(meant(words(spec.command))) if own else spec.command
    both = ("", said) if spec.is_whole else (said, "")
    parts = (spec.directory, spec.executable, *both, repr(spec.env), repr(spec.terms.epochs))
    digest = blake2b("\0".join((*parts, str(nth))).encode("utf-8", "surrogateescape"), digest_size=8)
    return digest.hexdigest()
