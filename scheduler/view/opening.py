"""The first lines of a run, of a run taken over, and of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler.core import explain
from scheduler.core.brain import Brain
from scheduler.core.estimate import should_probe
from scheduler.core.model import Budget, Decision, Job, Order, Profiling, State
from scheduler.core.ordering import out_of_turn
from scheduler.core.packing import declared, gpus_of, kept_for_strangers
from scheduler.paths import tilde
from scheduler.settings import Settings
from scheduler.units import count, size
from scheduler.units import ranges as number_ranges
from scheduler.view.words import short


def lines(
    run: Mapping[str, str],
    budgets: Sequence[Budget],
    limits: Mapping[str, str],
    settings: Settings,
    brain: Brain,
) -> list[str]:
    """Number, list, place, devices, python, memory, how to watch and stop."""
    number = run["number"]
    return [
        f"run {number}  {_list(run['file'], brain, settings.num)}      state {tilde(run['root'])}",
        *_devices(budgets, limits, settings, brain),
        *_mps(brain),
        f"python  {_python(run)}",
        f"memory  {_memory(brain, budgets)}",
        *_out_of_turn(brain),
        f"watch   scheduler top {number}     stop   {how_to_stop(run)}",
    ]


def how_to_stop(run: Mapping[str, str]) -> str:
    """By keys where there is a terminal, by signals where there is none."""
    if run.get("detached"):
        return f"scheduler stop {run['number']} (running tasks end), with --now or --leave (leaves them running)"
    return "Ctrl-C (running tasks end), Ctrl-\\ leaves them running"


def _python(run: Mapping[str, str]) -> str:
    """What `-1` stands for, and why; runs of older versions did not say."""
    why = run.get("python_why", "")
    return f"{tilde(run['python'])} ({why})" if why else tilde(run["python"])


def _list(what: str, brain: Brain, num: int) -> str:
    tasks, batches = len(brain.roll), brain.roll.batches
    return f"{what}: {count(tasks, 'task')}, {count(batches, 'batch')} of {min(num, tasks)}"


def _devices(budgets: Sequence[Budget], limits: Mapping[str, str], settings: Settings, brain: Brain) -> list[str]:
    """`limits` says who limits what of it: the GPUs, the memory, the cores."""
    gpus = [budget for budget in budgets if budget.device.is_gpu]
    if any(budget.device.is_slot for budget in budgets):
        return [_slots(budgets, gpus)]
    said = [_host(budget, limits, settings, gpus) for budget in budgets if not budget.device.is_gpu]
    if gpus:
        allowed = f"; allowed by {limits['gpus']}" if limits.get("gpus") else ""
        who = "   ".join(filter(None, (_strangers(budget, brain) for budget in gpus)))
        said.insert(0, f"devices {ranges(gpus)} ({_sizes(gpus)}{allowed})   {who}".rstrip())
    return said


def _slots(budgets: Sequence[Budget], gpus: Sequence[Budget]) -> str:
    """The user's own places, and the cards that are known by them."""
    names = " ".join(b.device.label.removeprefix("slot ") or "''" for b in budgets if b.device.is_slot)
    where = f"on {ranges(gpus)} ({_sizes(gpus)})" if gpus else "no GPU known by these names: only RAM is looked at"
    return f"slots   {names}  (one task each; {where})"


def _mps(brain: Brain) -> list[str]:
    """Whether tasks share their GPU under MPS."""
    if not brain.rules.mps:
        return []
    most = ", none with more memory than it is promised when it starts" if brain.rules.fence else ""
    return [f"mps     tasks on one GPU run at the same moment{most}"]


def _host(budget: Budget, limits: Mapping[str, str], settings: Settings, gpus: Sequence[Budget]) -> str:
    device = budget.device
    by = {what: f" by {limits[what]}" if limits.get(what) else "" for what in ("memory", "cores")}
    most = f"a budget of {size(budget.cap)} of " if budget.cap is not None else ""
    return (
        f"{'host   ' if gpus else 'devices host'} ({most}{size(device.total)}{by['memory']}, {size(budget.free)} free, "
        f"{size(settings.buffer)} kept as buffer; {device.load_capacity:g} cores{by['cores']})"
    )


def ranges(gpus: Sequence[Budget]) -> str:
    """Their numbers as people say them: `GPU 0-3, 6`."""
    return f"GPU {number_ranges(budget.device.index for budget in gpus)}"


def _sizes(gpus: Sequence[Budget]) -> str:
    sizes = Counter((budget.device.total, budget.cap) for budget in gpus)
    words = []
    for (total, cap), number in sizes.items():
        most = f"{size(cap)} of " if cap is not None else ""
        words.append(f"{number} x {most}{size(total)}")
    return ", ".join(words)


def _strangers(budget: Budget, brain: Brain) -> str:
    """Who else is there, and what is kept for them."""
    if budget.closed:
        return f"{budget.device.label}: {budget.closed}"
    held = sum(stranger.bytes for stranger in budget.foreign)
    kept = kept_for_strangers(budget, brain.rules)
    if not held:
        return ""
    who = ", ".join(sorted({stranger.user for stranger in budget.foreign if stranger.user})) or "somebody"
    more = f", {size(kept)} more kept for that" if kept else ""
    return f"{budget.device.label}: {size(held)} held by {who}{more}"


def _out_of_turn(brain: Brain) -> list[str]:
    """A hint, where the order by batches keeps better priorities waiting."""
    found = out_of_turn(brain.roll, brain.terms) if brain.rules.order is Order.BATCH else {}
    if not found:
        return []
    rows, which = sum(found.values()), sorted(found)
    said = f"priority {which[0]}" if len(which) == 1 else f"priorities {which[0]} to {which[-1]}"
    stand, them = ("stands in a later batch", "it") if rows == 1 else ("stand in later batches", "them")
    return [f"hint:   {count(rows, 'row')} with {said} {stand} than worse ones: --order global starts {them} first"]


def _memory(brain: Brain, budgets: Sequence[Budget]) -> str:
    """How many needs are known, and from where; of a long list only those that were looked at."""
    words: Counter[str] = Counter()
    if any(budget.device.is_slot for budget in budgets):
        return "is learned, and keeps no slot empty"
    some = any(budget.device.is_gpu for budget in budgets)
    for task in brain.roll:
        if brain.state(task) is State.SKIPPED:
            continue
        terms, kind = brain.terms[brain.roll.terms(task)], brain.roll.kind(task)
        profile, gpus = brain.knowledge.profile(kind), gpus_of(terms, some)
        if declared(terms, gpus) is not None:
            words["declared"] += 1
        elif brain.rules.profile is Profiling.OFF:
            words[f"unknown: each is promised {_promised(gpus)} when it starts"] += 1
        elif profile.knows(gpus):
            words["known from earlier runs"] += 1
        elif brain.knowledge.guess(kind) is not None:
            words["like them"] += 1
        elif should_probe(terms, brain.rules, brain.knowledge.kind(brain.roll.kind(task))):
            words[f"to be probed first, once for each kind ({brain.rules.profile_epochs} epochs)"] += 1
        elif brain.rules.learn_only:
            words["that cannot be probed (nothing tells them to train fewer epochs): a run learns them"] += 1
        else:
            words[f"to be learned while they run (promised {_promised(gpus)} until they settle)"] += 1
    return ", ".join(f"{number:,} {word}" for word, number in words.items()) or "nothing waits"


def _promised(gpus: int) -> str:
    return "all that is free on a GPU" if gpus else "half of what is free"


def resuming_lines(run: Mapping[str, str], brain: Brain, *, asked: bool) -> list[str]:
    """What a scheduler finds that takes a run over; `asked`: something was, and is done now."""
    living = len(brain.living())
    over = len(brain.roll) - brain.waiting - living - brain.roll.counts[State.HELD]
    if not living and not brain.waiting and not asked and run.get("door") != "followed":
        return [f"run {run['number']}  {run['file']}: all {count(over, 'task')} are over: nothing to do"]
    return [
        f"run {run['number']}  {run['file']}: taken over; {over:,} over, {living:,} ran, {brain.waiting:,} wait",
        f"state   {tilde(run['root'])}",
        f"python  {_python(run)}",
    ]


def plan_lines(what: str, brain: Brain, decision: Decision, jobs: Mapping[int, Job]) -> list[str]:
    """What a dry run shows."""
    said = [f"{what}: {count(len(brain.roll), 'task')}, {count(brain.roll.batches, 'batch')}; nothing was started"]
    for placement in decision.placements:
        job = jobs.get(placement.task)
        if job is not None:
            promised = size(max(placement.promise.values(), default=0))
            said.append(f"would start now  row {job.spec.row:>5}  {short(job.name, 40):<40}  promised {promised}")
    said += [f"would wait       {explain.why(refusal)}" for refusal in decision.refusals[:5]]
    return said
