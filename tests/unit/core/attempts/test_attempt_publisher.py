"""The publisher of attempts: which processes the samplers attribute to leases, and from when on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scheduler.core.attempts.attempt_publisher import AttemptPublisher
from scheduler.core.events import Started
from scheduler.core.leases import NO_UNNAMED, Lease, UnnamedShim
from scheduler.core.model import HOST
from scheduler.core.ports import Key, Watched
from scheduler.simulation.devices import SimulatedWatcher
from tests.support.builders import Simulation, gpu, jobs

LEASE = Lease("0.1-a.1.1.x", 7, "1-a", 1, 1, 0, {"GPU-0": 1 << 30, HOST: 1 << 20}, {}, since=50.0)


class Told(SimulatedWatcher):
    """A watcher that keeps what it was last told of shims."""

    shims: frozenset[int] = frozenset()
    attempts: Mapping[Key, Watched] = {}
    unnamed: frozenset[UnnamedShim] = NO_UNNAMED

    def watch(
        self, attempts: Mapping[Key, Watched], other_shims: frozenset[int], unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        self.shims, self.unnamed, self.attempts = other_shims, unnamed, dict(attempts)


def publisher() -> tuple[AttemptPublisher, Told, Simulation]:
    """Return the publisher of a run with one living task on GPU 0."""
    run = Simulation(jobs(1, memory="4GiB"), gpu(0))
    run.loop.place()
    ports, watcher = run.loop.ports, Told(run.machine)
    return AttemptPublisher(run.brain, run.loop._launch_builder, watcher, ports.leases, ports.engine), watcher, run


def test_samplers_know_the_shims_of_other_leases_before_the_decision_that_met_them() -> None:
    made, watcher, _ = publisher()
    made.meet([replace(LEASE, shim=4711)])
    assert (watcher.shims, watcher.unnamed) == ({4711}, frozenset())


def test_lease_without_a_shim_is_told_with_its_user_its_devices_and_the_time_it_was_taken() -> None:
    made, watcher, _ = publisher()
    made.meet([LEASE, replace(LEASE, reserved={HOST: 1 << 20})])
    assert (watcher.shims, watcher.unnamed) == (frozenset(), {UnnamedShim(7, 50.0, frozenset({"GPU-0"}))})
    made.meet([replace(LEASE, shim=4711)])
    assert (watcher.shims, watcher.unnamed) == ({4711}, frozenset())


def test_adopted_attempt_has_an_unnamed_shim_until_it_is_known_or_over() -> None:
    for known in (Started(1, 1, 12, 11), None):
        made, watcher, run = publisher()
        placement = run.brain.tasks[1].placement
        assert placement is not None
        made.adopt((1, 1), placement)
        made.meet([])
        assert watcher.unnamed == {UnnamedShim(run.loop.ports.leases.uid, 0.0, frozenset({"GPU-0"}))}
        if known is not None:
            made.started(known)
        else:
            made.ended((1, 1))
        made.look()
        assert watcher.unnamed == frozenset()


def test_samplers_know_the_shim_and_the_reservation_of_an_attempt_until_it_ends() -> None:
    made, watcher, run = publisher()
    placement = run.brain.tasks[1].placement
    assert placement is not None
    made.started(Started(1, 1, 12, 11, shim=4711))
    made.look()
    assert {key: (one.shim, one.reservation) for key, one in watcher.attempts.items()} == {
        (1, 1): (4711, placement.reservation)
    }
    made.ended((1, 1))
    made.look()
    assert watcher.attempts == {}


def test_samplers_are_told_nothing_as_long_as_nothing_changes() -> None:
    made, watcher, _ = publisher()
    made.look()
    watcher.shims = frozenset({1})
    made.meet([])
    assert watcher.shims == {1}
