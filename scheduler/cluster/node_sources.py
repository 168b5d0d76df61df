"""The values of `--on`: the nodes that they name, and the clusters whose nodes may join and leave during a run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from scheduler.cluster.link import LOCAL, SLURM, SSH, NodeName
from scheduler.cluster.ray_cluster import RAY, RayCluster
from scheduler.cluster.slurm import allocated_nodes, end_of_allocation, features_of
from scheduler.errors import UsageError

INSECURE = "insecure"
"""The word that `--on-insecure` adds."""
FORMS = "ssh:HOST,HOST,... · slurm · ray or ray://HOST:PORT · local"


class NodeSources:
    """The nodes that `--on` names."""

    def __init__(self, said: Sequence[str], known: Sequence[str] = ()) -> None:
        """Read the values without contacting any machine. Raise UsageError for an invalid value.

        `known` are the names of the nodes that a resumed run has used: they stay expected even if their cluster no
        longer lists them.
        """
        self._known = known
        self._fixed: list[NodeName] = []
        self._clusters: list[RayCluster] = []
        self._slurm = False
        for word in said:
            if word != INSECURE:
                self._read(word, insecure=INSECURE in said)
        self._refuse_twice()

    def _read(self, word: str, *, insecure: bool) -> None:
        kind, _, rest = word.partition(":")
        if kind == SSH:
            self._fixed += [NodeName(SSH, name) for name in _hosts(word, rest)]
        elif word == LOCAL:
            self._fixed.append(NodeName(LOCAL, LOCAL))
        elif word == SLURM:
            self._slurm = True
        elif kind == RAY:
            self._clusters.append(RayCluster(_ray_address(word), insecure=insecure))
        else:
            raise UsageError(f"--on {word}: write one of {FORMS}")

    def _refuse_twice(self) -> None:
        names = [node.name for node in self.names()]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise UsageError(f"--on names {twice} twice: name each machine once")

    def connect(self) -> None:
        """Find the nodes of allocations and clusters. Raise UsageError if an allocation or a cluster cannot be used."""
        if self._slurm:
            allocated = allocated_nodes(os.environ)
            features, ends = features_of(allocated), end_of_allocation(os.environ)
            self._fixed += [NodeName(SLURM, name, features=features.get(name, ()), ends=ends) for name in allocated]
        for cluster in self._clusters:
            cluster.connect()
        self._expect_known()
        self._refuse_twice()

    def _expect_known(self) -> None:
        missing = set(self._known) - {node.name for node in self._fixed}
        if self._clusters:
            self._fixed += [NodeName(RAY, name, self._clusters[0]) for name in sorted(missing)]
        elif self._slurm:
            self._fixed += [NodeName(SLURM, name) for name in sorted(missing)]

    def names(self) -> list[NodeName]:
        """Return the nodes that exist now."""
        found = list(self._fixed)
        for cluster in self._clusters:
            found += [NodeName(RAY, name, cluster) for name in cluster.names() if name not in self._known]
        return found

    def look(self) -> None:
        """Note which nodes the clusters have now."""
        for cluster in self._clusters:
            cluster.look()

    def close(self) -> None:
        """End the connections to clusters."""
        for cluster in self._clusters:
            cluster.close()


def _hosts(word: str, said: str) -> list[str]:
    names = [name.strip() for name in said.split(",")]
    for name in names:
        if not name or name.startswith("-") or any(letter.isspace() or not letter.isprintable() for letter in name):
            raise UsageError(f"--on {word}: {name!r} is no host: write ssh:HOST,HOST,...")
    return names


def _ray_address(word: str) -> str:
    if word == RAY:
        return "auto"
    address = word.removeprefix("ray://")
    host, _, port = address.rpartition(":")
    if not word.startswith("ray://") or not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--on {word}: write ray for the cluster of this machine, or ray://HOST:PORT")
    return address
