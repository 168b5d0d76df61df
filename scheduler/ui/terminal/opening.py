"""The opening lines of a run, of a resumed run, and of a plan (`--dry-run`)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.brain import Brain
from scheduler.core.config import BATCHES
from scheduler.core.control import messages
from scheduler.core.model import Decision, DeviceBudget, EstimateSource, Job, Placement, Profiling, RankOrder, State
from scheduler.core.placement.device_capacity import kept_for_unmanaged
from scheduler.core.placement.refusal import Refusal
from scheduler.core.placement.request import MemoryRequest, declared, gpus_of
from scheduler.core.profiling.estimator import should_probe
from scheduler.core.queue.wait_queue import out_of_turn
from scheduler.patterns import lazy_pattern
from scheduler.runtime.paths import tilde
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.detached import STOP
from scheduler.ui.text import short
from scheduler.units import count, duration, size
from scheduler.units import ranges as number_ranges

MOST_NODES = 8
"""The most nodes for which each node has a line of its own."""
MOST_WAITS = 5
"""The most waiting tasks whose reasons a plan shows."""
_PLANNED_TASK = lazy_pattern(r"\btask (\d+)\b(?: of this run)?(?! of )")
"""A pattern for a task in a sentence about a plan; it does not match a task of another run."""


def lines(
    run: Mapping[str, str],
    budgets: Sequence[DeviceBudget],
    limits: Mapping[str, str],
    settings: Settings,
    brain: Brain,
) -> list[str]:
    """Return the opening lines of a run: list, place, devices, Python, memory, and how to watch and stop the run."""
    number = run["number"]
    return [
        f"run {number}  {_list_summary(run['file'], brain, settings.num)}      {tilde(run['root'])}",
        *_device_lines(budgets, limits, settings, brain),
        *_mps_lines(brain),
        f"python  {_python(run)}",
        f"memory  {_memory(brain, budgets)}",
        *priority_hints(brain),
        f"watch   scheduler top r{number}     stop   {how_to_stop(run)}",
    ]


def how_to_stop(run: Mapping[str, str]) -> str:
    """Return how to stop a run: by keys if it has a terminal, by commands if it is detached."""
    if run.get("detached"):
        return STOP.format(run["number"])
    return "Ctrl-C: finish what runs, start nothing new; twice: stop it; Ctrl-\\: leave it running"


def _python(run: Mapping[str, str]) -> str:
    """Return the Python that `-1` means in a command, with the reason if the run recorded one."""
    why = run.get("python_why", "")
    return f"{tilde(run['python'])} ({why})" if why else tilde(run["python"])


def _list_summary(file: str, brain: Brain, num: int) -> str:
    """Return the number of tasks in a list, and how they are ranked."""
    tasks, batches = len(brain.task_table), brain.task_table.batches
    if brain.rules.order is RankOrder.GLOBAL:
        return f"{file}: {count(tasks, 'task')}, ranked by priority"
    if batches <= 1:
        return f"{file}: {count(tasks, 'task')} in 1 batch, ranked by priority"
    return f"{file}: {count(tasks, 'task')} in {count(batches, 'batch')} of {num}, ranked by batch, then priority"


def _device_lines(
    budgets: Sequence[DeviceBudget], limits: Mapping[str, str], settings: Settings, brain: Brain
) -> list[str]:
    """Return one line for the GPUs and one for the host, or one for each node; `limits` has the sources of limits on
    GPUs, memory and cores.
    """
    if any(budget.device.node for budget in budgets):
        return _node_lines(budgets, brain)
    gpus = [budget for budget in budgets if budget.device.is_gpu]
    if any(budget.device.is_slot for budget in budgets):
        return [_slot_line(budgets, gpus)]
    found = [_host_line(budget, limits, settings) for budget in budgets if not budget.device.is_gpu]
    if gpus:
        allowed = f"; allowed by {limits['gpus']}" if limits.get("gpus") else ""
        used = "   ".join(filter(None, (_unmanaged(budget, brain) for budget in gpus)))
        numbers = _numbers(gpus)
        found.insert(0, f"GPUs    {numbers} ({_sizes(gpus)}{allowed})   {used}".rstrip())
    return found


def _node_lines(budgets: Sequence[DeviceBudget], brain: Brain) -> list[str]:
    """Return a line for each node; if there are many nodes, return one line for all of them, and one for nodes that
    cannot be reached.
    """
    nodes: dict[str, list[DeviceBudget]] = {}
    for budget in budgets:
        nodes.setdefault(budget.device.node, []).append(budget)
    if len(nodes) <= MOST_NODES:
        wide = max(7, *map(len, nodes))
        return [f"{name:<{wide}} {_node(here, brain)}" for name, here in nodes.items()]
    away = [name for name, here in nodes.items() if here[0].away]
    found = [f"nodes   {len(nodes):,} ({_first(list(nodes))}): {_had(budgets, '')}"]
    return [*found, *([f"away    {len(away):,} of them ({_first(away)}): nothing starts there"] if away else [])]


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])


def _node(budgets: Sequence[DeviceBudget], brain: Brain) -> str:
    """Return the devices of one node in words, and the unmanaged memory on it."""
    gpus = [budget for budget in budgets if budget.device.is_gpu]
    if budgets[0].away:
        return f"{_had(budgets, _numbers(gpus))}; nothing starts there: {budgets[0].away}"
    used = "   ".join(filter(None, (_unmanaged(budget, brain) for budget in gpus)))
    return f"{_had(budgets, _numbers(gpus))}   {used}".rstrip()


def _had(budgets: Sequence[DeviceBudget], numbers: str) -> str:
    """Return the GPUs, RAM and cores of some devices in words; `numbers` are the numbers of the GPUs."""
    gpus = [budget for budget in budgets if budget.device.is_gpu]
    hosts = [budget for budget in budgets if budget.device.is_host]
    which = f"GPUs {numbers}" if numbers else count(len(gpus), "GPU")
    words = [f"{which} ({_sizes(gpus)})" if gpus else "no GPU"]
    if hosts:
        words.append(f"{size(sum(host.device.total for host in hosts))} RAM")
        cores = sum(host.device.load_capacity for host in hosts)
        words.append(f"{cores:g} core{'' if cores == 1 else 's'}")
    return ", ".join(words)


def _numbers(gpus: Sequence[DeviceBudget]) -> str:
    """Return the numbers of GPUs as ranges, and the numbers of MIG instances: `0-1, 2.0, 2.1`."""
    whole = number_ranges(budget.device.index for budget in gpus if not budget.device.is_instance)
    return ", ".join([*([whole] if whole else []), *(b.device.number for b in gpus if b.device.is_instance)])


def _slot_line(budgets: Sequence[DeviceBudget], gpus: Sequence[DeviceBudget]) -> str:
    """Return the line for the slots that the user named, with the GPUs that these names mean."""
    names = " ".join(b.device.label.removeprefix("slot ") or "''" for b in budgets if b.device.is_slot)
    numbers = _numbers(gpus)
    where = f"on GPU {numbers} ({_sizes(gpus)})" if gpus else "no GPU has these names: only host RAM is measured"
    return f"slots   {names}  (one task each; {where})"


def _mps_lines(brain: Brain) -> list[str]:
    """Return a line that says that tasks share GPUs under MPS, or that their memory is limited without MPS; no line if
    neither is true.
    """
    if brain.rules.fenced_by:
        by = {"torch": "PyTorch", "dmem": "the kernel"}[brain.rules.fenced_by]
        return [f"fence   a task cannot use more GPU memory than was reserved for it at its start (limited by {by})"]
    if not brain.rules.mps:
        return []
    fence = "; a task cannot use more memory than was reserved for it at its start" if brain.rules.fence else ""
    return [f"mps     tasks on one GPU compute at the same time{fence}"]


def _host_line(budget: DeviceBudget, limits: Mapping[str, str], settings: Settings) -> str:
    """Return the line for the host's RAM and cores."""
    device = budget.device
    by = {what: f" (limited by {limits[what]})" if limits.get(what) else "" for what in ("memory", "cores")}
    most = f"at most {size(budget.cap)} of " if budget.cap is not None else ""
    return (
        f"host    {most}{size(device.total)} RAM{by['memory']}, {size(budget.free)} free, "
        f"{size(settings.buffer)} buffer; {device.load_capacity:g} cores{by['cores']}"
    )


def _sizes(gpus: Sequence[DeviceBudget]) -> str:
    """Return the number of GPUs for each size of memory: `4 x 24.0GiB`."""
    sizes = Counter((budget.device.total, budget.cap) for budget in gpus)
    words = []
    for (total, cap), number in sizes.items():
        most = f"at most {size(cap)} of " if cap is not None else ""
        words.append(f"{number} x {most}{size(total)}")
    return ", ".join(words)


def _unmanaged(budget: DeviceBudget, brain: Brain) -> str:
    """Return the unmanaged memory on a GPU, and the memory that is kept free in case it grows."""
    label = budget.device.label
    if budget.closed:
        return f"{label}: {budget.closed}"
    used = sum(process.bytes for process in budget.unmanaged)
    if not used:
        return ""
    kept = kept_for_unmanaged(budget, brain.rules)
    users = ", ".join(sorted({process.user for process in budget.unmanaged if process.user})) or "an unknown user"
    more = f", {size(kept)} more kept free for it" if kept else ""
    return f"{label}: {size(used)} used by {users} (unmanaged){more}"


def priority_hints(brain: Brain) -> list[str]:
    """Return a hint if tasks with a better priority wait because tasks are ranked by batch first."""
    found = out_of_turn(brain.task_table, brain.terms) if brain.rules.order is RankOrder.BATCH else {}
    if not found:
        return []
    rows, which = sum(found.values()), sorted(found)
    priorities = f"priority {which[0]}" if len(which) == 1 else f"priorities {which[0]} to {which[-1]}"
    verb, them = ("is in a later batch", "it") if rows == 1 else ("are in later batches", "them")
    found_rows = f"{count(rows, 'row')} with {priorities} {verb}"
    return [f"hint:   {found_rows} than rows with a worse priority: --order global starts {them} first"]


def _memory(brain: Brain, budgets: Sequence[DeviceBudget]) -> str:
    """Return the number of tasks whose memory is known, by source; for a long list, only rows that were read so far are
    counted.
    """
    if any(budget.device.is_slot for budget in budgets):
        return "measured while tasks run; it keeps no slot empty"
    words: Counter[str] = Counter()
    some = any(budget.device.is_gpu for budget in budgets)
    for task in brain.task_table:
        if brain.state(task) is not State.SKIPPED:
            words[_memory_source(brain, task, gpus_of(brain.terms_of(task), some))] += 1
    return ", ".join(f"{number:,} {word}" for word, number in words.items()) or "no task waits"


def _memory_source(brain: Brain, task: int, gpus: int) -> str:
    """Return from which source the memory of a task is known, or how it will be measured."""
    terms, kind = brain.terms_of(task), brain.kind_of(task)
    if declared(terms, gpus) is not None:
        return "declared"
    if brain.rules.policy == BATCHES:
        epochs = count(brain.rules.profile_epochs, "epoch")
        return f"unknown: each task of a batch is profiled first, one after the other ({epochs})"
    if brain.rules.profile is Profiling.OFF:
        return f"unknown: each reserves {_reserved(gpus)} at its start"
    if brain.profiles.profile(kind).knows(gpus):
        return "known from earlier runs"
    if (guess := brain.profiles.guess(kind)) is not None:
        return "known from an earlier version" if guess.by is EstimateSource.EARLIER else "similar to known ones"
    return _unknown(brain, task, gpus)


def _unknown(brain: Brain, task: int, gpus: int) -> str:
    """Return how the unknown memory of a task will be measured."""
    terms, kind = brain.terms_of(task), brain.kind_of(task)
    if should_probe(terms, brain.rules, brain.profiles.kind(kind)):
        return f"unknown: measured first, once per task class ({count(brain.rules.profile_epochs, 'epoch')})"
    if brain.rules.learn_only:
        return "unknown and impossible to probe (their number of epochs cannot be set): a run measures them"
    return _measured_as_they_start(brain, task, gpus)


def _measured_as_they_start(brain: Brain, task: int, gpus: int) -> str:
    """Return how tasks of unknown memory share devices until their need has been measured."""
    rules = brain.rules
    if not gpus or rules.expect_from is None:
        return f"unknown: measured while they run (each reserves {_reserved(gpus)} until its use settles)"
    ask = brain.need(task, gpus).gpus[0]
    if not ask.bytes:
        first = f"one on each GPU until it uses more than {size(rules.context)}, then side by side"
        return f"unknown: measured as they start, {first}"
    classes = count(brain.profiles.sized, "known task class")
    each = f"{size(ask.bytes)} reserved for each, expected from {classes}"
    return f"unknown: measured as they start, {_at_a_time(brain, ask)} ({each})"


def _at_a_time(brain: Brain, ask: MemoryRequest) -> str:
    """Return how many tasks with this request can run side by side on the largest GPU."""
    rooms = (brain.capacity.rooms[key] for key in brain.capacity.gpus)
    most = max((room.most for room in rooms), default=0) - brain.rules.buffer
    least, many = (max(1, most // bytes_) for bytes_ in (ask.bytes or 1, ask.starts_with or 1))
    number = f"{least}" if many <= least else f"{least}-{many}"
    return "one at a time on each GPU" if number == "1" else f"{number} at a time on each GPU"


def _reserved(gpus: int) -> str:
    """Return the reservation of a task of unknown size, in words."""
    return "all free memory of a GPU" if gpus else "half of the free RAM"


def resuming_lines(run: Mapping[str, str], brain: Brain, *, asked: bool) -> list[str]:
    """Return the opening lines of a resumed run; `asked` is true if recorded requests will be applied next."""
    living = len(brain.living())
    waiting = brain.waiting + brain.blocked
    ended = len(brain.task_table) - waiting - living - brain.held
    if not living and not waiting and not asked and run.get("door") not in ("followed", "queue"):
        return [f"run {run['number']}  {run['file']}: all {count(ended, 'task')} have ended: nothing to do"]
    idle = []
    if run.get("door") == "queue" and not (living or waiting or asked):
        wait = duration(json.loads(run["settings"])["queue_idle"])
        idle = [f"idle    no task is left; it waits for new ones (scheduler submit), and ends after {wait} without any"]
    return [
        f"run {run['number']}  {run['file']}: taken over; {ended:,} ended, {living:,} ran, {waiting:,} waiting",
        f"state   {tilde(run['root'])}",
        f"python  {_python(run)}",
        *idle,
    ]


def plan_lines(
    what: str, brain: Brain, decision: Decision, jobs: Mapping[int, Job], budgets: Sequence[DeviceBudget]
) -> list[str]:
    """Return the lines of a dry run: how the memory is known, which tasks would start now, and why the next tasks would
    wait.
    """
    table = brain.task_table
    plan = [f"{what}: {count(len(table), 'task')}, {count(table.batches, 'batch')}; nothing was started"]
    plan.append(f"memory           {_memory(brain, budgets)}")
    for placement in decision.placements:
        job = jobs.get(placement.task)
        if job is not None:
            reserved = size(max(placement.reservation.values(), default=0))
            what = f"row {job.spec.row:>5}  {short(job.name, 40):<40}  reserved {reserved} ({_source(placement)})"
            plan.append(f"would start now  {what}")
    waits = waits_by_row(decision.refusals, jobs)[:MOST_WAITS]
    return plan + [f"would wait       row {job.spec.row:>5}  {why}" for job, why in waits]


def _source(placement: Placement) -> str:
    """Return the source of a reservation in words; a reservation that is only expected is marked as such."""
    unknown = placement.source is EstimateSource.MEASURED
    return "unknown, until its use has settled" if unknown else placement.source


def waits_by_row(refusals: Iterable[Refusal], jobs: Mapping[int, Job]) -> list[tuple[Job, str]]:
    """Return each refused task of a plan with the reason; ids that exist only in the plan are replaced by row
    numbers.
    """

    def row(found: re.Match[str]) -> str:
        return f"row {jobs[int(found[1])].spec.row}" if int(found[1]) in jobs else "a later row"

    return [(jobs[r.task], _PLANNED_TASK.sub(row, messages.why(r))) for r in refusals if r.task in jobs]
