"""The matrices the sample models compute with: torch on a GPU, else numpy, else plain Python."""

from __future__ import annotations

import ctypes
import glob
import importlib
import math
import os
from array import array
from operator import mul

NVML_PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")


def choose():
    """Return the fastest of the three kinds of matrices that works here."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read by the libraries when they are imported
    torch = _imported("torch") if gpu_seems_visible() else None
    if torch is not None and torch.cuda.is_available():
        return Torch(torch, "cuda")
    numpy = _imported("numpy")
    return Numpy(numpy) if numpy is not None else Plain()


def gpu_seems_visible():
    """Say whether it is worth the seconds and the memory that importing torch costs."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "").strip() in ("", "-1"):
        return False
    places = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *NVML_PLACES]
    found = any(os.path.exists(os.path.join(place, "libnvidia-ml.so.1")) for place in places)
    return (found or bool(glob.glob("/dev/nvidia[0-9]*"))) and _loads("libcuda.so.1")


def _loads(library):
    try:
        return bool(ctypes.CDLL(library))
    except OSError:
        return False


def _imported(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class Torch:
    """Tensors that stay on one device; `thrift` is by how much this kind makes a batch smaller."""

    name, thrift = "torch", 1

    def __init__(self, torch, device):
        self.torch, self.device, self.tanh = torch, device, torch.tanh

    def matrix(self, rows):
        return self.torch.tensor(rows, dtype=self.torch.float32, device=self.device)

    def dataset(self, block, copies):
        return self.matrix(block).repeat(copies, 1)

    def zeros(self, rows, columns):
        return self.torch.zeros((rows, columns), device=self.device)


class Numpy:
    """Arrays of 32 bit floats in the memory of the host."""

    name, thrift = "numpy", 1

    def __init__(self, numpy):
        self.numpy, self.tanh = numpy, numpy.tanh

    def matrix(self, rows):
        return self.numpy.array(rows, dtype=self.numpy.float32)

    def dataset(self, block, copies):
        return self.numpy.tile(self.matrix(block), (copies, 1))

    def zeros(self, rows, columns):
        return self.numpy.zeros((rows, columns), dtype=self.numpy.float32)


class Plain:
    """Lists of lists: as much memory for the dataset, but far fewer rows are looked at in an epoch."""

    name, thrift = "plain Python", 512

    def matrix(self, rows):
        return Rows([list(row) for row in rows])

    def dataset(self, block, copies):
        return Buffer(array("f", [value for row in block for value in row]) * copies, len(block[0]))

    def zeros(self, rows, columns):
        return Buffer(array("f", [0.0]) * (rows * columns), columns)

    def tanh(self, matrix):
        return Rows([[math.tanh(value) for value in row] for row in matrix.rows])


class Rows:
    """A small matrix with the few operators the sample models use."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, part):
        return Rows(self.rows[part])

    def __setitem__(self, part, other):
        self.rows[part] = other.rows

    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        return Rows([[sum(map(mul, row, column)) for column in columns] for row in self.rows])

    def __sub__(self, other):
        return Rows([[a - b for a, b in zip(*pair)] for pair in zip(self.rows, other.rows)])

    def __add__(self, other):
        return Rows([[a + b for a, b in zip(*pair)] for pair in zip(self.rows, other.rows)])

    def __mul__(self, other):
        if isinstance(other, Rows):
            return Rows([list(map(mul, *pair)) for pair in zip(self.rows, other.rows)])
        return Rows([[a * other for a in row] for row in self.rows])

    def __rsub__(self, number):
        return Rows([[number - a for a in row] for row in self.rows])

    @property
    def T(self):
        return Rows([list(column) for column in zip(*self.rows)])

    def mean(self):
        return sum(map(sum, self.rows)) / (len(self.rows) * len(self.rows[0]))

    def tolist(self):
        return self.rows


class Buffer:
    """A big matrix in one block of memory; a slice of it is a small matrix."""

    def __init__(self, values, width):
        self.values, self.width = values, width

    def __len__(self):
        return len(self.values) // self.width

    def __getitem__(self, part):
        starts = range(*(index * self.width for index in part.indices(len(self))))
        return Rows([self.values[at : at + self.width].tolist() for at in starts])

    def __setitem__(self, part, matrix):
        begin, end, _ = part.indices(len(self))
        values = array("f", [value for row in matrix.rows for value in row])
        self.values[begin * self.width : end * self.width] = values
