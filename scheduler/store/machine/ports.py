"""The network ports that attempts are given, for programs whose processes connect to each other."""

from __future__ import annotations

import socket
from collections.abc import Collection

FIRST, END = 20_000, 29_000
"""The range of the ports: below the ports that the kernel assigns by itself, and below the fixed ports of launchers
(29400, 29500) and of Kubernetes.
"""
EACH = 8
"""The distance between the ports of two attempts, because some programs also use the next higher ports."""
BLOCKS = (END - FIRST) // EACH


def free_port(taken: Collection[int], start: int) -> int:
    """Return a port that is not `taken` and to which a socket can be bound now; 0 if there is none.

    `start` is any number; different numbers begin the search at different ports. The port is only tested, not kept: a
    process without a lease can still take it later.
    """
    passed_over = taken if len(taken) < BLOCKS else ()  # more leases than ports: only sockets decide
    for number in range(start, start + BLOCKS):
        port = FIRST + number % BLOCKS * EACH
        if port not in passed_over and _is_free(port):
            return port
    return 0


def _is_free(port: int) -> bool:
    """Tell whether a socket can be bound to a port on all addresses of this machine, IPv4 and IPv6."""
    try:
        with _any_address() as trial:
            trial.bind(("", port))
    except OSError:
        return False
    return True


def _any_address() -> socket.socket:
    """Return a socket for IPv4 and IPv6; for IPv4 alone if the kernel has no IPv6."""
    try:
        both = socket.socket(socket.AF_INET6)
    except OSError:
        return socket.socket()
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return both
