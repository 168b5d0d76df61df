"""Who holds what of one GPU, told from what the driver lists: looks in, numbers out, no process anywhere."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.ports import Key, Watched
from scheduler.devices.attribution import DEVICE, PROCESS, SURE, Account, Listed, Look
from scheduler.units import GIB, MIB

TOTAL = 24 * GIB
A, B, C = (1, 1), (2, 1), (3, 1)


def process(pid: int, gib: float | None, owner: str = "", *, there: bool = True, age: float = 1.0) -> Listed:
    return Listed(pid, None if gib is None else int(gib * GIB), owner, there, age, 1000, None)


class Machine:
    """One GPU, its account, and a clock that goes on with every look."""

    def __init__(self, *, first_namespace: bool = True, reads: str = PROCESS) -> None:
        self.account = Account("GPU", first_namespace=first_namespace, reads=reads)
        self.attempts: dict[Key, Watched] = {}
        self.now = 1000.0

    def watch(self, key: Key, promise: float, settled: bool = False) -> None:
        self.attempts[key] = Watched(100 + key[0], promise={"GPU": int(promise * GIB)}, settled=settled)
        self.account.watch(self.attempts)

    def end(self, key: Key) -> None:
        del self.attempts[key]
        self.account.watch(self.attempts)

    def look(self, *listed: Listed, held: float | None = None, clients: Iterable[str] = (), times: int = 1) -> None:
        """`held` is what the listed ones hold, unless said otherwise."""
        bytes_ = sum(one.bytes or 0 for one in listed) if held is None else int(held * GIB)
        for _ in range(times):
            self.now += 0.1
            free = TOTAL - bytes_
            look = Look(self.now, 0.001, TOTAL, free, bytes_, True, listed, 0.5, {}, frozenset(clients))
            self.account.see(look, self.attempts)

    def used(self, key: Key) -> float:
        return self.account.used[key] / GIB

    def peak(self, key: Key) -> float | None:
        return self.account.peak[key] / GIB if key in self.account.peak else None

    def foreign(self) -> dict[int, float]:
        return {pid: one.bytes / GIB for pid, one in self.account.foreign.items() if one.bytes}

    def ghosts(self) -> float:
        return sum(self.account.ghosts.values()) / GIB


class TestProcesses:
    def test_who_exits_between_the_list_and_the_memory_leaves_no_ghost(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1"), held=3.2, times=5)
        machine.look(process(7, 3, "1.1"), held=0.2)
        machine.end(A)
        machine.look(held=0.2, times=3)
        assert (machine.ghosts(), machine.foreign()) == (0, {})

    def test_a_dead_pid_is_its_attempts_while_that_lives_and_a_ghost_afterwards(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1"))
        machine.look(process(7, 3, there=False))
        assert machine.used(A) == 3
        machine.end(A)
        machine.look(process(7, 3, there=False), times=SURE + 1)
        assert (machine.ghosts(), machine.account.reads) == (3, PROCESS)

    def test_who_ends_before_it_is_known_whose_it_was_is_no_stranger(self) -> None:
        machine = Machine()
        machine.look()
        machine.look(process(7, 3, there=False))
        assert machine.foreign() == {}
        machine.look(process(7, 3, there=False), process(8, 1))
        assert machine.foreign() == {7: 3, 8: 1}

    def test_a_pid_that_was_given_to_somebody_else_is_not_remembered(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1", age=50.0))
        machine.look(process(7, 1, age=0.1))
        assert (machine.used(A), machine.foreign()) == (0, {7: 1})

    def test_a_worker_that_lags_is_a_ghost_beside_its_living_attempt(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1"), process(8, 1, "1.1"), times=3)
        machine.look(process(8, 1, "1.1"), held=4)
        assert (machine.used(A), machine.ghosts()) == (1, 3)
        machine.look(process(8, 1, "1.1"), held=2)
        assert machine.ghosts() == 1
        machine.look(process(8, 1, "1.1"), process(9, 2, "1.1"), held=3)
        assert (machine.used(A), machine.ghosts()) == (3, 0)

    def test_what_was_allocated_between_the_list_and_the_memory_is_not_taken_for_what_is_usual(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(held=0.2)
        machine.look(held=3.2)
        machine.look(process(7, 3, "1.1"), held=3.2, times=2)
        machine.end(A)
        machine.look(held=3.2)
        assert machine.ghosts() == 3

    def test_numbers_missing_once_are_not_believed(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, None, "1.1"), held=3, times=SURE - 1)
        assert machine.account.reads == PROCESS
        machine.look(process(7, 3, "1.1"))
        machine.look(process(7, None, "1.1"), held=3, times=SURE)
        assert machine.account.reads == DEVICE
        machine.look(process(7, 3, "1.1"), times=SURE)
        assert machine.account.reads == PROCESS
        assert machine.used(A) == 3

    def test_in_a_namespace_of_its_own_one_unknown_pid_is_enough(self) -> None:
        for first, reads in ((True, PROCESS), (False, DEVICE)):
            machine = Machine(first_namespace=first)
            machine.watch(A, 4)
            machine.look(process(7, 3, "1.1"), process(8, 1, there=False), times=SURE)
            assert machine.account.reads == reads


class TestTheRise:
    def test_beside_one_that_is_measured_the_others_hold_still(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=1)
        machine.watch(A, 4, settled=True)
        machine.look(held=3)
        assert (machine.used(A), machine.peak(A)) == (2, None)
        machine.watch(B, 20)
        machine.look(held=6)
        assert (machine.used(A), machine.used(B), machine.peak(B)) == (2, 3, 3)
        machine.watch(B, 4, settled=True)
        machine.look(held=7)
        assert (machine.used(A), machine.used(B), machine.peak(A), machine.peak(B)) == (4, 2, None, 3)

    def test_the_end_of_a_neighbour_is_not_taken_for_a_rise(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=0)
        machine.watch(A, 4, settled=True)
        machine.look(held=4)
        machine.watch(B, 20)
        machine.look(held=6)
        machine.end(A)
        machine.look(held=6)
        assert (machine.used(B), machine.ghosts()) == (2, 4)
        machine.look(held=4)
        assert (machine.used(B), machine.ghosts()) == (2, 2)
        machine.look(held=2)
        assert (machine.used(B), machine.peak(B), machine.ghosts()) == (2, 2, 0)

    def test_two_that_are_measured_at_once_teach_nothing(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=0)
        machine.watch(A, 8)
        machine.watch(B, 8)
        machine.look(held=6)
        assert (machine.used(A), machine.used(B)) == (3, 3)
        assert (machine.peak(A), machine.peak(B)) == (None, None)

    def test_what_nobody_was_promised_is_foreign(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=2)
        machine.watch(A, 4, settled=True)
        machine.look(held=9)
        assert (machine.used(A), machine.foreign()) == (4, {0: 5})

    def test_the_drivers_own_share_is_nobodys(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=0.4, times=5)
        assert machine.foreign() == {}


class TestContainers:
    def test_the_container_of_a_task_is_its_own_and_then_its_ghost(self) -> None:
        machine = Machine()
        machine.look(process(50, 2))
        machine.watch(A, 20)
        machine.look(process(50, 2), clients=["1.1"])
        machine.look(process(50, 2.5), process(60, 3), clients=["1.1"])
        assert (machine.used(A), machine.peak(A), machine.foreign()) == (3, 3, {50: 2.5})
        machine.end(A)
        machine.look(process(50, 2.5), process(60, 3))
        assert (machine.ghosts(), machine.foreign()) == (3, {50: 2.5})
        machine.look(process(50, 2.5))
        assert (machine.ghosts(), machine.foreign()) == (0, {50: 2.5})

    def test_a_task_that_holds_memory_itself_gets_nothing_of_others(self) -> None:
        machine = Machine()
        machine.look()
        machine.watch(A, 20)
        machine.look(process(7, 1, "1.1"), process(60, 3), clients=["1.1"])
        assert (machine.used(A), machine.foreign()) == (1, {60: 3})


class TestForeigners:
    def test_little_growth_is_calm_and_falling_makes_room_for_none(self) -> None:
        machine = Machine()
        machine.look()
        machine.look(process(50, 2))
        came = machine.account.foreign[50].since
        machine.look(process(50, 2 + 60 * MIB / GIB))
        assert machine.account.foreign[50].since == came
        machine.look(process(50, 1))
        machine.look(process(50, 1 + 70 * MIB / GIB))
        assert machine.account.foreign[50].since == machine.now
