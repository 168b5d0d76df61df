"""The nodes of a Slurm allocation, and the steps of the allocation that carry links."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence

from scheduler.errors import UsageError, describe_os_error
from scheduler.runtime import clock
from scheduler.runtime.processes import answer

JOB, NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"
"""Slurm's variables for the allocation in which this process runs."""
END = "SLURM_JOB_END_TIME"
"""The variable with the time at which the allocation ends, which newer versions of Slurm set."""
PATIENCE = 20.0
"""Seconds within which Slurm's commands must answer."""
OPTIONS = ("--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--quiet", "--input=0")
"""The options of a step of one task that shares all resources of the job on the node with other steps."""


def allocated_nodes(environ: Mapping[str, str]) -> list[str]:
    """Return the nodes of the allocation that this process runs in. Raise UsageError outside of an allocation."""
    job, nodes = environ.get(JOB, ""), environ.get(NODES, "")
    if not job or not nodes:
        raise UsageError("--on slurm: this is no Slurm allocation: start it with salloc or in a batch script of sbatch")
    try:
        code, said = answer(["scontrol", "show", "hostnames", nodes], patience=PATIENCE)
    except FileNotFoundError as exc:
        raise UsageError("--on slurm: there is no scontrol on PATH, which names the nodes of the allocation") from exc
    except subprocess.TimeoutExpired as exc:
        raise UsageError(f"--on slurm: scontrol has not answered within {PATIENCE:g} s") from exc
    except OSError as exc:
        raise UsageError(f"--on slurm: scontrol: {describe_os_error(exc)}") from exc
    if code or not said.split():
        raise UsageError(f"--on slurm: scontrol could not name the nodes {nodes}: {said.strip() or f'exit {code}'}")
    return said.split()


def end_of_allocation(environ: Mapping[str, str]) -> float:
    """Return the time at which the allocation ends, in seconds since the epoch; 0 if it never ends, or Slurm does not
    say.
    """
    if (said := environ.get(END, "")).isdecimal():
        return float(said)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        words = ["squeue", "--noheader", f"--jobs={environ.get(JOB, '')}", "--format=%L"]
        code, said = answer(words, patience=PATIENCE)
        left = [seconds for word in said.split() if (seconds := seconds_in(word)) is not None]
        if left and not code:
            return clock.now() + min(left)
    return 0.0


def seconds_in(left: str) -> float | None:
    """Return the seconds of a time that squeue prints, such as `1-02:03:04` or `3:04`; None if the text is not a
    time.
    """
    days, dash, rest = left.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, *([days] if dash else []))) or not 2 <= len(parts) <= 3:
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return 86400.0 * int(days or 0) + seconds


def features_of(nodes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the features of each node, as Slurm's administrator named them; none if Slurm does not say."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        _, said = answer(["scontrol", "show", "node", ",".join(nodes), "--oneliner"], patience=PATIENCE)
        return dict(features_in(line) for line in said.splitlines() if line.startswith("NodeName="))
    return {}


def features_in(line: str) -> tuple[str, tuple[str, ...]]:
    """Return the name and the features of a node in a line of `scontrol show node --oneliner`."""
    facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
    said = facts.get("ActiveFeatures", "").replace("(null)", "")
    return facts["NodeName"], tuple(name for name in said.split(",") if name)


def step(node: str, command: str) -> list[str]:
    """Return the words that run a shell command as a step on a node of this allocation."""
    job = os.environ.get(JOB, "")
    return ["srun", f"--jobid={job}", *OPTIONS, f"--nodelist={node}", "--", "sh", "-c", command]
