"""Findings about the nodes of `--on`: whether they can be reached and used, and what they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler.cluster.link import SSH
from scheduler.cluster.node import Node
from scheduler.ui.verbs.doctor import Finding, absent, broken, ok
from scheduler.units import count, size


def nodes(found: Sequence[Node]) -> Iterator[Finding]:
    """Yield a finding for each node."""
    if not found:
        yield absent("nodes", "runs use this machine alone", "--on ssh:HOST,HOST runs a list on several")
    hosts: dict[tuple[str, str], str] = {}
    for node in found:
        facts = node.facts
        if facts is None:
            cure = "the same scheduler must be installed there as here"
            if node.named.kind == SSH:
                cure = f"make ssh {node.name} true work without a password; {cure}"
            yield broken(node.name, node.why_away, cure, stops=len(found) == 1)
            continue
        twin = hosts.setdefault(facts.identity, node.name)
        if twin != node.name:
            yield broken(node.name, f"is the same machine as {twin} ({facts.host})", "name each machine once in --on")
            continue
        gpus = [budget.device for budget in facts.budgets if budget.device.is_gpu]
        ram = sum(budget.device.total for budget in facts.budgets if budget.device.is_host)
        models = ", ".join(sorted({device.model for device in gpus}))
        has = f"{count(len(gpus), 'GPU')} ({models})" if gpus else "no GPU"
        yield ok(node.name, f"{has}, {size(ram)} RAM, host {facts.host}", note="; ".join(facts.notes))
