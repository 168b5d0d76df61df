"""The numbers a decision is made by; each with the reason it has its default."""

from __future__ import annotations

from scheduler.core.model import Manners, Order, Profiling
from scheduler.units import GIB, MIB
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user may turn, as the core sees it."""

    policy: str = "packed"
    """By which of the policies it is decided who starts."""
    order: Order = Order.BATCH
    buffer: int = 512 * MIB
    """Kept free on every device: late growth of residents and of strangers."""
    max_load: float = 1.0
    """Share of the host's cores that may be promised."""
    max_gpu_load: float = 2.0
    """Sum of what the tasks on one GPU keep busy when alone: 1.0 throws most of the gain away, 2.0 is within 1-9 % of
    the best in replays of measured workloads, and leaves memory for late peaks."""
    gpu_load_share: float = 0.5
    """So much of a task's load must be left below that, so that the sum comes as near to it as whole tasks let it. No
    model says that more gets less done; with all of it left, made-up workloads took 1-4 % longer."""
    busy: float = 0.5
    """What a task is taken to keep a GPU busy where nobody has seen it yet."""
    jobs: int | None = None
    """At most this many attempts of this run at once (`-j`); 0 pauses."""
    slots: int | None = None
    """Count tasks per device instead of memory (`--slots`)."""
    max_per_device: int | None = None
    """At most this many of this run's attempts on one device, on top of what memory allows."""
    closed: frozenset[str] = frozenset()
    """Keys of devices on which nothing of this run is started any more (`devices disable`, `set --devices`)."""
    overtakes: int = 50
    """So often may later tasks pass a waiting one; 50 costs under 1 % of makespan and bounds every wait."""
    overtaken_for: float = 600.0
    """Seconds after which nobody on the machine who came later may pass it any more."""
    margin: float = 0.10
    margin_bytes: int = 256 * MIB
    """A peak is trusted with 10 % + 256 MiB more: no out-of-memory per 1000 tasks in replays of measured workloads."""
    tight_samples: int = 5
    tight_spread: float = 0.02
    tight_margin: float = 0.03
    tight_margin_bytes: int = 128 * MIB
    """Five full runs within 2 % of each other are trusted with 3 % + 128 MiB."""
    profile: Profiling = Profiling.OFF
    """How needs are learned; off here, since a Brain without kinds has nothing to learn by."""
    profile_epochs: int = 2
    probe_share: float = 1 / 50
    """`auto` probes first only where that costs at most a fiftieth of the job; else it watches the real run."""
    settle: float = 5.0
    """Seconds without a new peak after which a watched task is believed."""
    gpu_settle: float = 60.0
    """The same for tasks on GPUs: the data are read first, and a wrong belief costs its neighbours their memory."""
    sure_after: int = 2
    """What one running attempt showed on GPUs is believed for one more at a time, until two have shown it or one has
    ended: every twentieth reaches its peak in its last epoch, and all of its kind would be promised far too little."""
    idle_patience: float = 3.0
    """So many times longer until a task is believed that has not kept its GPU busy yet: it still loads its data."""
    learn_only: bool = False
    """Only probe what is unknown, run nothing for real (`profiles learn`)."""
    unknown_share: float = 0.5
    """An unknown task is promised half of what is free on the host."""
    back_after: float = 0.5
    """Seconds from an attempt's end until what it held counts as back, where nothing else says so."""
    unknown_least: int = 64 * MIB
    """Below this half, an unknown task waits."""
    unknown_gpu_least: float = 0.5
    """On a GPU an unknown task is promised all that is free, and starts where that is at least half of the device:
    promised half of it only, ten times as many ran out of memory in replays."""
    usual_share: float = 0.75
    usual_kinds: int = 5
    """Where so many kinds are known, an unknown one starts where as much is free as three quarters of them need: half
    of a GPU is not enough where most tasks take nearly all of one."""
    manners: Manners = Manners.HEADROOM
    foreign_share: float = 0.25
    foreign_room: int = 2 * GIB
    """Somebody else's memory may still grow by a quarter, or by so much; that is kept free for them."""
    foreign_calm: float = 120.0
    """Seconds for which nothing is started beside a stranger who has just come or grown."""
    foreign_least: int = 256 * MIB
    """Below this it is a display, not somebody's job."""
    max_ooms: int = 3
    """An out-of-memory task is tried again this often, the last time alone."""
    max_faults: int = 3
    """So many attempts in a row lost to other causes than the task fail it: nothing loops for ever."""
    first_rows: int = 0
    """So many first attempts that fail alike, each of another task, stop the launching; 0: never."""
    first_rows_within: float = 60.0
    """Seconds within which they fail: what worked for longer than that was not wrong from its first line."""
    max_failures: int | None = None
    """So many failed tasks stop the launching."""
    short_turn: float = 60.0
    max_short_turns: int = 3
    """A resumable task that wants another turn so many times in a row, each within so many seconds, gets nowhere."""
    mps: bool = False
    """Whether tasks on one GPU run under MPS."""
    fence: bool = True
    """Whether a task under MPS cannot have more memory than it is promised when it starts."""
    mps_alone: bool = False
    """Whether the GPUs take nobody but MPS, so that what runs outside of it finds none."""
    max_clients: int = 48
    """So many tasks on one GPU under MPS: CUDA before 13.1 takes no more."""
    peak_step: float = 0.02
    peak_step_bytes: int = 64 * MIB
    """A new peak counts when it is above the last by both of these."""

    @property
    def counts_residents(self) -> bool:
        """Whether anything bounds how many tasks are on a device, besides what they need."""
        return self.slots is not None or self.max_per_device is not None or self.mps
