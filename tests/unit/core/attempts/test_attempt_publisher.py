"""The publisher of attempts: which processes the samplers attribute to leases, and from when on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from scheduler.core.attempts.attempt_publisher import CHECKING, NAMING, AttemptPublisher
from scheduler.core.causes import ResizeCause
from scheduler.core.events import Resized, Started
from scheduler.core.leases import NO_OFFER, NO_UNNAMED, Lease, RoomOffer, Trees, UnnamedShim
from scheduler.core.model import HOST, Placement
from scheduler.core.ports import Key, Watched
from scheduler.simulation.devices import SimulatedWatcher
from tests.support.builders import Simulation, gpu, jobs

LEASE = Lease("0.1-a.1.1.x", 7, "1-a", 1, 1, 0, {"GPU-0": 1 << 30, HOST: 1 << 20}, {}, since=50.0)


class Told(SimulatedWatcher):
    """A watcher that keeps what it was last told of shims."""

    shims: Trees = {}  # noqa: RUF012 - it is only replaced
    attempts: Mapping[Key, Watched] = {}
    unnamed: frozenset[UnnamedShim] = NO_UNNAMED

    def watch(
        self, attempts: Mapping[Key, Watched], others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        self.shims, self.unnamed, self.attempts = others, unnamed, dict(attempts)


def publisher() -> tuple[AttemptPublisher, Told, Simulation]:
    """Return the publisher of a run with one living task on GPU 0."""
    run = Simulation(jobs(1, memory="4GiB"), gpu(0))
    run.loop.place()
    ports, watcher = run.loop.ports, Told(run.machine)
    return AttemptPublisher(run.brain, run.loop._launch_builder, watcher, ports.leases, ports.engine), watcher, run


def test_samplers_know_the_shims_of_other_leases_before_the_decision_that_met_them() -> None:
    made, watcher, _ = publisher()
    made.meet([replace(LEASE, shim=4711)])
    assert (watcher.shims, watcher.unnamed) == ({4711: 0}, frozenset())


def test_lease_without_a_shim_is_told_with_its_user_its_devices_and_the_time_it_was_taken() -> None:
    made, watcher, _ = publisher()
    made.meet([LEASE, replace(LEASE, reserved={HOST: 1 << 20})])
    assert (watcher.shims, watcher.unnamed) == ({}, {UnnamedShim(7, 50.0, frozenset({"GPU-0"}))})
    made.meet([replace(LEASE, shim=4711)])
    assert (watcher.shims, watcher.unnamed) == ({4711: 0}, frozenset())


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


@dataclass
class Register:
    """A registry of leases that notes what it is asked for."""

    lost: Sequence[Key] = ()
    has_moved: bool = False
    uid: int = 7
    written: list[tuple[int, int, RoomOffer]] = field(default_factory=list)
    restored: list[tuple[int, int]] = field(default_factory=list)
    forgotten: list[Key] = field(default_factory=list)

    def missing(self) -> Sequence[Key]:
        return self.lost

    def rewrite(self, placement: Placement, shim: int, offer: RoomOffer = NO_OFFER) -> bool:
        self.written.append((placement.task, shim, offer))
        return True

    def restore(self, living: Sequence[tuple[Placement, int, str]]) -> str:
        self.restored += [(placement.task, shim) for placement, shim, _ in living]
        return f"{len(living)} restored"

    def forget(self, task: int, attempt: int) -> None:
        self.forgotten.append((task, attempt))


def registered(**said: Any) -> tuple[AttemptPublisher, Register, Simulation]:
    """Return the publisher of two living tasks, whose leases are noted."""
    run = Simulation(jobs(2, memory="4GiB", **said), gpu(0))
    run.loop.place()
    ports, register = run.loop.ports, Register()
    made = AttemptPublisher(run.brain, run.loop._launch_builder, Told(run.machine), cast("Any", register), ports.engine)
    for task in (1, 2):
        began = Started(task, 1, 12, 11, shim=40 + task)
        run.brain.apply(began, 1.0)
        made.started(began)
    return made, register, run


class TestLeases:
    def test_shims_are_written_into_leases_after_a_moment_and_once(self) -> None:
        made, register, _ = registered()
        made.rewrite(NAMING / 2)
        assert register.written == []
        made.rewrite(NAMING)
        assert sorted(register.written) == [(1, 41, NO_OFFER), (2, 42, NO_OFFER)]
        made.rewrite(5.0)
        assert len(register.written) == 2

    def test_a_changed_reservation_is_written_at_once(self) -> None:
        made, register, _ = registered()
        made.rewrite(1.0)
        made.resized(Resized(2, 1, {"GPU-0": 1 << 30}, ResizeCause.GREW))
        made.rewrite(1.0)
        assert register.written[2:] == [(2, 42, NO_OFFER)]

    def test_the_offer_of_a_task_that_can_continue_is_written(self) -> None:
        made, register, _ = registered(resumable=True)
        made.rewrite(0.0)
        assert sorted(task for task, _, _ in register.written) == [1, 2]
        assert {offer.priority for _, _, offer in register.written} == {0}

    def test_a_lease_is_created_again_if_two_checks_miss_it(self) -> None:
        made, register, _ = registered()
        register.lost = [(2, 1)]
        assert made.restore(1.0) == ""
        assert made.restore(1.0 + CHECKING / 2) == ""
        assert made.restore(2.0) == "1 restored"
        assert (register.restored, register.forgotten) == ([(2, 42)], [])

    def test_leases_of_a_removed_directory_are_created_at_once(self) -> None:
        made, register, _ = registered()
        register.lost, register.has_moved = [(2, 1), (1, 1)], True
        assert made.restore(1.0) == "2 restored"
        assert register.restored == [(1, 41), (2, 42)]

    def test_a_lease_of_an_attempt_that_is_over_is_forgotten(self) -> None:
        made, register, _ = registered()
        register.lost, register.has_moved = [(1, 2), (9, 1)], True
        assert made.restore(1.0) == ""
        assert (register.restored, register.forgotten) == ([], [(1, 2), (9, 1)])
