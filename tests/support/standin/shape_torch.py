"""A stand-in of torch for the sample scripts: tensors of a shape and no values, with memory on the stand-in's GPUs.

A test puts it on PYTHONPATH as `torch.py`. Its work takes time as that of a GPU does: without the processor, after the
calls have been made, when a result is asked for.
"""

from __future__ import annotations

import importlib.util
import os
import time
from types import SimpleNamespace
from typing import Any

_spec = importlib.util.spec_from_file_location("standin_client", os.environ["STANDIN_CLIENT"])
assert _spec is not None
assert _spec.loader is not None
_client = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_client)

CONTEXT = 300 << 20
STEP = 0.0004
"""Seconds that the GPU computes until a mean is known."""
LARGE = 1 << 20
"""Smaller tensors come from what the context has reserved."""
float32 = "float32"
_cuda = _client.Cuda()
cuda = SimpleNamespace(is_available=lambda: bool(_cuda.devices()))
_begun = False


class Tensor:
    """A matrix of this shape; a view holds no memory of its own."""

    def __init__(self, rows: int, columns: int, *, owns: bool = False) -> None:
        self.rows, self.columns = rows, columns
        self._held = rows * columns * 4 if owns and rows * columns * 4 > LARGE else 0
        if self._held:
            _allocate(self._held)

    def __del__(self) -> None:
        if self._held:
            _cuda.free(0, self._held)

    def repeat(self, copies: int, _: int) -> Tensor:
        return Tensor(self.rows * copies, self.columns, owns=True)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(len(range(*part.indices(self.rows))), self.columns)

    def __setitem__(self, part: slice, other: Tensor) -> None:
        assert len(range(*part.indices(self.rows))) == other.rows

    def __matmul__(self, other: Tensor) -> Tensor:
        assert self.columns == other.rows
        return Tensor(self.rows, other.columns)

    def _alike(self, _other: Any) -> Tensor:
        return Tensor(self.rows, self.columns)

    __add__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _alike

    @property
    def T(self) -> Tensor:  # noqa: N802 - its name in torch
        return Tensor(self.columns, self.rows)

    def mean(self) -> float:
        time.sleep(STEP)
        return 0.5

    def tolist(self) -> list[list[float]]:
        return [[0.0] * self.columns] * self.rows


def _allocate(size: int) -> None:
    global _begun  # noqa: PLW0603 - a context is one for all of the process
    if not _begun:
        _begun = True
        _cuda.allocate(0, CONTEXT)
        _cuda.busy(0, 0.1)
    _cuda.allocate(0, size)


def tensor(rows: list[list[float]], **_: Any) -> Tensor:
    """Return a small tensor."""
    return Tensor(len(rows), len(rows[0]))


def zeros(shape: tuple[int, int], **_: Any) -> Tensor:
    """Return a tensor with memory of its own."""
    return Tensor(*shape, owns=True)


def tanh(matrix: Tensor) -> Tensor:
    """Return a tensor of the same shape."""
    return Tensor(matrix.rows, matrix.columns)
