"""Launchers of multi-GPU programs, and the options that are added to their commands where variables have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from scheduler.core.model import Job, Spec
from scheduler.core.tasks.command import PLAIN_PYTHON, argv, meant, shell_line
from scheduler.core.tasks.fields import RowForm
from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass

ANY_PORT = "{port}"
"""The text that is shown in place of the port of a task that has not started."""
CHOOSING = ("accelerate", "deepspeed")
"""Words for a quick test: every command that could choose GPUs by itself contains one of them."""


class Launcher(StrEnum):
    """A program that starts one process for each GPU; these processes meet at a port."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate launch"
    DEEPSPEED = "deepspeed"


_PROGRAMS = {
    "torchrun": Launcher.TORCHRUN, "accelerate-launch": Launcher.ACCELERATE, "deepspeed": Launcher.DEEPSPEED,
    "deepspeed.pt": Launcher.DEEPSPEED,
}  # fmt: skip
_MODULES = {
    "torch.distributed.run": Launcher.TORCHRUN, "torch.distributed.launch": Launcher.TORCHRUN,
    "accelerate.commands.launch": Launcher.ACCELERATE, "deepspeed.launcher.runner": Launcher.DEEPSPEED,
}  # fmt: skip
_WITH_VERB = ("accelerate", "accelerate.commands.accelerate_cli")
"""Launchers (programs and modules) with several verbs, one of which is `launch`."""
_RUNNERS = frozenset({
    "uv", "poetry", "conda", "mamba", "micromamba", "pixi", "pdm", "hatch", "rye", "env", "nohup", "nice", "ionice",
    "time", "numactl", "taskset", "stdbuf", "setsid", "chrt", "timeout",
})  # fmt: skip
"""Programs that run the command which follows them."""
_RUNNERS_WORDS = lazy_pattern(r"run|exec|[A-Za-z_]\w*=.*|\d[\w.,:-]*")
"""Words between a runner and the command that it runs: a verb, an assignment, a number."""
_RUNNERS_SWITCHES = frozenset({
    "-u", "-i", "-B", "-E", "-I", "-O", "-s", "-v", "-q", "--", "--no-sync", "--frozen", "--locked", "--isolated",
    "--active", "--offline", "--no-project", "--all-extras", "--no-capture-output", "--live-stream", "--quiet",
    "--verbose", "--foreground",
})  # fmt: skip
"""Options of runners and of Python that take no value. After any other option, the next word is taken as its value."""
_SWITCHES: Mapping[Launcher, frozenset[str]] = {
    Launcher.TORCHRUN: frozenset({
        "--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--use-env",
    }),
    Launcher.ACCELERATE: frozenset({
        "-q", "--quiet", "--cpu", "--multi-gpu", "--tpu", "--use-deepspeed", "--use-fsdp", "--use-parallelism-config",
        "--use-megatron-lm", "--same-network", "-m", "--module", "--no-python", "--enable-cpu-affinity", "--debug",
        "--dynamo-use-fullgraph", "--dynamo-use-dynamic", "--dynamo-use-regional-compilation", "--tpu-cluster",
        "--no-tpu-cluster", "--tpu-use-sudo", "--downcast-bf16", "--fp8-use-autocast-during-eval",
        "--fp8-enable-fsdp-float8-all-gather",
    }),
    Launcher.DEEPSPEED: frozenset({
        "-q", "--quiet", "--module", "--no-python", "--no-local-rank", "--no-ssh", "--no-ssh-check", "--force-multi",
        "--save-pid", "--bind-cores-to-rank", "--elastic-training",
    }),
}  # fmt: skip
"""The options of launchers that take no value."""
_PORT = {Launcher.ACCELERATE: "--main_process_port", Launcher.DEEPSPEED: "--master_port"}
_NUMBER = ("--num-gpus", "--num-accelerators")
_CHOICES = ("--include", "-i", "--exclude", "-e")
_HOSTS = ("--hostfile", "-H")
_ONE = ("", "1", "1:1", "-1")
_WORD = lazy_pattern(r"\S+")
_LAUNCHERS_OPTIONS = {
    Launcher.TORCHRUN: {"--nnodes": _ONE, "--node-rank": ("0",), "--master-addr": ("127.0.0.1", "localhost")},
    Launcher.ACCELERATE: {"--num-machines": _ONE, "--machine-rank": ("0",), "--main-process-ip": ("127.0.0.1",)},
    Launcher.DEEPSPEED: {
        "--num-nodes": _ONE, "--node-rank": ("0", "-1"), "--master-addr": ("", "127.0.0.1"), "--hostfile": (),
        "-H": (), "--force-multi": (), "--no-ssh": (),
    },
}  # fmt: skip
"""For each launcher, the options that concern other machines, each with the values that mean that there are no other
machines."""


class _Option(NamedTuple):
    """One option of a launcher: the positions of its first word and after its last word, and its value."""

    at: int
    end: int
    value: str


def as_started(command: Sequence[str], spec: Spec, form: RowForm, port: int) -> tuple[str, ...]:
    """Return the command of a task in the form in which its attempt is started; `port` is 0 if the task has not
    started.

    For a lease, return the command that its guest runs.
    """
    if spec.terms.guest:
        command = meant([*command])
    if not form.adapts:
        return tuple(command)
    gpus = 1 if spec.terms.gpus is None else spec.terms.gpus
    return LauncherCalls(command).adapted(str(port or ANY_PORT), gpus)


def calls_of(job: Job) -> LauncherCalls:
    """Return the launchers in the command of a task that get options; none if the commands of its run are not
    changed.
    """
    if not job.adapts:
        return LauncherCalls(())
    return LauncherCalls(argv(job.spec, 0, job.spec.terms.epochs, PLAIN_PYTHON, job.append))


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a launcher within a command, with the launcher's options."""

    launcher: Launcher
    at: int
    """The place of the launcher's first option: the number of words before it."""
    options: Mapping[str, _Option]
    """The launcher's own options by name, with hyphens; options of the script are left out."""

    @property
    def crosses_machines(self) -> bool:
        """True if the launcher's processes may meet processes on other machines."""
        return any(
            name in self.options and self.options[name].value not in here
            for name, here in _LAUNCHERS_OPTIONS[self.launcher].items()
        )

    def value(self, *names: str) -> str | None:
        """Return the value of the first of these options that the command contains; None if it contains none of
        them.
        """
        return next((self.options[name].value for name in names if name in self.options), None)

    def inserted(self, port: str) -> tuple[str, ...]:
        """Return the words to insert so that the processes meet at `port`; empty if the command names a port, or would
        not use a fixed port.
        """
        if self.crosses_machines:
            return ()
        if self.launcher is Launcher.TORCHRUN:
            fixed = self.value("--rdzv-backend") == "c10d" and not {"--rdzv-endpoint", "--standalone"} & {*self.options}
            return ("--rdzv-endpoint", f"localhost:{port}") if fixed else ()
        option = _PORT[self.launcher]
        return () if option.replace("_", "-") in self.options else (option, port)

    def removed(self, gpus: int) -> tuple[_Option, ...]:
        """Return the options of DeepSpeed to remove: they state the right number of GPUs, but would make DeepSpeed
        ignore which GPUs the task has.

        Return no options for a task without GPUs.
        """
        if not gpus:
            return ()
        found = [(name, self.options[name]) for name in (*_NUMBER, "--num-nodes") if name in self.options]
        if self.launcher is not Launcher.DEEPSPEED or self.crosses_machines:
            return ()
        return tuple(option for name, option in found if name == "--num-nodes" or option.value == str(gpus))


class LauncherCalls:
    """The launchers with which one command begins: usually none, sometimes one, or several in a shell command line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._argv = tuple(command)
        self._line = shell_line(command)
        self._words = self._line.split() if self._line else list(command)
        found = _in_line(self._words) if self._line else filter(None, [_found(self._words)])
        self._calls = tuple(found)

    @property
    def reads_numbers(self) -> bool:
        """True if one of the launchers understands GPUs only as numbers."""
        return any(call.launcher is Launcher.DEEPSPEED for call in self._calls)

    @property
    def crosses_machines(self) -> bool:
        """True if processes may meet processes on other machines, which would use another port."""
        return any(call.crosses_machines for call in self._calls)

    def adapted(self, port: str, gpus: int) -> tuple[str, ...]:
        """Return the command, changed so that its launchers meet at this port and use the `gpus` GPUs of the task.

        A launcher with a port in its options keeps it. If `gpus` is 0, no option is removed.
        """
        if not self._calls:
            return self._argv
        if self._line:
            return (*self._argv[:2], self._adapted_line(port, gpus))
        (call,) = self._calls
        dropped = {at for option in call.removed(gpus) for at in range(option.at, option.end)}
        kept = [word for at, word in enumerate(self._words) if at >= call.at and at not in dropped]
        return (*self._words[: call.at], *call.inserted(port), *kept)

    def changes(self, port: str, gpus: int) -> str:
        """Return a description of what `adapted` inserts and removes; empty if it changes nothing."""
        inserted = [" ".join(call.inserted(port)) for call in self._calls]
        removed = [self._words[o.at : o.end] for call in self._calls for o in call.removed(gpus)]
        return ", ".join(dict.fromkeys(filter(None, [*inserted, *(f"without {' '.join(words)}" for words in removed)])))

    def fault(self, gpus: int) -> str:
        """Return why the command would not use exactly the `gpus` GPUs of its task, and what to write instead; empty if
        it would.
        """
        return next(filter(None, (_fault(call, gpus) for call in self._calls)), "")

    def _adapted_line(self, port: str, gpus: int) -> str:
        """Return the line for the shell with words inserted and removed; all other text stays as it is."""
        spans = [match.span() for match in _WORD.finditer(self._line)]
        edits: list[tuple[int, int, str]] = []
        for call in self._calls:
            after = spans[call.at - 1][1]
            edits += [(after, after, "".join(f" {word}" for word in call.inserted(port)))]
            edits += [(spans[o.at - 1][1], spans[o.end - 1][1], "") for o in call.removed(gpus)]
        line = self._line
        for start, end, text in sorted(edits, reverse=True):
            line = line[:start] + text + line[end:]
        return line


def _fault(call: _Call, gpus: int) -> str:
    if call.launcher is Launcher.ACCELERATE:
        ids = call.value("--gpu-ids")
        return "" if ids in (None, "all") else _chooses(f"accelerate launch --gpu_ids {ids}", gpus)
    if call.launcher is not Launcher.DEEPSPEED:
        return ""
    for name in (*_CHOICES, *_HOSTS):
        if name in call.options:
            return _chooses(f"deepspeed {name} {call.options[name].value}", gpus)
    nodes, number = call.value("--num-nodes"), call.value(*_NUMBER)
    if nodes is not None and nodes not in _ONE:
        return f"deepspeed --num_nodes {nodes} needs other machines, but a task gets GPUs of one: remove the option"
    if number is None or number in (str(gpus), "-1"):
        return ""
    return (
        f"deepspeed --num_gpus {number} takes the first {number} GPUs of the machine, and the task has {gpus}: remove "
        f"it, and give the task GPUs={number}"
    )


def _chooses(said: str, gpus: int) -> str:
    return f"{said} chooses GPUs by itself, and not the {gpus} of the task: remove it; GPUs and Device say which ones"


def _in_line(words: Sequence[str]) -> Iterator[_Call]:
    """Yield the launchers in a shell command line. Yield none if commands in the line run at the same time, because
    they cannot share a port.
    """
    begins = "&" not in words
    for at, word in enumerate(words):
        call = _found(words, at) if begins else None
        if call is not None and not any(quote in word for word in words[: call.at] for quote in "'\""):
            yield call
        begins = "&" not in words and (word == "&&" or word.endswith(";"))


def _found(words: Sequence[str], start: int = 0) -> _Call | None:
    """Return the launcher with which a command begins, also after runners such as `uv run` and `env A=1`; None if there
    is none.
    """
    at, python = start, False
    while at < len(words):
        word = words[at]
        if word == "-m" and python:
            return _of_module(words, at + 1)
        if (call := _of_program(words, at)) is not None:
            return call
        if word.startswith("-"):
            at += 1 if "=" in word or word in _RUNNERS_SWITCHES else 2
            continue
        name = word.rpartition("/")[2]
        if python or not (name in _RUNNERS or name.startswith("python") or _RUNNERS_WORDS.fullmatch(word)):
            return None
        python = name.startswith("python")
        at += 1
    return None


def _of_program(words: Sequence[str], at: int) -> _Call | None:
    name = words[at].rpartition("/")[2]
    if name in _PROGRAMS:
        return _call(_PROGRAMS[name], words, at + 1)
    if name == _WITH_VERB[0] and at + 1 < len(words) and words[at + 1] == "launch":
        return _call(Launcher.ACCELERATE, words, at + 2)
    return None


def _of_module(words: Sequence[str], at: int) -> _Call | None:
    module = words[at] if at < len(words) else ""
    if module in _MODULES:
        return _call(_MODULES[module], words, at + 1)
    if module in _WITH_VERB and at + 1 < len(words) and words[at + 1] == "launch":
        return _call(Launcher.ACCELERATE, words, at + 2)
    return None


def _call(launcher: Launcher, words: Sequence[str], start: int) -> _Call:
    options: dict[str, _Option] = {}
    at, switches = start, _SWITCHES[launcher]
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].partition("=")
        name, end = name.replace("_", "-"), at + 1
        if not equals and name not in switches:
            value, end = (words[end], end + 1) if end < len(words) else ("", end)
        options[name] = _Option(at, end, value)
        at = end
    return _Call(launcher, start, options)
