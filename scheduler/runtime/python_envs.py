"""Python environments and programs, found as the shell from which the run was started finds them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from scheduler.errors import MissingPackage, UsageError
from scheduler.values import dataclass

CONDA = "conda:"
"""The prefix of a conda environment's name, in place of a program or an environment's folder."""
_HOMES = ("miniforge3", "mambaforge", "miniconda3", "anaconda3", "conda", "micromamba", ".local/share/mamba")
"""The usual folders of conda, in the home directory or in /opt."""
OPT = "/opt"
_MOST_NAMED = 8
_MEMO = 50_000


@dataclass(frozen=True, slots=True)
class Environment:
    """A folder with a Python of its own: a conda or a virtual environment."""

    prefix: str
    conda: bool

    @property
    def python(self) -> str:
        """The path of the environment's interpreter."""
        return f"{self.prefix}/bin/python"

    @property
    def what(self) -> str:
        """The environment's description for users."""
        return f"{'conda' if self.conda else 'virtual'} environment"

    @property
    def name(self) -> str:
        """The environment's name in conda: `base`, the name below `envs`, else its path."""
        if os.path.isdir(f"{self.prefix}/condabin"):
            return "base"
        folder, name = os.path.split(self.prefix)
        return name if os.path.basename(folder) == "envs" else self.prefix

    def variables(self, environ: Mapping[str, str]) -> dict[str, str | None]:
        """Return the variables that the activation of this environment sets; None removes one. Activation scripts are
        not run.
        """
        bins = {f"{environ[name]}/bin" for name in ("CONDA_PREFIX", "VIRTUAL_ENV") if environ.get(name)}
        rest = [entry for entry in environ.get("PATH", os.defpath).split(os.pathsep) if entry not in bins]
        path = os.pathsep.join([f"{self.prefix}/bin", *rest])
        if not self.conda:
            return {"VIRTUAL_ENV": self.prefix, "PATH": path, "PYTHONHOME": None}
        own = {"CONDA_PREFIX": self.prefix, "CONDA_DEFAULT_ENV": self.name, "PATH": path, "PYTHONHOME": None}
        return {**self._kept_variables(), **own, "VIRTUAL_ENV": None}

    def _kept_variables(self) -> dict[str, str]:
        """Return the variables that `conda env config vars set` has stored in this environment."""
        try:
            with open(f"{self.prefix}/conda-meta/state", encoding="utf-8") as file:
                kept = json.load(file).get("env_vars", {})
        except (OSError, ValueError, AttributeError):
            return {}
        return {str(name): str(value) for name, value in kept.items()} if isinstance(kept, dict) else {}


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter that `-1` stands for in the column Executable."""

    path: str
    why: str = ""
    prefix: str = ""
    """The environment to activate for this interpreter; empty if the shell has activated it already."""


class Programs:
    """Programs and environments for the words of a row; every lookup is cached."""

    def __init__(self, environ: Mapping[str, str], cwd: str = "", python: Python | None = None) -> None:
        self.environ = environ
        self.python = python or Python(sys.executable)
        self._cwd = cwd
        self._which: dict[str, str | None] = {}
        self._environments: dict[tuple[str, str], Environment | None] = {}

    def which(self, program: str) -> str | None:
        """Return the path of a program on the shell's PATH; None if it is not there."""
        if program not in self._which:
            self._which[program] = shutil.which(program, path=self.environ.get("PATH", os.defpath))
        return self._which[program]

    def environment(self, word: str, directory: str = "") -> Environment | None:
        """Return the environment that a word means: `conda:NAME`, or a folder relative to a directory; None if it
        means none.
        """
        key = (word, "" if word.startswith(CONDA) else directory)
        if len(self._environments) > _MEMO:
            self._environments.clear()
        if key not in self._environments:
            self._environments[key] = self._find(word, directory)
        return self._environments[key]

    def _find(self, word: str, directory: str) -> Environment | None:
        if word.startswith(CONDA):
            return self._conda(word.removeprefix(CONDA))
        if not word or ("/" not in word and self.which(word)):
            return None
        return environment_in(os.path.abspath(os.path.join(self._cwd, directory, word)))

    def _conda(self, name: str) -> Environment | None:
        if "/" in name:
            return environment_in(os.path.abspath(os.path.expanduser(name)))
        return next((one for one in self.conda_environments if name in (one.name, os.path.basename(one.prefix))), None)

    def absent(self, word: str) -> str:
        """Return the end of a sentence about a missing `conda:NAME`: the existing names."""
        known = [f"{one.name} ({one.prefix})" for one in self.conda_environments]
        if not known:
            return "no conda environment was found here: write its folder"
        more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
        return f"there is {', '.join(known[:_MOST_NAMED])}{more}; or write its folder"

    @cached_property
    def conda_environments(self) -> tuple[Environment, ...]:
        """All conda environments that can be found without conda itself, which would take a second; the nearest
        first.
        """
        prefixes = dict.fromkeys(os.path.abspath(prefix) for prefix in self._conda_prefixes())
        found = (environment_in(prefix) for prefix in prefixes)
        return tuple(one for one in found if one is not None and one.conda)

    def _conda_prefixes(self) -> Iterator[str]:
        for folder in (self.environ.get("CONDA_ENVS_PATH") or self.environ.get("CONDA_ENVS_DIRS", "")).split(":"):
            yield from _folders(folder)
        home = self.environ.get("HOME") or os.path.expanduser("~")
        for root in self._conda_roots(home):
            yield root
            yield from _folders(f"{root}/envs")
        yield from _folders(f"{home}/.conda/envs")
        try:
            with open(f"{home}/.conda/environments.txt", encoding="utf-8") as file:  # conda lists its own there
                yield from filter(None, map(str.strip, file))
        except (OSError, UnicodeDecodeError):
            return

    def _conda_roots(self, home: str) -> Iterator[str]:
        yield from filter(None, [self.environ.get("MAMBA_ROOT_PREFIX")])
        for tool in filter(None, [self.environ.get("CONDA_EXE"), self.which("conda"), self.which("mamba")]):
            yield os.path.dirname(os.path.dirname(os.path.realpath(tool)))
        active = self.environ.get("CONDA_PREFIX", "")
        if active:
            folder = os.path.dirname(active)
            yield os.path.dirname(folder) if os.path.basename(folder) == "envs" else active
        yield from (f"{base}/{name}" for base in (home, OPT) for name in _HOMES)

    def chosen(self, word: str, source: str = "--python") -> Python:
        """Return the interpreter that `-1` stands for in the column Executable: the given one, else that of the active
        environment, else the one that runs this process.
        """
        return self._named(word, source) if word else self._active()

    def _named(self, word: str, source: str) -> Python:
        environment = self.environment(word)
        if environment is not None:
            if not os.path.exists(environment.python):
                raise UsageError(f"{source} {word}: {without_python(environment)}")
            return Python(environment.python, f"{environment.what}, by {source}", environment.prefix)
        if word.startswith(CONDA):
            raise UsageError(f"{source} {word}: {self.absent(word)}")
        path = os.path.abspath(os.path.join(self._cwd, word)) if "/" in word else self.which(word)
        if path is None:
            raise UsageError(f"{source} {word}: it is not on PATH; write its whole path")
        if not (os.path.isfile(path) and os.access(path, os.X_OK)):
            raise UsageError(
                f"{source} {word}: {path} is neither a program nor an environment; write the path of a python"
            )
        return Python(path, f"by {source}")

    def _active(self) -> Python:
        own = "the scheduler's own"
        for name in self._activated():
            prefix = self.environ[name].rstrip("/")
            if os.path.realpath(prefix) == os.path.realpath(sys.prefix):
                return Python(sys.executable, f"active {_what(name)} and {own}")
            path = f"{prefix}/bin/python"
            if os.access(path, os.X_OK):
                return Python(path, f"active {_what(name)}")
            own = f"the scheduler's own, as {name}={prefix} has no bin/python"
        return Python(sys.executable, own)

    def _activated(self) -> list[str]:
        """Return the variables that name active environments, in the order of their folders on PATH."""
        names = [name for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if self.environ.get(name)]
        path = self.environ.get("PATH", "").split(os.pathsep)
        bins = {name: f"{self.environ[name].rstrip('/')}/bin" for name in names}
        return sorted(names, key=lambda name: path.index(bins[name]) if bins[name] in path else len(path))


def _what(name: str) -> str:
    return "conda environment" if name == "CONDA_PREFIX" else "virtual environment"


def environment_in(prefix: str) -> Environment | None:
    """Return the environment in a folder; None if there is none."""
    if os.path.isdir(f"{prefix}/conda-meta"):
        return Environment(prefix, conda=True)
    return Environment(prefix, conda=False) if os.path.isfile(f"{prefix}/pyvenv.cfg") else None


def without_python(environment: Environment) -> str:
    """Return a sentence about an environment without Python."""
    cure = f"conda install -p {environment.prefix} python" if environment.conda else "make it again with its python"
    return f"the {environment.what} {environment.prefix} has no bin/python: {cure}"


def _folders(base: str) -> list[str]:
    try:
        return sorted(f"{base}/{name}" for name in os.listdir(base)) if base else []
    except OSError:
        return []


def missing_package(module: str) -> MissingPackage:
    """Return the error for a package that is not installed, with the command that installs it for this interpreter.

    In a checkout of the project, the command installs everything that is needed.
    """
    listed = Path(__file__).resolve().parents[2] / "requirements.txt"
    wanted = f"-r {listed}" if listed.is_file() else module
    return MissingPackage(f"the Python package {module} is missing: {sys.executable} -m pip install {wanted}")
