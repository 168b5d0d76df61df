"""NVIDIA's library through pynvml, in a sampler child: only this module loads pynvml, from the path that it is given.

This module uses the standard library only, because the child runs a copy of this module in the run's directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from typing import Any

from scheduler.devices.sampler_protocol import Board

# ---- the numbers of errors ----
FUNCTION_NOT_FOUND, TIMEOUT, INSUFFICIENT_SIZE = 13, 10, 7
NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED, INVALID_ARGUMENT = 6, 4, 3, 2


class NvmlFailure(Exception):
    """A call that returned an error of the library."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(code, call)
        self.code = code
        self.call = call


class _Old(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint32), ("used", ctypes.c_uint64))


class _Usual(ctypes.Structure):
    _fields_ = (*_Old._fields_, ("gpu_instance", ctypes.c_uint32), ("compute_instance", ctypes.c_uint32))


class _Long(ctypes.Structure):
    """The longer structure that some drivers of version 53x use under the name of the usual structure."""

    _fields_ = (*_Usual._fields_, ("protected", ctypes.c_uint64))


class Library:
    """The NVIDIA library through pynvml; every call is announced, and every error becomes an NvmlFailure."""

    def __init__(self, path: str, board: Board) -> None:
        self._nvml = _load(path)
        self.board = board
        self._forms: dict[str, list[tuple[str, type[ctypes.Structure]]]] = {}
        self._words: dict[int, str] = {}
        self._room = 64

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of pynvml."""
        self.board.say(name)
        function = getattr(self._nvml, name, None)
        if function is None:
            raise NvmlFailure(FUNCTION_NOT_FOUND, name)
        try:
            return function(*arguments)
        except self._nvml.NVMLError as exc:
            raise NvmlFailure(int(exc.value), name) from exc

    def maybe(self, name: str, *arguments: Any) -> Any:
        """Call a function of pynvml; return None if this driver or device cannot provide the value, or if this user may
        not read it.
        """
        try:
            return self.call(name, *arguments)
        except NvmlFailure as failure:
            if failure.code in (FUNCTION_NOT_FOUND, NOT_SUPPORTED, NO_PERMISSION):
                return None
            raise

    def word(self, code: int) -> str:
        """Return NVML's name of an error: `GPU_IS_LOST`."""
        if not self._words:
            names = (name for name in dir(self._nvml) if name.startswith("NVML_ERROR_"))
            self._words = {getattr(self._nvml, name): name[11:] for name in names}
        return self._words.get(code, f"error {code}")

    def has(self, name: str) -> bool:
        """Tell whether the driver's library has a function of this name."""
        with contextlib.suppress(self._nvml.NVMLError):
            return bool(self._nvml._nvmlGetFunctionPointer(name))
        return False

    def processes(self, kind: str, handle: Any) -> list[tuple[int, int | None]]:
        """Return (pid, bytes or None) of each process in the lists of this `kind`; drivers before 510 provide older
        versions of the lists.
        """
        forms = self._forms.setdefault(kind, self._forms_of_lists())
        while forms:
            suffix, form = forms[0]
            try:
                return self._list(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", form, handle)
            except NvmlFailure as failure:
                if failure.code != FUNCTION_NOT_FOUND:
                    raise
                del forms[0]
        return []

    def _forms_of_lists(self) -> list[tuple[str, type[ctypes.Structure]]]:
        """Return the versions of the lists, newest first; nvitop (nvitop/api/libnvml.py) records which drivers have the
        longer structure.
        """
        long = self.has("nvmlDeviceGetConfComputeMemSizeInfo") and not self.has("nvmlDeviceGetRunningProcessDetailList")
        return [("_v3", _Long if long else _Usual), ("_v2", _Usual), ("", _Old)]

    def _list(self, name: str, form: type[Any], handle: Any) -> list[tuple[int, int | None]]:
        for _ in range(5):
            count, entries = ctypes.c_uint32(self._room), (form * self._room)()
            code = self._raw(name, handle, ctypes.byref(count), entries)
            if code == 0:
                return [(entry.pid, _known(entry.used)) for entry in entries[: count.value]]
            if code != INSUFFICIENT_SIZE:
                raise NvmlFailure(code, name)
            self._room = max(self._room, count.value) * 2 + 5
        raise NvmlFailure(INSUFFICIENT_SIZE, name)

    def _raw(self, name: str, *arguments: Any) -> int:
        self.board.say(name)
        try:
            return int(self._nvml._nvmlGetFunctionPointer(name)(*arguments))
        except self._nvml.NVMLError as exc:
            raise NvmlFailure(int(exc.value), name) from exc

    def memory(self, handle: Any) -> dict[str, int | bool]:
        """Return free and used bytes; `exact` is true if the used bytes do not contain the driver's own memory."""
        try:
            said = self.call("nvmlDeviceGetMemoryInfo", handle, getattr(self._nvml, "nvmlMemory_v2", 0x02000028))
            return {"total": said.total, "free": said.free, "held": said.used, "exact": True}
        except NvmlFailure as failure:
            if failure.code != FUNCTION_NOT_FOUND:
                raise
        said = self.call("nvmlDeviceGetMemoryInfo", handle)
        return {"total": said.total, "free": said.free, "held": said.used, "exact": False}


def _load(path: str) -> Any:
    """Load NVIDIA's official module from its path, because another package with its name may come first on sys.path."""
    spec = importlib.util.spec_from_file_location("pynvml", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pynvml"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _known(value: int) -> int | None:
    return None if value == 0xFFFF_FFFF_FFFF_FFFF else value


def as_text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
