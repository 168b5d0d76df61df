"""The numbers a decision is made by; each with the reason it has its default."""

from __future__ import annotations

from scheduler.core.model import Profiling, RankOrder, UnmanagedPolicy
from scheduler.units import GIB, MIB
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """The settings of a user that decisions depend on."""

    policy: str = "packed"
    """The name of the policy that decides which tasks start."""
    order: RankOrder = RankOrder.BATCH
    buffer: int = 512 * MIB
    """Kept free on every device: late growth of residents and of unmanaged processes."""
    max_load: float = 1.0
    """Share of the host's cores that may be reserved."""
    max_gpu_load: float = 2.0
    """Maximum summed GPU utilisation of co-located tasks, each as if alone: 1.0 throws most of the gain away, 2.0 is
    within 1-9 % of the best in replays of measured workloads, and leaves memory for late peaks."""
    gpu_load_share: float = 0.5
    """The share of a task's load that must be left below `max_gpu_load` on a GPU where it starts: 0.5 brings the sum
    as near to that as whole tasks allow. No model predicts less throughput from a higher sum; with 1.0, synthetic
    workloads took 1-4 % longer."""
    busy: float = 0.5
    """The share of time that a task is expected to keep a GPU busy until it has been measured."""
    jobs: int | None = None
    """Maximum number of attempts of this run at once (`-j`); 0 pauses."""
    slots: int | None = None
    """Count tasks per device instead of memory (`--slots`)."""
    max_per_device: int | None = None
    """Maximum number of this run's attempts on one device, on top of what memory allows."""
    closed: frozenset[str] = frozenset()
    """Keys of devices on which nothing of this run is started any more (`devices disable`, `set --devices`)."""
    bypass_limit: int = 50
    """How often a waiting task may be bypassed; 50 costs under 1 % of makespan and bounds every wait."""
    bypassed_for: float = 600.0
    """Seconds after which no task on the machine that came later may bypass it any more."""
    margin: float = 0.10
    margin_bytes: int = 256 * MIB
    """A peak is trusted with 10 % + 256 MiB more: no out-of-memory per 1000 tasks in replays of measured workloads."""
    tight_samples: int = 5
    tight_spread: float = 0.02
    tight_margin: float = 0.03
    tight_margin_bytes: int = 128 * MIB
    """Five full runs within 2 % of each other are trusted with 3 % + 128 MiB."""
    profile: Profiling = Profiling.OFF
    """How needs are learned. Off here, since a Brain without task classes has nothing to learn about."""
    profile_epochs: int = 2
    probe_share: float = 1 / 50
    """`auto` probes first only where that costs at most a fiftieth of the job; else it watches the real run."""
    settle: float = 5.0
    """Seconds without a new peak after which a watched task has settled."""
    gpu_settle: float = 60.0
    """The settle time of tasks on GPUs: they read their data first, and an early estimate costs their neighbours
    memory."""
    by_evidence: bool = True
    """True if a task on GPUs settles by what it was seen to do; False if `gpu_settle` is a clock that the user set."""
    context: int = 640 * MIB
    """A task that uses no more than this on a GPU has loaded a CUDA context and nothing of its own: it may be at its
    beginning however long its memory has been flat."""
    flat_share: float = 0.5
    """Memory that is flat for so large a share of the time that its last growth took to come has settled, but not
    before `settle`: the parts of a training loop follow each other sooner than the first one came."""
    unlike: float = 0.5
    unlike_kinds: int = 2
    """A task that uses less than this share of what every known class needs, where so many are known, and no more than
    a context, has not settled whatever the time: most likely its peak is still to come."""
    sure_after: int = 2
    """The number of attempts that must have shown a need on GPUs before more than one task at a time relies on it;
    the end of one attempt suffices too. Every twentieth attempt reaches its peak in its last epoch, and all tasks of
    its class would get too little."""
    idle_patience: float = 3.0
    """The factor on the settle time of a task that has not used its GPU yet: it still loads its data."""
    learn_only: bool = False
    """Only probe what is unknown, run nothing for real (`profiles learn`)."""
    unknown_share: float = 0.5
    """An unknown task is reserved half of what is free on the host."""
    back_after: float = 0.5
    """Seconds from an attempt's end until its memory counts as free again, where no measurement says so."""
    unknown_least: int = 64 * MIB
    """Below this half, an unknown task waits."""
    unknown_beside: int = 512 * MIB
    """The least RAM that is reserved for an unknown task on GPUs beside others: about what Python, its libraries and
    a CUDA context take. Halves of halves are soon too small, and would let all tasks start at once."""
    loaded_share: float = 0.25
    """The share of its final RAM, without its libraries, that a task on GPUs is expected to use when it uses them
    and has held still for a moment: it may still read its data. The rest stays reserved until it has held still for
    longer."""
    unknown_gpu_least: float = 0.5
    """On a GPU an unknown task is reserved all that is free, and starts where that is at least half of the device:
    reserved half of it only, ten times as many ran out of memory in replays."""
    usual_share: float = 0.75
    usual_kinds: int = 5
    """The number of known task classes from which on an unknown task starts only where as much is free as three
    quarters of them need: half of a GPU is not enough where most tasks take nearly all of one."""
    expect_from: int | None = 2
    """The number of known task classes from which on a task of unknown memory on GPUs is reserved by an expectation,
    so that others may start beside it; None: never."""
    expect_share: float = 0.9
    """An unknown task is reserved what so large a share of the known classes needs at most; of few classes the highest
    peak and a part of it."""
    enough_share: float = 0.6
    """Where no other unknown task has yet to settle, it starts with what so large a share of them needs, and is
    reserved what is left: if it needs more, it has lost seconds."""
    manners: UnmanagedPolicy = UnmanagedPolicy.HEADROOM
    unmanaged_share: float = 0.25
    unmanaged_room: int = 2 * GIB
    """The growth that is kept free for unmanaged memory: a quarter of it, at least so much."""
    unmanaged_calm: float = 120.0
    """Seconds for which nothing is started beside an unmanaged process that has just come or grown."""
    unmanaged_least: int = 256 * MIB
    """Unmanaged memory below this is a display, not a training job."""
    max_ooms: int = 3
    """Maximum number of out-of-memory retries of a task; the last attempt runs alone."""
    max_faults: int = 3
    """The number of attempts in a row, lost to other causes than the task, that fail it: nothing loops for ever."""
    start_pause: float = 0.5
    """Seconds until the next start after an attempt whose program was never started; doubled with each failed round."""
    start_pause_most: float = 30.0
    """The longest such pause: the end of a shortage is noticed within half a minute, and a lasting one costs next to
    nothing."""
    start_rest_most: float = 600.0
    """The longest time for which a task is left alone whose starts fail while those of others work."""
    start_proof: float = 1.0
    """Seconds that a started attempt lives until its start is believed to have worked: its program is started after
    its process is reported."""
    start_rounds: int = 3
    """Failed rounds in a row after which the pause is reported; fewer pass within two seconds."""
    start_window: int = 32
    """The number of starts under way at once above which they are no longer counted; it doubles with each success."""
    first_rows: int = 0
    """The number of first attempts, each of another task, that stop the launching if they fail alike; 0: never."""
    rows_alike: int = 20
    """The number of failures alike in a row that stop the launching after an attempt has ended otherwise: a few bad
    values in a row are usual in a search, twenty are not."""
    first_rows_within: float = 60.0
    """Seconds within which such attempts fail: a longer one was not wrong from its first line."""
    max_failures: int | None = None
    """The number of failed tasks that stops the launching."""
    short_turn: float = 60.0
    max_short_turns: int = 3
    """A resumable task fails after so many turns in a row, each shorter than so many seconds."""
    mps: bool = False
    """True if tasks on one GPU run under MPS."""
    fence: bool = True
    """True if a task under MPS cannot use more memory than it is reserved at its start."""
    mps_alone: bool = False
    """True if the GPUs accept MPS clients only, so that a task outside of MPS finds none."""
    max_clients: int = 48
    """Maximum number of tasks on one GPU under MPS; CUDA before 13.1 accepts no more."""
    peak_step: float = 0.02
    peak_step_bytes: int = 64 * MIB
    """A new peak counts when it is above the last by both of these."""

    @property
    def counts_residents(self) -> bool:
        """True if the number of tasks on a device is limited apart from what they need."""
        return self.slots is not None or self.max_per_device is not None or self.mps
