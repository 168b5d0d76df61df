"""Ports for tasks: free ones, and of no other attempt."""

from __future__ import annotations

import socket

import pytest

from scheduler.store.machine.ports import BLOCKS, EACH, FIRST, free_port


def listener(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    """Return a socket that listens at a port as launchers do."""
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family is socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind((address, port))
    made.listen()
    return made


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::"),
    ],
)
def test_a_port_on_which_a_process_listens_is_passed_over(family: socket.AddressFamily, address: str) -> None:
    port = free_port((), 77)
    try:
        listening = listener(family, address, port)
    except OSError:
        pytest.skip(f"no {address} here")
    with listening:
        assert free_port((), (port - FIRST) // EACH) not in (port, 0)


def test_a_port_of_another_attempt_is_passed_over() -> None:
    port = free_port((), 300)
    assert free_port({port}, (port - FIRST) // EACH) not in (port, 0)


def test_more_leases_than_ports_do_not_leave_a_task_without_one() -> None:
    assert free_port({FIRST + number * EACH for number in range(BLOCKS)}, 5)
