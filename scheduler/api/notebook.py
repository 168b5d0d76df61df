"""`%load_ext scheduler`: the magics `%gpu` and `%%gpu`, with which a notebook takes and releases a lease."""

from __future__ import annotations

import ast
import contextlib
import shlex
import sys
from collections.abc import Callable
from inspect import CO_COROUTINE
from types import CodeType
from typing import Any, TypeVar

from scheduler.api.lease import ProcessLease, lease
from scheduler.errors import SchedulerError, UsageError

_T = TypeVar("_T")
HELP = """\
%gpu [MEMORY] [FIELD=VALUE …]     lease a GPU until %gpu release, or the end of the kernel
%gpu release                      give it back
%gpu                              show what is leased
%%gpu [MEMORY] [FIELD=VALUE …]    lease a GPU for this cell; without effect where one is leased
The fields are those of scheduler.lease: gpus=2, wait=10m, priority=-1, …"""


class GpuMagic:
    """The lease of one notebook or IPython prompt."""

    def __init__(self, shell: Any) -> None:
        """Prepare for the IPython shell in which the cells run."""
        self._shell = shell
        self._lease: ProcessLease | None = None

    def line(self, line: str) -> None:
        """Carry out `%gpu …`."""
        self._guarded(lambda: self._line(line.strip()))

    def _line(self, said: str) -> None:
        if said in ("help", "-h", "--help"):
            _say(HELP)
        elif said == "release":
            if self._lease is None:
                raise UsageError("no GPU is leased: %gpu 8GiB leases one")
            self._lease.release()
            self._lease = None
            _say("released")
        elif said or self._lease is None:
            if self._lease is not None:
                raise UsageError(f"{_described(self._lease)} already: %gpu release first")
            self._lease = _asked(said).acquire()
            _say(_described(self._lease))
        else:
            _say(_described(self._lease))

    def cell(self, line: str, cell: str) -> Any:
        """Carry out `%%gpu …`: run the cell within a lease, and return the value of its last expression."""
        __tracebackhide__ = True  # an error of the cell is shown without these frames
        body, value = self._guarded(lambda: self._compiled(cell))
        made = self._guarded(lambda: _asked(line.strip()).acquire())
        with made.held():
            exec(body, self._shell.user_ns)
            return eval(value, self._shell.user_ns)

    def _compiled(self, cell: str) -> tuple[CodeType, CodeType]:
        """Compile the statements of a cell and its last expression; this happens before the wait for a lease, so that a
        syntax error is shown at once.
        """
        text = self._shell.transform_cell(cell)
        file = self._shell.compile.cache(text)
        if compile(text, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).co_flags & CO_COROUTINE:
            raise UsageError(
                "%%gpu: this cell uses await outside of a function: run %gpu before it and %gpu release after it"
            )
        tree = ast.parse(text)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else ast.Expr(ast.Constant(None))
        value = ast.fix_missing_locations(ast.Expression(last.value))
        return compile(tree, file, "exec"), compile(value, file, "eval")

    def _guarded(self, work: Callable[[], _T]) -> _T:
        """Call `work`; show an error of this project as one line without a traceback."""
        try:
            return work()
        except SchedulerError as exc:
            from IPython.core.error import UsageError as ShownError  # IPython shows it as one line

            raise ShownError(str(exc)) from None


def _say(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")


def _described(lease_: ProcessLease) -> str:
    gpus = ", ".join(map(str, lease_.gpus))
    return f"task {lease_.task_id} holds {f'GPU {gpus}' if gpus else 'host RAM'}"


def _asked(said: str) -> ProcessLease:
    """Return the lease that the words after a magic describe."""
    fields: dict[str, Any] = {}
    for word in shlex.split(said):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = "memory", word
        if name in fields:
            raise UsageError(f"%gpu {said}: {name} is given twice")
        fields[name] = int(value) if name == "gpus" and value.isdecimal() else value
    try:
        return lease(**fields)
    except TypeError as exc:
        raise UsageError(f"%gpu {said}: {str(exc).rpartition('argument ')[2]} is not a field of a lease") from exc


def load_ipython_extension(shell: Any) -> None:
    """Add the magics to an IPython shell; `%load_ext scheduler` calls this function."""
    magic = GpuMagic(shell)
    with contextlib.suppress(ImportError):  # versions before 8.8 always show the value
        from IPython.core.magic import output_can_be_silenced

        output_can_be_silenced(GpuMagic.cell)
    shell.register_magic_function(magic.line, "line", "gpu")
    shell.register_magic_function(magic.cell, "cell", "gpu")
