"""What people ask of a run with a verb: which events grant it, and what is answered, task by task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.core import packing
from scheduler.core.brain import Brain
from scheduler.core.events import Asked, Changed, Event, Limited
from scheduler.core.fields import BY_COLUMN, BadCell, Field, changed
from scheduler.core.model import LIVING, RETRIABLE, Budget, Device, State, Terms
from scheduler.core.ports import Answer, Request
from scheduler.units import count, duration, ranges, size
from scheduler.values import dataclass

JOBS, PER_DEVICE, DEVICES, DISABLE, ENABLE = "-j", "--max-per-device", "--devices", "disable", "enable"
"""What can be said of a run's limits."""

_WAITS = frozenset({State.WAITING, State.HELD, State.INTERRUPTED})
_FITS: Mapping[str, frozenset[State]] = {
    "cancel": _WAITS | LIVING,
    "hold": frozenset({State.WAITING}),
    "release": frozenset({State.HELD}),
    "retry": RETRIABLE,
    "set": _WAITS | RETRIABLE,
}
"""Of tasks in which states each verb can be asked."""
MOST_SAID = 8
"""So many answers to one request are among the lines of its run."""
CONTROLS = frozenset({*_FITS, "limit"})
WHY = "why"
"""What changes nothing: it is answered by a scheduler that lives, or by nobody."""
_DONE = {"cancel": "cancelled", "hold": "held", "release": "waits for its turn again", "retry": "waits again"}
_NOTHING = {
    "hold": "no task of it waits",
    "release": "no task of it is held",
    "retry": "no task of it failed, ran out of memory or time, or was cancelled",
    "set": "no task of it waits",
}


@dataclass(frozen=True, slots=True)
class Granted:
    """What a request comes to: events to record, and what to say once they are."""

    events: tuple[Event, ...] = ()
    answers: tuple[Answer, ...] = ()


def grant(brain: Brain, request: Request, budgets: Sequence[Budget], number: Callable[[Terms], int]) -> Granted:
    """Judge a request by how the run stands now; changes nothing.

    `number` gives new terms their number. Without budgets nothing is said about what the devices can hold.
    """
    if request.what == "limit":
        return _limited(brain, request.said, [b.device for b in budgets])
    if request.what not in _FITS:
        return Granted(answers=(Answer((), False, f"nobody knows how to be asked to {request.what}"),))
    tasks, strangers = _meant(brain, request)
    if not tasks and not strangers:
        return Granted(answers=(Answer((), False, _NOTHING.get(request.what, "it has no such task")),))
    fits = [task for task in tasks if brain.state(task) in _FITS[request.what]]
    others = sorted({*tasks} - {*fits})
    answers = [Answer((task,), False, "is none of this run") for task in strangers]
    answers += [Answer((task,), False, _why_not(request.what, brain.state(task))) for task in others]
    if request.what == "set":
        granted = _set(brain, request, fits, budgets, number)
    else:
        granted = _moved(brain, request.what, fits)
    return Granted(granted.events, gathered([*granted.answers, *answers]))


def _meant(brain: Brain, request: Request) -> tuple[list[int], list[int]]:
    """The tasks a request is about, and numbers that are none of this run's."""
    if request.tasks:
        known = [task for task in request.tasks if task in brain.roll]
        return known, [task for task in request.tasks if task not in brain.roll]
    states = _FITS[request.what] - {State.REFUSED}
    if request.what == "set":
        states = _WAITS
    return list(brain.roll.in_state(*states)), []


def _why_not(what: str, state: State) -> str:
    if what == "release" and state is not State.HELD:
        return f"is not held: {state}"
    if what == "hold" and state is State.HELD:
        return "is held already"
    if what == "retry" and state not in (State.SUCCEEDED, State.SKIPPED):
        return f"is {state}: only what ended without success can be tried again"
    if state in LIVING:
        return "runs already, and goes on as it is"
    if state is State.INTERRUPTED:
        return "was interrupted: scheduler resume starts it again"
    return f"ended before: {state}"


def _moved(brain: Brain, what: str, tasks: Sequence[int]) -> Granted:
    living = [task for task in tasks if brain.state(task) in LIVING]
    rest = [task for task in tasks if brain.state(task) not in LIVING]
    stays = "" if what in ("cancel", "hold") else _standstill(brain)
    answers = [Answer((task,), True, "is stopped, and is cancelled then") for task in living]
    for task in rest:
        was = f" (it was {brain.state(task)})" if what == "retry" else ""
        answers.append(Answer((task,), True, f"{_DONE[what]}{was}{stays}"))
    return Granted((Asked(what, tuple(tasks)),) if tasks else (), tuple(answers))


def _standstill(brain: Brain) -> str:
    """Why what waits does not start although there may be room."""
    if brain.draining:
        return ", but nothing more of this run starts before scheduler resume"
    return ", but the run is paused (-j 0)" if brain.rules.jobs == 0 else ""


# ---- set: of tasks ----


def _set(
    brain: Brain, request: Request, tasks: Sequence[int], budgets: Sequence[Budget], number: Callable[[Terms], int]
) -> Granted:
    fields = [BY_COLUMN[column.lower()] for column in request.said]
    by_terms: dict[int, tuple[int | None, str]] = {}
    told: dict[int, list[int]] = {}
    answers = []
    for task in tasks:
        old = brain.roll.terms(task)
        if old not in by_terms:
            by_terms[old] = _new(brain.terms[old], request.said, fields, budgets, number)
        new, says = by_terms[old]
        if new is not None and new != old:
            told.setdefault(new, []).append(task)
        again = (
            " once it is tried again (scheduler retry)" if brain.state(task) in RETRIABLE and new is not None else ""
        )
        answers.append(Answer((task,), new is not None, says + again))
    return Granted(tuple(Changed(new, tuple(ids)) for new, ids in told.items()), tuple(answers))


def _new(
    old: Terms,
    said: Mapping[str, str],
    fields: Sequence[Field],
    budgets: Sequence[Budget],
    number: Callable[[Terms], int],
) -> tuple[int | None, str]:
    """The number of the new terms and what is different; None where they cannot be."""
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
    """A value of a task's terms, as people write it."""
    if value is None or value == "":
        return "unsaid"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"{value[0]}@{value[1]:g}"
    if field.column in ("Memory", "HostMemory") and isinstance(value, int):
        return size(value)
    if field.column in ("Timeout", "Grace") and isinstance(value, float):
        return duration(value)
    return str(value)


def cannot(terms: Terms, budgets: Sequence[Budget]) -> str:
    """Why no device here can ever hold what asks for so much, behind the word `it`; empty where one can."""
    gpus = sum(b.device.is_gpu for b in budgets)
    if (terms.gpus or 0) > gpus:
        return f"wants {count(terms.gpus or 0, 'GPU')}, this run has {gpus}"
    for name in (terms.device, terms.prefer):
        if name and not any(packing.is_called(b.device, name) for b in budgets):
            labels = ", ".join(b.device.label for b in budgets)
            return f"names the device {name!r}; there is: {labels}"
    refusal = packing.never_fits(terms, budgets) if any(b.device.total for b in budgets) else None
    if refusal is None:
        return ""
    return f"wants {size(refusal.wanted)}, the largest device ({refusal.device}) has {size(refusal.total)}"


# ---- set, devices: of the run ----


def _limited(brain: Brain, said: Mapping[str, str], devices: Sequence[Device]) -> Granted:
    rules = brain.rules
    before = Limited(rules.jobs, rules.max_per_device, tuple(sorted(rules.closed)))
    if PER_DEVICE in said and rules.slots is not None:
        says = f"unchanged: the run counts {count(rules.slots, 'slot')} on each device (--slots), whatever else is said"
        return Granted(answers=(Answer((), False, says),))
    if PER_DEVICE in said and _slots(devices):
        return Granted(answers=(Answer((), False, "unchanged: a slot takes one task, whatever else is said"),))
    try:
        after = replace(
            before,
            jobs=_number(said[JOBS]) if JOBS in said else before.jobs,
            max_per_device=_number(said[PER_DEVICE]) if PER_DEVICE in said else before.max_per_device,
            closed=_closed(before.closed, said, devices),
        )
    except ValueError as exc:
        return Granted(answers=(Answer((), False, f"unchanged: {exc}"),))
    answers = tuple(Answer((), True, says) for says in _limits(before, after, said, devices))
    return Granted((after,) if after != before else (), answers)


def _number(text: str) -> int | None:
    return int(text) if text else None


def _limits(before: Limited, after: Limited, said: Mapping[str, str], devices: Sequence[Device]) -> Iterable[str]:
    pairs = {JOBS: (before.jobs, after.jobs), PER_DEVICE: (before.max_per_device, after.max_per_device)}
    for flag, (old, new) in pairs.items():
        if flag in said:
            words = ["unlimited" if value is None else str(value) for value in (old, new)]
            paused = " (paused: what runs ends by itself, nothing more starts)" if flag == JOBS and new == 0 else ""
            yield f"{flag} {words[0]} → {words[1]}{paused}" if old != new else f"{flag} is {words[1]} already"
    if {DEVICES, DISABLE, ENABLE} & said.keys():
        where, closed = _slots(devices) or devices, frozenset(after.closed)
        shut = [device.label for device in where if not closed.isdisjoint((device.key, *(device.cards or ())))]
        opened = [device.label for device in where if closed.isdisjoint((device.key, *(device.cards or ())))]
        if after.closed == before.closed:
            yield f"nothing is different: new starts on {', '.join(opened) or 'no device'}"
            return
        stays = f", none on {', '.join(shut)} (what runs there goes on)" if shut else ""
        yield f"new starts on {', '.join(opened)}{stays}" if opened else "nothing more starts: every device is disabled"


def _closed(before: Sequence[str], said: Mapping[str, str], devices: Sequence[Device]) -> tuple[str, ...]:
    """Keys of devices that nothing is started on; `--devices` says what GPUs are left, and nothing of the host."""
    closed = {*before}
    if DEVICES in said:
        pool = _slots(devices) or [device for device in devices if device.is_gpu] or devices
        closed = (closed | {device.key for device in pool}) - _keys(said[DEVICES], devices)
    closed |= _keys(said.get(DISABLE, ""), devices)
    closed -= _keys(said.get(ENABLE, ""), devices)
    return tuple(sorted(closed))


def _keys(text: str, devices: Sequence[Device]) -> set[str]:
    """What words mean, and the slots that have nothing but GPUs which they mean."""
    keys = {device.key for device in named(text, devices)}
    return keys | {slot.key for slot in _slots(devices) if slot.cards and keys.issuperset(slot.cards)}


def _slots(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if device.is_slot]


def named(text: str, devices: Sequence[Device]) -> list[Device]:
    """The devices that words like `0-2,host` or `all` mean; raises ValueError for what is none of them."""
    found = [slot for slot in _slots(devices) if packing.is_called(slot, text)]  # its name may have commas
    if found:
        return found + [device for device in devices if device.is_gpu and packing.is_called(device, text)]
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
    """Several may be called the same: slots of one name, and the GPU that it is the number of."""
    called = [device for device in devices if packing.is_called(device, word)]
    if called:
        return called
    if ":" in word:
        raise ValueError(f"{word!r}: budgets are given when a run starts (run --devices)")
    labels = ", ".join(device.label for device in devices)
    raise ValueError(f"{word!r} is none of this run's devices ({labels}): another run can use it (run --devices)")


# ---- words ----


def sentences(request: Request, answers: Sequence[Answer]) -> list[str]:
    """What a run's own lines say of what was asked of it."""
    asked = "asked" if request.what == "limit" else f"asked to {request.what}"
    return [f"{asked}: {sentence(answer)}" for answer in answers[:MOST_SAID]]


def onward(what: str, run: str, living: int, waiting: int) -> str:
    """What a run's own lines say once it was sent a signal, or the same was asked with a verb."""
    if what == "hangup":
        said = f"hung up: the run goes on without its terminal (scheduler list {run} shows it, "
        return said + "INT to this process lets running tasks end, QUIT leaves them running)"
    if what == "leave":
        go, wait = "goes" if living == 1 else "go", "waits" if waiting == 1 else "wait"
        said = f"left: {living} running {go} on without the scheduler, {waiting} {wait}; "
        return said + f"scheduler resume {run} takes them over"
    if what == "drain":
        end = "ends by itself" if living == 1 else "end by themselves"
        said = f"nothing more is started; {count(living, 'running task')} {end} "
        return said + "(Ctrl-C or INT again stops them, Ctrl-\\ or QUIT leaves them running)"
    if what == "stop":
        return f"stopping {count(living, 'running task')}: stop signal, grace, then KILL (once more kills now)"
    gone, them = ("it is gone", "it") if living == 1 else ("they are gone", "them")
    return f"killing {count(living, 'running task')} now; once {gone}, resume starts {them} again"


def sentence(answer: Answer) -> str:
    """Whom it is about, and what became of it."""
    if not answer.tasks:
        return answer.says
    return f"{'task' if len(answer.tasks) == 1 else 'tasks'} {ranges(answer.tasks)}: {answer.says}"


def gathered(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """Answers that say the same of several tasks as one."""
    same: dict[tuple[bool, str, bool], list[int]] = {}
    for answer in answers:
        same.setdefault((answer.done, answer.says, bool(answer.tasks)), []).extend(answer.tasks)
    return tuple(Answer(tuple(sorted(tasks)), done, says) for (done, says, _), tasks in same.items())
