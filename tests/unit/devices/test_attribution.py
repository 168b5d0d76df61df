"""The attribution of one GPU's memory by the driver's lists: looks go in and numbers come out, without processes."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.ports import Key, Watched
from scheduler.devices.gpu.attribution import DEVICE, PROCESS, SURE, DeviceAccount, DeviceLook, ListedProcess
from scheduler.units import GIB, MIB

TOTAL = 24 * GIB
A, B, C = (1, 1), (2, 1), (3, 1)


def process(pid: int, gib: float | None, owner: str = "", *, there: bool = True, age: float = 1.0) -> ListedProcess:
    return ListedProcess(pid, None if gib is None else int(gib * GIB), owner, there, age, 1000, None)


class Machine:
    """One GPU, its account, and a clock that goes on with every look."""

    def __init__(self, *, first_namespace: bool = True, reads: str = PROCESS) -> None:
        self.account = DeviceAccount("GPU", first_namespace=first_namespace, reads=reads, uid=1000)
        self.attempts: dict[Key, Watched] = {}
        self.now = 1000.0

    def watch(self, key: Key, reservation: float, settled: bool = False) -> None:
        self.attempts[key] = Watched(100 + key[0], reservation={"GPU": int(reservation * GIB)}, settled=settled)
        self.account.watch(self.attempts)

    def end(self, key: Key) -> None:
        del self.attempts[key]
        self.account.watch(self.attempts)

    def look(
        self, *listed: ListedProcess, held: float | None = None, clients: Iterable[str] = (), times: int = 1
    ) -> None:
        """Take a look; `held` is the sum of the listed processes unless it is given."""
        bytes_ = sum(one.bytes or 0 for one in listed) if held is None else int(held * GIB)
        for _ in range(times):
            self.now += 0.1
            free = TOTAL - bytes_
            look = DeviceLook(self.now, 0.001, TOTAL, free, bytes_, True, listed, 0.5, {}, frozenset(clients))
            self.account.see(look, self.attempts)

    def used(self, key: Key) -> float:
        return self.account.used[key] / GIB

    def peak(self, key: Key) -> float | None:
        return self.account.peak[key] / GIB if key in self.account.peak else None

    def absent(self, key: Key) -> bool:
        return key in self.account.absent

    def unmanaged(self) -> dict[int, float]:
        return {pid: one.bytes / GIB for pid, one in self.account.unmanaged.items() if one.bytes}

    def unreclaimed(self) -> float:
        return sum(self.account.unreclaimed.values()) / GIB


class TestProcesses:
    def test_process_that_ends_between_list_and_memory_leaves_nothing_unreclaimed(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1"), held=3.2, times=5)
        machine.look(process(7, 3, "1.1"), held=0.2)
        machine.end(A)
        machine.look(held=0.2, times=3)
        assert (machine.unreclaimed(), machine.unmanaged()) == (0, {})

    def test_memory_of_a_dead_pid_is_its_attempts_while_that_lives_then_unreclaimed(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1"))
        machine.look(process(7, 3, there=False))
        assert machine.used(A) == 3
        machine.end(A)
        machine.look(process(7, 3, there=False), times=SURE + 1)
        assert (machine.unreclaimed(), machine.account.reads) == (3, PROCESS)

    def test_process_that_ends_before_its_owner_is_known_is_not_unmanaged(self) -> None:
        machine = Machine()
        machine.look()
        machine.look(process(7, 3, there=False))
        assert machine.unmanaged() == {}
        machine.look(process(7, 3, there=False), process(8, 1))
        assert machine.unmanaged() == {7: 3, 8: 1}

    def test_reused_pid_has_no_earlier_owner(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1", age=50.0))
        machine.look(process(7, 1, age=0.1))
        assert (machine.used(A), machine.unmanaged()) == (0, {7: 1})

    def test_memory_of_a_dead_worker_is_unreclaimed_beside_its_living_attempt(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1"), process(8, 1, "1.1"), times=3)
        machine.look(process(8, 1, "1.1"), held=4)
        assert (machine.used(A), machine.unreclaimed()) == (1, 3)
        machine.look(process(8, 1, "1.1"), held=2)
        assert machine.unreclaimed() == 1
        machine.look(process(8, 1, "1.1"), process(9, 2, "1.1"), held=3)
        assert (machine.used(A), machine.unreclaimed()) == (3, 0)

    def test_memory_allocated_between_list_and_memory_is_not_usual(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(held=0.2)
        machine.look(held=3.2)
        machine.look(process(7, 3, "1.1"), held=3.2, times=2)
        machine.end(A)
        machine.look(held=3.2)
        assert machine.unreclaimed() == 3

    def test_list_that_lacks_numbers_once_is_not_believed(self) -> None:
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

    def test_one_unknown_pid_shows_a_pid_namespace(self) -> None:
        for first, reads in ((True, PROCESS), (False, DEVICE)):
            machine = Machine(first_namespace=first)
            machine.watch(A, 4)
            machine.look(process(7, 3, "1.1"), process(8, 1, there=False), times=SURE)
            assert machine.account.reads == reads


class TestHiddenProcesses:
    """Processes of other users, where /proc does not show them (hidepid)."""

    def test_a_process_that_stays_hidden_is_unmanaged_and_no_attempts(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(process(7, 3, "1.1"), process(8, 2, there=False), times=2 * SURE)
        assert (machine.used(A), machine.unmanaged(), machine.account.reads) == (3, {8: 2}, PROCESS)

    def test_hidden_processes_that_were_there_before_a_launch_are_no_attempts(self) -> None:
        machine = Machine()
        machine.look(process(8, 2, there=False), times=2 * SURE)
        machine.watch(A, 4)
        machine.look(process(8, 2, there=False), times=SURE)
        assert (machine.used(A), machine.account.reads) == (0, DEVICE)
        machine.look(process(7, 3, "1.1"), process(8, 2, there=False), times=2 * SURE)
        assert (machine.used(A), machine.account.reads) == (3, PROCESS)


class TestRise:
    def test_rise_belongs_to_the_one_attempt_that_is_measured(self) -> None:
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

    def test_end_of_a_neighbour_is_no_rise(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=0)
        machine.watch(A, 4, settled=True)
        machine.look(held=4)
        machine.watch(B, 20)
        machine.look(held=6)
        machine.end(A)
        machine.look(held=6)
        assert (machine.used(B), machine.unreclaimed()) == (2, 4)
        machine.look(held=4)
        assert (machine.used(B), machine.unreclaimed()) == (2, 2)
        machine.look(held=2)
        assert (machine.used(B), machine.peak(B), machine.unreclaimed()) == (2, 2, 0)

    def test_two_attempts_measured_at_once_teach_nothing(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=0)
        machine.watch(A, 8)
        machine.watch(B, 8)
        machine.look(held=6)
        assert (machine.used(A), machine.used(B)) == (3, 3)
        assert (machine.peak(A), machine.peak(B)) == (None, None)

    def test_rise_above_all_reservations_is_unmanaged(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=2)
        machine.watch(A, 4, settled=True)
        machine.look(held=9)
        assert (machine.used(A), machine.unmanaged()) == (4, {0: 5})

    def test_share_of_the_driver_belongs_to_no_attempt(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.look(held=0.4, times=5)
        assert machine.unmanaged() == {}


class TestContainers:
    def test_memory_of_a_tasks_container_is_its_own_then_unreclaimed(self) -> None:
        machine = Machine()
        machine.look(process(50, 2))
        machine.watch(A, 20)
        machine.look(process(50, 2), clients=["1.1"])
        machine.look(process(50, 2.5), process(60, 3), clients=["1.1"])
        assert (machine.used(A), machine.peak(A), machine.unmanaged()) == (3, 3, {50: 2.5})
        machine.end(A)
        machine.look(process(50, 2.5), process(60, 3))
        assert (machine.unreclaimed(), machine.unmanaged()) == (3, {50: 2.5})
        machine.look(process(50, 2.5))
        assert (machine.unreclaimed(), machine.unmanaged()) == (0, {50: 2.5})

    def test_task_with_memory_of_its_own_gets_no_container_memory(self) -> None:
        machine = Machine()
        machine.look()
        machine.watch(A, 20)
        machine.look(process(7, 1, "1.1"), process(60, 3), clients=["1.1"])
        assert (machine.used(A), machine.unmanaged()) == (1, {60: 3})


class TestUnmanagedProcesses:
    def test_little_growth_of_an_unmanaged_process_counts_as_calm_also_after_a_fall(self) -> None:
        machine = Machine()
        machine.look()
        machine.look(process(50, 2))
        came = machine.account.unmanaged[50].since
        machine.look(process(50, 2 + 60 * MIB / GIB))
        assert machine.account.unmanaged[50].since == came
        machine.look(process(50, 1))
        machine.look(process(50, 1 + 70 * MIB / GIB))
        assert machine.account.unmanaged[50].since == machine.now


class TestAbsence:
    def test_attempt_that_two_looks_do_not_list_is_absent(self) -> None:
        machine = Machine()
        machine.look(process(7, 3, "2.1"))
        machine.watch(A, 4)
        machine.look(process(7, 3, "2.1"))
        assert not machine.absent(A)
        machine.look(process(7, 3, "2.1"))
        assert machine.absent(A)

    def test_attempt_that_was_listed_once_is_never_absent_again(self) -> None:
        for bytes_ in (0.5, None):
            machine = Machine()
            machine.watch(A, 4)
            machine.look(times=5)
            machine.look(process(7, bytes_, "1.1"))
            assert not machine.absent(A)
            machine.look(times=500)
            assert not machine.absent(A)

    def test_looks_that_name_no_processes_prove_nothing(self) -> None:
        machine = Machine(reads=DEVICE)
        machine.watch(A, 4)
        machine.look(times=9)
        assert not machine.absent(A)

    def test_memory_without_a_process_since_the_launch_proves_nothing(self) -> None:
        machine = Machine()
        machine.look(held=0.3)
        machine.watch(A, 4)
        machine.look(held=0.45, times=9)
        assert not machine.absent(A)
        machine.watch(B, 4)
        machine.look(held=0.45, times=9)
        assert machine.absent(B), "the memory was there before its launch"

    def test_pids_of_another_namespace_prove_nothing_until_an_attempt_was_listed(self) -> None:
        machine = Machine(first_namespace=False)
        machine.watch(A, 4)
        machine.look(times=9)
        assert not machine.absent(A)
        machine.watch(B, 4)
        machine.look(process(7, 3, "2.1"), times=200)
        assert (machine.absent(A), machine.absent(B)) == (True, False)

    def test_process_of_its_user_without_a_lease_may_be_its_own(self) -> None:
        machine = Machine()
        machine.look(process(6, 1))
        machine.watch(A, 4)
        machine.look(process(6, 1), times=5)
        assert machine.absent(A), "that process was there before"
        machine.look(process(6, 1), process(7, 1), times=5)
        assert not machine.absent(A)

    def test_client_of_a_container_daemon_may_work_in_its_container(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(clients=["1.1"], times=9)
        assert not machine.absent(A)

    def test_long_time_without_a_look_proves_nothing_about_it(self) -> None:
        machine = Machine()
        machine.watch(A, 4)
        machine.look(times=9)
        machine.now += 60
        machine.look()
        assert not machine.absent(A)
        machine.look(times=6000)
        assert machine.absent(A), "a tenth of its life is not proved at most"

    def test_attempt_without_a_reservation_here_is_looked_for_as_well(self) -> None:
        machine = Machine()
        machine.watch(A, 0)
        machine.look(times=2)
        assert machine.absent(A)
        machine.look(process(7, 1, "1.1"))
        assert (machine.absent(A), machine.used(A), machine.account.astray) == (False, 1, {})
