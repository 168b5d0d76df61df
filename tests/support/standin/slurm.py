"""A Slurm cluster on stand-in machines: the real munged, slurmctld and slurmd, and steps that the kernel's groups hold.

The machines are those of a `Lab`; slurmd runs inside each, and gives its GPUs to jobs. Commands such as `salloc` find
the cluster by `SLURM_CONF`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

from tests.support import killing
from tests.support.standin.nodes import Lab, Node
from tests.support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "salloc", "srun", "sinfo")
MISSING = f"not all of these are here: {', '.join(PROGRAMS)}"
_CONF = """\
ClusterName=standin
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
TaskProlog={folder}/prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def is_here() -> bool:
    """Tell whether Slurm is installed."""
    return all(shutil.which(program, path=_PATH) for program in PROGRAMS)


_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Slurm:
    """A cluster of the machines of a lab."""

    def __init__(self, lab: Lab, gpus: int = 2) -> None:
        self.folder = lab.root / "slurm"
        self._lab, self._gpus = lab, gpus
        for name in ("state", *(f"spool.{node}" for node in lab.nodes)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        self._write()
        self.env = {**lab.env, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{lab.env['PATH']}:{_PATH}"}
        sock = self.folder / "munge.sock"
        files = {"key-file": "key", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "seed"}
        said = [f"--{name}={self.folder}/{file}" for name, file in files.items()]
        self._start("munged", "--force", f"--socket={sock}", *said)
        self._start("slurmctld", "-c")
        for node in lab.nodes.values():
            self.start_node(node)
        wait_until(self.is_up, 15)

    def _write(self) -> None:
        conf = _CONF.format(host=socket.gethostname(), port=free_port(), folder=self.folder)
        for node in self._lab.nodes.values():
            has = f"CPUs=8 RealMemory=4000 Gres=gpu:{self._gpus}"
            conf += f"NodeName={node.name} NodeAddr=127.0.0.1 Port={free_port()} {has}\n"
            told = " ".join(shlex.quote(f"{name}={text}") for name, text in node.env.items())
            (node.folder / "prolog").write_text(f'for said in {told}; do echo "export $said"; done\n')
        (self.folder / "slurm.conf").write_text(conf)
        for number in range(self._gpus):
            os.mknod(self.folder / f"nvidia{number}", 0o666 | 0o020000, os.makedev(195, number))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/nvidia[0-{self._gpus - 1}]\n")
        (self.folder / "cgroup.conf").write_text("IgnoreSystemd=yes\nConstrainDevices=no\n")
        prolog = self.folder / "prolog"
        prolog.write_text(f"#!/bin/sh\n. {self._lab.folder}/$SLURMD_NODENAME/prolog\n")
        prolog.chmod(0o755)
        key = self.folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)

    def _start(self, *words: str) -> None:
        subprocess.run(words, env=self.env, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)

    def start_node(self, node: Node) -> None:
        """Start slurmd on a machine."""
        enter = ["nsenter", "-t", str(node.init), "-m", "-u", "-p", "--"]
        self._start(*enter, "slurmd", "-N", node.name)

    def is_up(self) -> bool:
        """Tell whether jobs can start on all machines."""
        words = ["sinfo", "-h", "-o", "%t %D"]
        told = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False)
        return told.stdout.split() == ["idle", str(len(self._lab.nodes))]

    def allocate(self, *options: str) -> dict[str, str]:
        """Allocate all machines with their GPUs, and return the variables of a shell in the allocation."""
        words = ["salloc", "--no-shell", f"--nodes={len(self._lab.nodes)}", f"--gres=gpu:{self._gpus}", *options]
        told = subprocess.run(words, env=self.env, capture_output=True, text=True, check=True, timeout=20)
        job = told.stderr.split("job allocation ", 1)[1].split()[0]
        return {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": ",".join(self._lab.nodes)}

    def close(self) -> None:
        """End the daemons; those on the machines end with their machines."""
        for name in ("slurmctld", "munged"):
            path = Path(self.folder / f"{name}.pid")
            if path.exists():
                killing.kill(int(path.read_text()))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
