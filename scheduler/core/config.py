"""The parameters of decisions, each with the reason for its default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.core.model import Profiling, RankOrder, UnmanagedPolicy
from scheduler.units import GIB, MIB
from scheduler.values import dataclass, replace

if TYPE_CHECKING:
    from scheduler.core.events import Limited
    from scheduler.core.metrics.stop_rules import KeepBest, StopRule

BATCHES = "batches"
"""The policy that goes by the older tool's procedure: `--profile sequential`."""


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """The settings of a user on which decisions depend."""

    policy: str = "packed"
    """The name of the policy that selects the tasks to start."""
    order: RankOrder = RankOrder.BATCH
    buffer: int = 512 * MIB
    """Bytes kept free on every device for late growth of its tasks and of unmanaged processes."""
    max_load: float = 1.0
    """The share of the host's cores that may be reserved."""
    max_gpu_load: float = 2.0
    """Maximum summed GPU utilisation of co-located tasks, each measured as if alone. 1.0 loses most of the gain; 2.0 is
    within 1-9 % of the best in replays of measured workloads, and leaves memory for late peaks."""
    gpu_load_share: float = 0.5
    """The share of a task's load that must be left below `max_gpu_load` on a GPU where it starts. 0.5 brings the sum
    as near to the maximum as whole tasks allow. No model predicts less throughput from a higher sum; with 1.0,
    synthetic workloads took 1-4 % longer."""
    busy: float = 0.5
    """The share of time for which a task is expected to keep a GPU busy until it has been measured."""
    load_step: float = 0.05
    """A measured load on a GPU replaces the expected one if it differs by more than this."""
    jobs: int | None = None
    """Maximum number of attempts of this run at once (`-j`); 0 pauses."""
    paused: bool = False
    """True if nothing starts (`pause`)."""
    paused_until: float = 0.0
    """The time of the wall clock at which the pause ends by itself; 0: it does not."""
    window: str = ""
    """The local times in which tasks may start (`--window`); empty: at any time."""
    slots: int | None = None
    """Count tasks per device instead of memory (`--slots`)."""
    max_per_device: int | None = None
    """Maximum number of this run's attempts on one device, even if memory allows more."""
    closed: frozenset[str] = frozenset()
    """Keys of devices on which this run starts nothing any more (`devices disable`, `set --devices`)."""
    bypass_limit: int = 50
    """How often a waiting task may be bypassed; 50 costs under 1 % of makespan and bounds every wait."""
    bypassed_for: float = 600.0
    """Seconds of waiting after which no later task on the machine may bypass a task any more."""
    margin: float = 0.10
    margin_bytes: int = 256 * MIB
    """A peak gets a margin of 10 % + 256 MiB: no out-of-memory per 1,000 tasks in replays of measured workloads."""
    share_margins: bool = True
    """True if the tasks on one GPU share the headroom for their growth, since they do not all grow at the same time.
    False if each has its own, because the user chose a margin or MPS enforces each reservation."""
    tight_samples: int = 5
    tight_spread: float = 0.02
    tight_margin: float = 0.03
    tight_margin_bytes: int = 128 * MIB
    """The margin after five full runs within 2 % of each other: 3 % + 128 MiB."""
    earlier_margin: float = 0.25
    unconfirmed_margin: float = 1.0
    """The margins of a need that an earlier version of the script showed. Until a task of the new version has settled,
    twice the need is reserved, because the edit may have doubled the batch size; then a quarter more."""
    earlier_sure: int = 3
    """Once this many classes of the new version have needed as much as before, the others get the margin of known
    classes. With a quarter more, edited sweeps took half as long again as known ones."""
    profile: Profiling = Profiling.OFF
    """How needs are learned. OFF here, since a Brain without task classes has nothing to learn about."""
    profile_epochs: int = 2
    probe_share: float = 1 / 50
    """`auto` probes first only if that costs at most a fiftieth of the run; otherwise it measures the real run."""
    settle: float = 5.0
    """Seconds without a new peak after which a watched task has settled."""
    gpu_settle: float = 60.0
    """The settle time of tasks on GPUs: they read their data first, and after an estimate that came too early their
    neighbours lack memory."""
    by_evidence: bool = True
    """True if a task on GPUs settles by its measured behaviour; False if the user has set `gpu_settle` as a fixed
    time."""
    context: int = 640 * MIB
    """A task that uses no more than this on a GPU has loaded only a CUDA context: it may still be at its beginning,
    however long its memory has been flat."""
    flat_share: float = 0.5
    """A task has settled when its memory has been flat for this share of the time that its last growth took, but not
    before `settle`. The parts of a training loop follow each other sooner than the first one came."""
    unlike: float = 0.5
    unlike_kinds: int = 2
    """If this many classes are known, a task has not settled while it uses less than this share of the need of each of
    them, and no more than a context. That holds however much time has passed: its peak is most likely still to come."""
    sure_after: int = 2
    """The number of attempts that must have shown a need on GPUs before more than one task at a time relies on it; a
    single ended attempt suffices too. One attempt in twenty reaches its peak in its last epoch, and all tasks of its
    class would then have too little."""
    idle_patience: float = 3.0
    """The factor on the settle time of a task that has not used its GPU yet, because it still loads its data."""
    without_seconds: float = 5.0
    """A task that uses nothing on its GPU for this many seconds, and as many seconds of processor time, has shown that
    it computes without the GPU: most libraries load faster."""
    rest: float = 0.3
    """If none of a task's processes has run for this many seconds, the task does not need its GPU at present. It may
    need it later, so only one more task of its class starts without a GPU until one has ended."""
    late_share: float = 0.25
    """The share of a GPU that stays reserved for tasks that compute without it and may yet begin to use it, during the
    settle time of GPU memory. Most begin soon, and few need more at first."""
    learn_only: bool = False
    """Only probe unknown classes, and run nothing for real (`profiles learn`)."""
    unknown_share: float = 0.5
    """The share of the host's free memory that is reserved for an unknown task."""
    back_after: float = 0.5
    """Seconds from an attempt's end until its memory counts as free again, if no measurement shows it."""
    unknown_least: int = 64 * MIB
    """An unknown task waits if its reservation would be smaller than this."""
    unknown_beside: int = 512 * MIB
    """The least RAM that is reserved for an unknown task on GPUs beside others: about what Python, its libraries and a
    CUDA context take. Half of the free memory, taken again and again, soon becomes too little, and would let all tasks
    start at once."""
    loaded_share: float = 0.25
    """The share of its final RAM, without libraries, that a task is expected to use when it has begun to use its GPUs
    and its RAM was flat for a moment: it may still read data. The rest stays reserved until its RAM has been flat for
    longer."""
    unknown_gpu_least: float = 0.5
    """On a GPU an unknown task reserves all free memory, and starts if that is at least this share of the device. With
    only half of it reserved, ten times as many tasks ran out of memory in replays."""
    usual_share: float = 0.75
    usual_kinds: int = 5
    """From this many known task classes on, an unknown task starts only where three quarters of them would have enough
    memory. Half of a GPU is too little if most tasks need nearly all of one."""
    expect_from: int | None = 1
    """Once this many task classes have settled or use more than a context, a task of unknown memory on GPUs reserves
    its expected need, so that others may start beside it. None: never."""
    expect_share: float = 0.85
    """An unknown task reserves what this share of the known classes needs at most; while few are known, the highest
    peak and a fraction more."""
    enough_share: float = 0.6
    """If no other unknown task has still to settle, an unknown task starts with what this share of the known classes
    needs, and reserves all that is free. If it needs more, only seconds are lost."""
    gang_share: float = 0.9
    """Both shares for a task on several GPUs: if it runs out of memory, the work on all of them is lost."""
    manners: UnmanagedPolicy = UnmanagedPolicy.HEADROOM
    unmanaged_share: float = 0.25
    unmanaged_room: int = 2 * GIB
    """The memory kept free for the growth of unmanaged processes: a quarter of their use, at least this."""
    unmanaged_calm: float = 120.0
    """Seconds for which nothing starts beside an unmanaged process that is new or has grown."""
    unmanaged_least: int = 256 * MIB
    """Unmanaged memory below this is a display, not a training job."""
    max_ooms: int = 3
    """Maximum number of out-of-memory retries of a task; the last attempt runs alone."""
    max_faults: int = 3
    """A task fails after this many attempts in a row that were lost for reasons other than the task, so that nothing
    loops for ever."""
    start_pause: float = 0.5
    """Seconds from an attempt whose program never started to the next start; doubled with each failed round."""
    start_pause_most: float = 30.0
    """The longest such pause: the end of a shortage is noticed within half a minute, and a lasting shortage costs
    almost nothing."""
    start_rest_most: float = 600.0
    """The longest rest, in seconds, of a task whose starts fail while other tasks start successfully."""
    start_proof: float = 1.0
    """Seconds that an attempt must live before its start counts as successful: the program starts after its process
    is reported."""
    start_rounds: int = 3
    """Failed rounds in a row after which the pause is reported; a pause with fewer is over within two seconds."""
    start_window: int = 32
    """The number of simultaneous starts above which they are no longer limited; the limit doubles with each success."""
    first_rows: int = 0
    """The number of first attempts, each of a different task, that stop the launching if all fail alike; 0: never."""
    rows_alike: int = 20
    """The number of equal failures in a row that stop the launching after some attempt has ended in another way. A few
    bad values in a row are usual in a search, twenty are not."""
    first_rows_within: float = 60.0
    """Seconds within which such attempts fail: a longer attempt was not wrong from its first line."""
    max_failures: int | None = None
    """The number of failed tasks that stops the launching."""
    stop_when: tuple[StopRule, ...] = ()
    """The conditions on metrics under which a task is stopped early."""
    keep_best: KeepBest | None = None
    """Which share of the tasks goes on at some steps; None: all."""
    directory_wait: float = 0.0
    """Seconds for which a task waits for its directory before it fails; 0: without end."""
    preempt: bool = False
    """True if every task may ask less urgent resumable ones to make room; False if only tasks whose rows say so may."""
    preempt_after: float = 300.0
    """Seconds that such a task waits before it asks: most waits are shorter, and each request costs a restart."""
    max_preemptions: int = 3
    """How often in a row a task makes room; then it runs to its end, so that it is not put off for ever."""
    short_turn: float = 60.0
    max_short_turns: int = 3
    """The number of short turns in a row after which a resumable task fails, and the length of a short turn in
    seconds."""
    mps: bool = False
    """True if tasks on one GPU run under MPS."""
    fence: bool = True
    """True if a task under MPS cannot use more memory than its reservation at the start."""
    fenced_by: str = ""
    """The means by which the GPU memory of a task outside of MPS is limited to its reservation at the start: torch, or
    dmem of the kernel; empty: none."""
    mps_alone: bool = False
    """True if the GPUs accept MPS clients only, so that a task outside of MPS gets no GPU."""
    max_clients: int = 48
    """Maximum number of tasks on one GPU under MPS; CUDA before 13.1 accepts no more."""
    peak_step: float = 0.02
    peak_step_bytes: int = 64 * MIB
    """A new peak counts if it exceeds the last one by both of these."""

    def unknown_shares(self, gpus: int) -> tuple[float, float]:
        """Return the shares of the known classes that determine what an unknown task on this number of GPUs reserves,
        and with how much it starts.
        """
        return (self.expect_share, self.enough_share) if gpus == 1 else (self.gang_share, self.gang_share)

    @property
    def counts_residents(self) -> bool:
        """True if the number of tasks on a device is limited, whatever they need."""
        return self.slots is not None or self.max_per_device is not None or self.mps

    def pause(self, now: float) -> tuple[bool, float | None]:
        """Return whether nothing may start because of a pause (`pause` or -j 0), and when the pause ends by itself."""
        until = self.paused_until or None
        if self.jobs == 0:
            return True, None
        is_paused = self.paused and (until is None or until > now)
        return is_paused, until if is_paused else None


def limited(rules: SchedulingConfig, event: Limited) -> SchedulingConfig:
    """Return the parameters with the limits of an event."""
    return replace(
        rules,
        jobs=event.jobs,
        max_per_device=event.max_per_device,
        closed=frozenset(event.closed),
        paused=event.paused,
        paused_until=event.until,
        window=event.window,
    )
