"""Requests to a run (cancel, hold, set …): the events that grant them, and the answers for each task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.core.brain import Brain
from scheduler.core.causes import Action
from scheduler.core.control.request_kinds import CONTROLS, UNSTARTED, RunRequest, Verb
from scheduler.core.events import Asked, Changed, Event, Limited
from scheduler.core.local_time import local, moment
from scheduler.core.model import LIVING, UNSUCCESSFUL, Device, DeviceBudget, State, Terms
from scheduler.core.placement import fit, node_choice
from scheduler.core.placement.device_capacity import is_called, listed, unknown_name
from scheduler.core.ports import Answer, Request, SubmissionResult
from scheduler.core.tasks.fields import BEGIN, BY_COLUMN, PREEMPT_AFTER, SETTABLE_COLUMNS, BadCell, Field, changed
from scheduler.units import count, duration, ranges, size
from scheduler.values import dataclass, replace

JOBS, PER_DEVICE, DEVICES, DISABLE, ENABLE = "-j", "--max-per-device", "--devices", "disable", "enable"
PAUSE, UNPAUSE, SAVE, WINDOW = "pause", "unpause", "save", "--window"
"""The words for limits of a run that a request can change. The value of `pause` is the time of its end, or 0; `save`
asks running resumable tasks to save and continue later."""

WHILE_RUNNING = frozenset({"Priority", "Retries"})
"""The fields that can be changed while a task runs: they matter only when the task ends, or when tasks are compared."""
MOST_SAID = 8
"""The most answers to one request that are printed in the log of the run."""


@dataclass(frozen=True, slots=True)
class GrantedRequest:
    """The result of a request: the events to record, and the answers to give once they are recorded."""

    events: tuple[Event, ...] = ()
    answers: tuple[Answer, ...] = ()


def refuse_submission(_request: Request) -> SubmissionResult:
    """Refuse a submission to a run that is not a queue."""
    return SubmissionResult(Answer((), False, "the run is no queue: its tasks come from its list"))


def refuse_while_stopping(_request: Request) -> SubmissionResult:
    """Refuse a submission to a queue that starts no more tasks."""
    return SubmissionResult(Answer((), False, "the queue is being stopped: submit again once it has ended"))


def grant(
    brain: Brain, request: Request, budgets: Sequence[DeviceBudget], number: Callable[[Terms], int], wall: float = 0.0
) -> GrantedRequest:
    """Decide a request by the present state of the run: return its events and answers, and change nothing.

    `number` returns the number under which changed terms are kept; `wall` is the time of the wall clock. Without
    `budgets`, the answers do not say whether a device can hold the task.
    """
    if request.what == RunRequest.LIMIT:
        granted = _limited(brain, request.said, [b.device for b in budgets], wall)
        saved = _saved(brain) if SAVE in request.said else GrantedRequest()
        return GrantedRequest((*granted.events, *saved.events), (*granted.answers, *saved.answers))
    if request.what not in CONTROLS:
        return GrantedRequest(answers=(Answer((), False, f"unknown request: {request.what}"),))
    verb = Verb(request.what)
    tasks, unknown = _meant(brain, verb, request.tasks)
    if not tasks and not unknown:
        return GrantedRequest(answers=(Answer((), False, verb.nothing),))
    states = verb.fits | LIVING if verb is Verb.SET and {*request.said} <= WHILE_RUNNING else verb.fits
    fits = [task for task in tasks if brain.state(task) in states]
    others = sorted({*tasks} - {*fits})
    answers = [Answer((task,), False, "is not a task of this run") for task in unknown]
    answers += [Answer((task,), False, _why_not(verb, brain.state(task))) for task in others]
    granted = _set(brain, request, fits, budgets, number) if verb is Verb.SET else _moved(brain, verb, fits)
    return GrantedRequest(granted.events, gathered([*granted.answers, *answers]))


def _meant(brain: Brain, verb: Verb, tasks: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the tasks that a request concerns, and those requested numbers that are not tasks of this run."""
    if tasks:
        known = [task for task in tasks if task in brain.task_table]
        return known, [task for task in tasks if task not in brain.task_table]
    states = UNSTARTED if verb is Verb.SET else verb.fits - {State.REFUSED, State.PRUNED}
    return list(brain.task_table.in_state(*states)), []


def _why_not(verb: Verb, state: State) -> str:
    if verb is Verb.RELEASE and state is not State.HELD:
        return f"is not held: {state}"
    if verb is Verb.HOLD and state is State.HELD:
        return "is held already"
    if verb is Verb.RETRY and state not in (State.SUCCEEDED, State.SKIPPED):
        return f"is {state}: only a task that ended without success can be retried"
    if state in LIVING:
        return "runs already and is not changed"
    if state is State.INTERRUPTED:
        return "was interrupted: scheduler resume starts it again"
    return f"already ended: {state}"


def _moved(brain: Brain, verb: Verb, tasks: Sequence[int]) -> GrantedRequest:
    living = [task for task in tasks if brain.state(task) in LIVING]
    rest = [task for task in tasks if brain.state(task) not in LIVING]
    stays = "" if verb in (Verb.CANCEL, Verb.HOLD) else _standstill(brain)
    answers = [Answer((task,), True, "is being stopped, then cancelled") for task in living]
    for task in rest:
        pruned = ", and is not stopped early again" if brain.state(task) is State.PRUNED else ""
        was = f" (was {brain.state(task)}){pruned}" if verb is Verb.RETRY else ""
        answers.append(Answer((task,), True, f"{verb.done}{was}{stays}"))
    return GrantedRequest((Asked(Action(verb), tuple(tasks)),) if tasks else (), tuple(answers))


def _standstill(brain: Brain) -> str:
    """Return why waiting tasks do not start although there may be capacity; empty if they may start."""
    if brain.draining:
        return ", but the run starts no more tasks before scheduler resume"
    if brain.rules.jobs == 0:
        return ", but the run is paused (-j 0)"
    return ", but the run is paused (scheduler unpause)" if brain.rules.paused else ""


# ---- set: of tasks ----


def _set(
    brain: Brain,
    request: Request,
    tasks: Sequence[int],
    budgets: Sequence[DeviceBudget],
    number: Callable[[Terms], int],
) -> GrantedRequest:
    fields = [BY_COLUMN[column.lower()] for column in request.said if column.lower() in SETTABLE_COLUMNS]
    if len(fields) < len(request.said):
        unknown = next(column for column in request.said if column.lower() not in SETTABLE_COLUMNS)
        return GrantedRequest(
            answers=(Answer(tuple(tasks), False, f"unchanged: this scheduler cannot set {unknown!r}"),)
        )
    by_terms: dict[int, tuple[int | None, str]] = {}
    told: dict[int, list[int]] = {}
    answers = []
    for task in tasks:
        old = brain.task_table.terms(task)
        if old not in by_terms:
            by_terms[old] = _new(brain.terms[old], request.said, fields, budgets, number)
        new, says = by_terms[old]
        if new is not None and new != old:
            told.setdefault(new, []).append(task)
        ended = brain.state(task) in UNSUCCESSFUL and new is not None
        again = " for its next attempt (scheduler retry)" if ended else ""
        answers.append(Answer((task,), new is not None, says + again))
    return GrantedRequest(tuple(Changed(new, tuple(ids)) for new, ids in told.items()), tuple(answers))


def _new(
    old: Terms,
    said: Mapping[str, str],
    fields: Sequence[Field],
    budgets: Sequence[DeviceBudget],
    number: Callable[[Terms], int],
) -> tuple[int | None, str]:
    """Return the number of a task's changed terms and a sentence about the change; if the change is invalid, return
    None and the reason.
    """
    try:
        new = changed(old, said)
    except BadCell as exc:
        return None, f"unchanged, {exc.column}: {exc}"
    why = cannot(new, budgets) if budgets else ""
    if why:
        return None, f"unchanged: it {why}"
    return number(new), ", ".join(_difference(field, old, new) for field in fields)


def _difference(field: Field, old: Terms, new: Terms) -> str:
    before, after = (shown(field, getattr(terms, field.attribute)) for terms in (old, new))
    name = field.flag.removeprefix("--")
    return f"{name} {before} → {after}" if before != after else f"{name} is {after} already"


def shown(field: Field, value: object) -> str:
    """Return a value of a task's terms as users write it."""
    if value is None or value == "":
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"{value[0]}@{value[1]:g}"
    if field.column in ("Memory", "HostMemory") and isinstance(value, int):
        return size(value)
    if field.column in ("Timeout", "Grace", PREEMPT_AFTER, BEGIN) and isinstance(value, float):
        return f"{local(value):%Y-%m-%d %H:%M:%S}" if field.column == BEGIN else duration(value)
    return str(value)


def cannot(terms: Terms, budgets: Sequence[DeviceBudget]) -> str:
    """Return why no device of this run can ever hold a task with these terms, as the part of a sentence after its
    subject; empty if a device can.
    """
    gpus = sum(b.device.is_gpu for b in budgets)
    if (terms.gpus or 0) > gpus:
        return f"needs {count(terms.gpus or 0, 'GPU')}; this run has {gpus}"
    if fault := node_choice.fault_of_nodes(terms, [b.device for b in budgets]):
        return fault.text
    for name in (terms.device, terms.prefer):
        if name and (unknown := unknown_name(name, [b.device for b in budgets])):
            labels = listed([b.device.label for b in budgets], "device")
            return f"names the device {unknown!r}; there is: {labels}"
    refusal = fit.never_fits(terms, budgets) if any(b.device.total for b in budgets) else None
    if refusal is None:
        return ""
    return f"needs {size(refusal.wanted)}; the largest device ({refusal.device}) has {size(refusal.total)}"


# ---- set, devices: of the run ----


def _limited(brain: Brain, said: Mapping[str, str], devices: Sequence[Device], wall: float) -> GrantedRequest:
    rules = brain.rules
    closed, until = tuple(sorted(rules.closed)), rules.paused_until
    before = Limited(rules.jobs, rules.max_per_device, closed, rules.paused, until, rules.window)
    if PER_DEVICE in said and rules.slots is not None:
        slots = count(rules.slots, "slot")
        says = f"unchanged: each device has {slots} (--slots); --max-per-device has no effect"
        return GrantedRequest(answers=(Answer((), False, says),))
    if PER_DEVICE in said and _slots(devices):
        return GrantedRequest(
            answers=(Answer((), False, "unchanged: a slot takes one task; --max-per-device has no effect"),)
        )
    try:
        after = replace(
            before,
            jobs=_number(said[JOBS]) if JOBS in said else before.jobs,
            max_per_device=_number(said[PER_DEVICE]) if PER_DEVICE in said else before.max_per_device,
            closed=_closed(before.closed, said, devices),
            paused=PAUSE in said or (before.paused and UNPAUSE not in said),
            until=float(said.get(PAUSE, 0.0 if UNPAUSE in said else before.until)),
            window=said.get(WINDOW, before.window),
        )
    except ValueError as exc:
        return GrantedRequest(answers=(Answer((), False, f"unchanged: {exc}"),))
    sentences = [*_limits(before, after, said, devices), *_times(before, after, said, wall)]
    answers = tuple(Answer((), True, sentence) for sentence in sentences)
    return GrantedRequest((after,) if after != before else (), answers)


def _number(text: str) -> int | None:
    return int(text) if text else None


def _limits(before: Limited, after: Limited, said: Mapping[str, str], devices: Sequence[Device]) -> Iterable[str]:
    pairs = {JOBS: (before.jobs, after.jobs), PER_DEVICE: (before.max_per_device, after.max_per_device)}
    for flag, (old, new) in pairs.items():
        if flag in said:
            words = ["unlimited" if value is None else str(value) for value in (old, new)]
            paused = " (paused: running tasks finish, no more tasks start)" if flag == JOBS and new == 0 else ""
            yield f"{flag} {words[0]} → {words[1]}{paused}" if old != new else f"{flag} is {words[1]} already"
    if {DEVICES, DISABLE, ENABLE} & said.keys():
        where, closed = _slots(devices) or devices, frozenset(after.closed)
        shut = [device.label for device in where if not closed.isdisjoint((device.key, *(device.cards or ())))]
        opened = [device.label for device in where if closed.isdisjoint((device.key, *(device.cards or ())))]
        if after.closed == before.closed:
            yield f"unchanged: new tasks start on {', '.join(opened) or 'no device'}"
            return
        stays = f", none on {', '.join(shut)} (running tasks there continue)" if shut else ""
        yield (
            f"new tasks start on {', '.join(opened)}{stays}"
            if opened
            else "no more tasks start: all devices are disabled"
        )


def _times(before: Limited, after: Limited, said: Mapping[str, str], wall: float) -> Iterable[str]:
    if PAUSE in said:
        until = f" until {moment(after.until, wall)}" if after.until else ""
        goes_on = "" if after.until else "; scheduler unpause continues it"
        yield f"paused{until}: running tasks finish, no more tasks start{goes_on}"
    if UNPAUSE in said:
        is_paused = before.paused and (not before.until or before.until > wall)
        yield "unpaused: tasks may start again" if is_paused else "is not paused"
    if WINDOW in said:
        old, new = (limits.window or "any time" for limits in (before, after))
        yield f"window {old} → {new}" if old != new else f"window is {new} already"


def _saved(brain: Brain) -> GrantedRequest:
    """Ask the running tasks that can continue later to save."""
    living = [task for task in brain.living() if not task.asked]
    tasks = tuple(task.id for task in living if brain.terms[task.terms].resumable)
    rest = len(living) - len(tasks)
    answers = [Answer(tasks, True, "is asked to save, and goes on in its next turn")] if tasks else []
    if rest:
        stays = f"{count(rest, 'running task')} not Resumable: {'it goes' if rest == 1 else 'they go'} on to the end"
        answers.append(Answer((), True, stays.replace("task not", "task is not").replace("tasks not", "tasks are not")))
    return GrantedRequest((Asked(Action.SAVE, tasks),) if tasks else (), tuple(answers))


def _closed(before: Sequence[str], said: Mapping[str, str], devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the keys of the devices on which nothing starts. `--devices` selects GPUs, and leaves the host as it
    was.
    """
    closed = {*before}
    if DEVICES in said:
        pool = _slots(devices) or [device for device in devices if device.is_gpu] or devices
        closed = (closed | {device.key for device in pool}) - _keys(said[DEVICES], devices)
    closed |= _keys(said.get(DISABLE, ""), devices)
    closed -= _keys(said.get(ENABLE, ""), devices)
    return tuple(sorted(closed))


def _keys(text: str, devices: Sequence[Device]) -> set[str]:
    """Return the keys of the named devices, including slots whose GPUs are all among them."""
    keys = {device.key for device in named(text, devices)}
    return keys | {slot.key for slot in _slots(devices) if slot.cards and keys.issuperset(slot.cards)}


def _slots(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if device.is_slot]


def named(text: str, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that a text such as `0-2,host` or `all` names; raise ValueError for an unknown name."""
    found = [slot for slot in _slots(devices) if is_called(slot, text)]  # a slot's name may contain commas
    if found:
        return found if "," in text else _called(text, devices)
    for word in text.split(",") if text else ():
        first, dash, last = word.strip().partition("-")
        if word.strip() in ("all", "auto"):
            found += [*_slots(devices), *(device for device in devices if device.is_gpu)] or devices
        elif dash and first.isdecimal() and last.isdecimal():
            found += [device for index in range(int(first), int(last) + 1) for device in _called(str(index), devices)]
        else:
            found += _called(word.strip(), devices)
    return found


def _called(word: str, devices: Sequence[Device]) -> list[Device]:
    """Return all devices that a word names: a slot can have the same name as another slot, or the number of a GPU."""
    called = [device for device in devices if is_called(device, word)]
    if called:
        return called
    if ":" in word:
        raise ValueError(f"{word!r}: budgets are given when a run starts (run --devices)")
    labels = ", ".join(device.label for device in devices)
    raise ValueError(
        f"{word!r} is not one of this run's devices ({labels}), which were chosen when it started (run --devices)"
    )


# ---- words ----


def sentences(request: Request, answers: Sequence[Answer]) -> list[str]:
    """Return the lines that a run prints about a request."""
    asked = "asked" if request.what == RunRequest.LIMIT else f"asked to {request.what}"
    return [f"{asked}: {sentence(answer)}" for answer in answers[:MOST_SAID]]


def onward(what: str, run: str, living: int, waiting: int) -> str:
    """Return the line that a run prints after a signal, or after a request with the same effect."""
    if what == RunRequest.HANGUP:
        said = f"hung up: the run continues without its terminal (scheduler list r{run} shows it, "
        return said + "INT to this process lets running tasks end, QUIT leaves them running)"
    if what == RunRequest.LEAVE:
        go, wait = "goes" if living == 1 else "go", "waits" if waiting == 1 else "wait"
        said = f"the scheduler leaves: {count(living, 'running task')} {go} on without it, {waiting} {wait}; "
        return said + f"scheduler resume r{run} takes them over"
    if what == RunRequest.DRAIN:
        end = "ends by itself" if living == 1 else "end by themselves"
        said = f"nothing more is started; {count(living, 'running task')} {end} "
        return said + "(Ctrl-C or INT again stops them, Ctrl-\\ or QUIT leaves them running)"
    if what == RunRequest.STOP and not living:
        return "stopping: no task runs"
    if what == RunRequest.STOP:
        return f"stopping {count(living, 'running task')}: stop signal, grace, then KILL (once more kills now)"
    gone, them = ("it is gone", "it") if living == 1 else ("they are gone", "them")
    return f"killing {count(living, 'running task')} now; once {gone}, resume starts {them} again"


def sentence(answer: Answer) -> str:
    """Return an answer as a sentence that names its tasks."""
    if not answer.tasks:
        return answer.says
    return f"{'task' if len(answer.tasks) == 1 else 'tasks'} {ranges(answer.tasks)}: {answer.says}"


def gathered(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """Join equal answers for several tasks into one answer."""
    same: dict[tuple[bool, str, bool], list[int]] = {}
    for answer in answers:
        same.setdefault((answer.done, answer.says, bool(answer.tasks)), []).extend(answer.tasks)
    return tuple(Answer(tuple(sorted(tasks)), done, says) for (done, says, _), tasks in same.items())
