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
"""The name of the policy that works as the older batch-by-batch tool does (`--profile sequential`)."""


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """The settings of a run on which decisions depend."""

    policy: str = "packed"
    """The name of the policy that selects the tasks to start."""
    order: RankOrder = RankOrder.BATCH
    """The first key of the rank of tasks: their batch, or their priority."""
    buffer: int = 512 * MIB
    """Bytes kept free on every device for late growth of the tasks and of unmanaged processes there."""
    max_load: float = 1.0
    """The share of the host's cores that may be reserved."""
    max_gpu_load: float = 2.0
    """The largest sum of the loads of tasks on one GPU, each measured as if alone. 1.0 loses most of the gain from
    sharing a GPU; 2.0 is within 1-9 % of the best in replays of measured workloads, and leaves memory for late
    peaks."""
    gpu_load_share: float = 0.5
    """A task starts on a GPU if at least this share of its load fits below `max_gpu_load`. 0.5 brings the sum as near
    to the maximum as whole tasks allow. No model predicts less throughput from a higher sum; with 1.0, synthetic
    workloads took 1-4 % longer."""
    busy: float = 0.5
    """The assumed share of time for which a task keeps a GPU busy; used until the share has been measured."""
    load_step: float = 0.05
    """A measured load on a GPU replaces the expected load if the two differ by more than this."""
    jobs: int | None = None
    """Maximum number of attempts of this run at once (`-j`); 0: nothing starts."""
    paused: bool = False
    """True if nothing starts (`pause`)."""
    paused_until: float = 0.0
    """The wall-clock time at which the pause ends by itself; 0: the pause lasts until a user ends it."""
    window: str = ""
    """The local times in which tasks may start (`--window`); empty: at any time."""
    slots: int | None = None
    """The number of tasks per device, if slots are counted instead of memory (`--slots`); None: memory is counted."""
    max_per_device: int | None = None
    """Maximum number of this run's attempts on one device, even if memory allows more."""
    closed: frozenset[str] = frozenset()
    """Keys of devices on which this run starts nothing (`devices disable`, `set --devices`)."""
    bypass_limit: int = 50
    """How often a waiting task may be bypassed; 50 costs under 1 % of makespan and bounds every wait."""
    bypassed_for: float = 600.0
    """Seconds of waiting after which no later task of any run on the machine may bypass a task."""
    margin: float = 0.10
    """The margin as a share of a task's peak; `margin_bytes` is added to the margin."""
    margin_bytes: int = 256 * MIB
    """The second part of the margin, in bytes. With 10 % + 256 MiB, none of 1,000 tasks ran out of memory in replays of
    measured workloads."""
    share_margins: bool = True
    """True if the tasks on one GPU share the headroom for their growth, since they do not all grow at the same time.
    False if each task has headroom of its own, because the user chose a margin or MPS enforces each reservation."""
    tight_samples: int = 5
    """The number of complete attempts with nearly equal peaks after which a class gets the tight margin."""
    tight_spread: float = 0.02
    """The largest difference between the peaks of complete attempts, as a share, at which the peaks count as nearly
    equal."""
    tight_margin: float = 0.03
    """The tight margin as a share of the peak; `tight_margin_bytes` is added to this margin."""
    tight_margin_bytes: int = 128 * MIB
    """The second part of the tight margin, in bytes."""
    earlier_margin: float = 0.25
    """The margin, as a share, of a need that an earlier version of the script showed, once a task of the new version
    has settled."""
    unconfirmed_margin: float = 1.0
    """The margin, as a share, of a need that an earlier version of the script showed, before a task of the new version
    has settled. Twice the need is reserved, because the edit may have doubled the batch size."""
    earlier_sure: int = 3
    """The number of classes that must have needed as much memory with the new version of a script as with the earlier
    one; then the other classes get the usual margin. With a margin of a quarter in place of the usual one, sweeps of an
    edited script took half as long again."""
    profile: Profiling = Profiling.OFF
    """The way in which needs are learned. The default is OFF, because a Brain without task classes has no classes to
    learn about."""
    profile_epochs: int = 2
    """The number of epochs for which a probe runs."""
    probe_share: float = 1 / 50
    """With `auto`, the largest share of a task's epochs that its probe may take. If a probe would take more, the real
    run is measured instead."""
    settle: float = 5.0
    """Seconds without a new peak after which a task of unknown need has settled."""
    gpu_settle: float = 60.0
    """The settle time of tasks on GPUs, in seconds. This time is longer, because such tasks read their data first, and
    because an estimate that comes too early takes memory from their neighbours."""
    by_evidence: bool = True
    """True if the settle time of a task on GPUs follows from its measured growth; False if the user has set
    `gpu_settle` as a fixed time."""
    context: int = 640 * MIB
    """Bytes on a GPU up to which a task is assumed to have loaded only a CUDA context. Its growth may still be to come,
    however long its memory has been flat."""
    flat_share: float = 0.5
    """A share of the time that a task took to reach its peak: the task has settled when its memory has been flat for
    this share of that time, but for no less than `settle`: later parts of a training loop come sooner than the first
    one."""
    unlike: float = 0.5
    """The share of a class's need below which a task's use is unlike that class."""
    unlike_kinds: int = 2
    """The least number of known classes for this rule: a task has not settled while its use is unlike all of these
    classes, and no larger than that of a CUDA context. However much time has passed, its peak is most likely still to
    come."""
    sure_after: int = 2
    """The number of living attempts that must have shown a need on GPUs before more than one task at a time relies on
    it; a single ended attempt suffices too. One attempt in twenty reaches its peak only in its last epoch, and all
    tasks of its class would then have too little memory."""
    idle_patience: float = 3.0
    """The factor by which the settle time grows for a task that has not used its GPU yet, because such a task probably
    still loads its data."""
    without_seconds: float = 5.0
    """Seconds of life and of processor time after which a task that has used nothing on its GPU is assumed to compute
    without its GPU, because most tasks have loaded their libraries by then."""
    rest: float = 0.3
    """Seconds for which no process of a task has run, after which the task is assumed not to need its GPU at present.
    It may need the GPU later, so only one more task of its class starts without a GPU until one of them has ended."""
    late_share: float = 0.25
    """The share of a GPU that is kept together for all tasks that compute without it, because they may yet begin to use
    it. This share is kept for the settle time of GPU memory, because most of these tasks begin soon, and few need more
    at first."""
    learn_only: bool = False
    """True if unknown classes are only probed, and no task runs for real (`profiles learn`)."""
    unknown_share: float = 0.5
    """The share of the host's free memory that is reserved for a task of unknown memory."""
    back_after: float = 0.5
    """Seconds from an attempt's end after which its memory counts as free again, even if no measurement shows it
    yet."""
    unknown_least: int = 64 * MIB
    """The smallest reservation on the host, in bytes, with which a task of unknown memory starts. While the task would
    get less, it waits."""
    unknown_beside: int = 512 * MIB
    """The least RAM, in bytes, that is reserved for a task on GPUs whose RAM is unknown: about what Python, its
    libraries and a CUDA context take. If only a share of the free memory were reserved, the share would shrink with
    each start, and all tasks would start at once."""
    loaded_share: float = 0.25
    """The share of its final RAM, without libraries, that a task is expected to use once it uses its GPUs and its RAM
    has been flat for a moment. The task may still read data, so the rest stays reserved until its RAM has been flat for
    longer."""
    unknown_gpu_least: float = 0.5
    """The share of a GPU that must be free for a task of unknown memory to start; such a task reserves all that is
    free. In replays, when it reserved only half of the free memory, ten times as many tasks ran out of memory."""
    usual_share: float = 0.75
    """The share of the known task classes that must have enough memory on a GPU before a task of unknown memory starts
    there."""
    usual_kinds: int = 5
    """The number of known task classes from which `usual_share` applies. Half of a GPU is too little if most tasks need
    nearly a whole GPU."""
    expect_from: int | None = 1
    """The number of classes of known need from which a task of unknown memory on GPUs reserves only an expected need,
    so that other tasks may start beside it; None: such a task always reserves all that is free. A class counts once it
    has settled or uses more than a context."""
    expect_share: float = 0.85
    """The share of the known classes whose needs the expected need of a task of unknown memory must cover. While few
    classes are known, the expected need is the highest known peak, raised by a fraction."""
    enough_share: float = 0.6
    """A task of unknown memory may start where the free memory is enough for this share of the known classes, if all
    other tasks on the GPU have settled. The task then reserves all that is free; if it needs more, only seconds are
    lost."""
    gang_share: float = 0.9
    """The share in place of `expect_share` and `enough_share` for a task on several GPUs: if such a task runs out of
    memory, the work on all of its GPUs is lost."""
    manners: UnmanagedPolicy = UnmanagedPolicy.HEADROOM
    unmanaged_share: float = 0.25
    """The memory kept free on a GPU for the growth of unmanaged processes, as a share of the memory that they use."""
    unmanaged_room: int = 2 * GIB
    """The fewest bytes that are kept free on a GPU for the growth of unmanaged processes."""
    unmanaged_calm: float = 120.0
    """Seconds for which nothing starts on a GPU after an unmanaged process has started there or has grown."""
    unmanaged_least: int = 256 * MIB
    """Bytes below which unmanaged memory on a GPU does not count: so little memory belongs to a display, not to a
    training program."""
    max_ooms: int = 3
    """Maximum number of out-of-memory retries of a task; the last attempt runs alone."""
    max_faults: int = 3
    """The number of consecutive attempts, lost through no fault of the task, after which the task fails, so that it is
    not restarted for ever."""
    start_pause: float = 0.5
    """Seconds from a failed start, whose program never started, to the next start; the time doubles with each failed
    round."""
    start_pause_most: float = 30.0
    """The longest pause after failed starts, in seconds: the end of a shortage is noticed within half a minute, while
    trial starts during a lasting shortage cost almost nothing."""
    start_rest_most: float = 600.0
    """The longest rest, in seconds, of a task whose starts fail while other tasks start successfully."""
    start_proof: float = 1.0
    """Seconds for which an attempt must live before its start counts as successful, because its process is reported
    before the program in it starts."""
    start_rounds: int = 3
    """Failed rounds in a row after which the pause is reported; a pause with fewer failed rounds is over within two
    seconds."""
    start_window: int = 32
    """The number of simultaneous trial starts above which starts are no longer limited. A pause allows one at first,
    and twice as many after each success."""
    first_rows: int = 0
    """Launching ends once this many tasks have failed alike and no task has ended otherwise; 0: failures alike at the
    beginning do not end it."""
    rows_alike: int = 20
    """The number of equal failures in a row that end launching after some task has ended in another way. A few bad
    values in a row are usual in a search, twenty are not."""
    first_rows_within: float = 60.0
    """Only attempts that failed within this many seconds count for `first_rows` and `rows_alike`: an attempt that ran
    longer was not wrong from its first line."""
    max_failures: int | None = None
    """The number of failed tasks that ends launching; None: there is no limit."""
    stop_when: tuple[StopRule, ...] = ()
    """The conditions on metrics under which a task is stopped early."""
    keep_best: KeepBest | None = None
    """The rule by which only the best fraction of the tasks goes on at some steps; None: all tasks go on."""
    directory_wait: float = 0.0
    """Seconds for which a task waits for a directory that cannot be entered, before it fails; 0: it waits without
    limit."""
    preempt: bool = False
    """True if every task may ask less urgent resumable tasks to make room; False if only tasks whose rows say so may
    ask."""
    preempt_after: float = 300.0
    """Seconds that a task waits before it asks others to make room: most waits are shorter, and each request costs a
    restart."""
    max_preemptions: int = 3
    """How many times in a row a task makes room for others. Afterwards it runs to its end, so that it is not put off
    for ever."""
    short_turn: float = 60.0
    """Seconds below which a turn of a resumable task counts as short."""
    max_short_turns: int = 3
    """The number of short turns in a row after which a resumable task fails."""
    mps: bool = False
    """True if tasks on one GPU run under MPS."""
    fence: bool = True
    """True if MPS limits the GPU memory of a task to its reservation at the start."""
    fenced_by: str = ""
    """The means that limits the GPU memory of a task outside of MPS to its reservation at the start: torch, or dmem of
    the kernel; empty: none."""
    mps_alone: bool = False
    """True if the GPUs accept MPS clients only, so that a task outside of MPS gets no GPU."""
    max_clients: int = 48
    """Maximum number of tasks on one GPU under MPS; CUDA before 13.1 accepts no more clients."""
    peak_step: float = 0.02
    """A new peak must exceed the last one by more than this share to count."""
    peak_step_bytes: int = 64 * MIB
    """A new peak must also exceed the last one by more than this number of bytes to count."""

    def unknown_shares(self, gpus: int) -> tuple[float, float]:
        """Return the two shares for a task of unknown memory on this number of GPUs: `expect_share` and `enough_share`;
        for several GPUs both are `gang_share`.
        """
        return (self.expect_share, self.enough_share) if gpus == 1 else (self.gang_share, self.gang_share)

    @property
    def counts_residents(self) -> bool:
        """True if the number of tasks on a device is limited, whatever the tasks need."""
        return self.slots is not None or self.max_per_device is not None or self.mps

    def pause(self, now: float) -> tuple[bool, float | None]:
        """Return whether nothing may start because of a pause (`pause` or -j 0), and when the pause ends by itself."""
        until = self.paused_until or None
        if self.jobs == 0:
            return True, None
        is_paused = self.paused and (until is None or until > now)
        return is_paused, until if is_paused else None


def limited(rules: SchedulingConfig, event: Limited) -> SchedulingConfig:
    """Return a copy of the settings with the limits that an event has set."""
    return replace(
        rules,
        jobs=event.jobs,
        max_per_device=event.max_per_device,
        closed=frozenset(event.closed),
        paused=event.paused,
        paused_until=event.until,
        window=event.window,
    )
