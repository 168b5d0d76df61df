"""A GPU's compute mode: set for MPS with nvidia-smi; the earlier mode is kept on disk until it is restored."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scheduler.errors import DeviceError
from scheduler.runtime.processes import answer

EXCLUSIVE = "EXCLUSIVE_PROCESS"
_SMI = "nvidia-smi"
_WORDS = {"Default": "DEFAULT", "Exclusive_Process": EXCLUSIVE, "Prohibited": "PROHIBITED"}


class ComputeMode:
    """The compute mode of one GPU; `note` is the file with the mode to restore."""

    def __init__(self, note: Path, uuid: str, environ: Mapping[str, str]) -> None:
        self._note = note
        self._uuid = uuid
        self._smi = shutil.which(_SMI, path=environ.get("PATH")) or ""
        self._environ = environ

    def is_changed(self) -> bool:
        """Tell whether a mode must be restored."""
        return self._note.exists()

    def why_not(self) -> str:
        """Return why the mode cannot be set; an empty string if it can be."""
        if os.geteuid() != 0:
            return "--mps-exclusive sets the compute mode of GPUs, which only root may do: leave it out"
        return "" if self._smi else f"--mps-exclusive needs {_SMI}, which is not on PATH: leave it out"

    def exclude(self) -> None:
        """Set the mode in which only MPS can use the GPU. Raise DeviceError if that fails."""
        if self.is_changed():
            return
        before = self._read()
        if before == EXCLUSIVE:
            return
        text = f"{before}\n{self._uuid}\n"
        with open(self._note, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._set(EXCLUSIVE)

    def restore(self) -> None:
        """Restore the earlier mode, even if another scheduler changed it. Raise DeviceError if that fails."""
        if not self.is_changed():
            return
        before, self._uuid = self._note.read_text(encoding="ascii").split()
        self._set(before)
        self._note.unlink()

    def _read(self) -> str:
        said = self._run("--query-gpu=compute_mode", "--format=csv,noheader")
        if said not in _WORDS:
            raise DeviceError(f"{_SMI} answers {said[:200]!r} when asked for the compute mode of {self._uuid}")
        return _WORDS[said]

    def _set(self, mode: str) -> None:
        said = self._run("-c", mode)
        if self._read() != mode:
            raise DeviceError(f"the compute mode of {self._uuid} could not be set to {mode}: {said[:200]}")

    def _run(self, *arguments: str) -> str:
        if not self._smi:
            raise DeviceError(f"{_SMI} is not on PATH: the compute mode of {self._uuid} stays as it is")
        try:
            return answer([self._smi, "-i", self._uuid, *arguments], "", 30.0, self._environ)[1].strip()
        except subprocess.TimeoutExpired as exc:
            raise DeviceError(f"{_SMI} did not answer within 30 s") from exc
        except OSError as exc:
            raise DeviceError(f"{self._smi} cannot be started: {exc.strerror}") from exc
