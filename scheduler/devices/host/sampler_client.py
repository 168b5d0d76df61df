"""The client of the host's sampler child: it sends orders, receives samples, and replaces a child that fails."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from scheduler.core.leases import NO_UNNAMED, Trees, UnnamedShim
from scheduler.core.model import HOST
from scheduler.core.ports import Key, Sample, StepReading, Watched
from scheduler.devices import sampler_child
from scheduler.devices.host.cgroups import Group
from scheduler.devices.sampler_child import SamplerChild, bury

LONG = 30.0
"""Seconds after which a sample is too old to tell how much memory is free."""
PAUSE = 0.1
"""The least seconds between two orders: as long as the child pauses between samples."""
PATIENCE = 3.0
"""Seconds for which a child may owe an answer without a sign of life; then it is killed."""
LONGEST = 30.0
"""The most seconds before a failed child is started again; the pause doubles with each failure in a row."""
WELL = 60.0
"""Seconds for which a child must have worked before its failure counts as the first of a new series."""
CLOSING = 0.5
"""Seconds within which killed children must end when the watcher is closed."""
OFTEN = 3
"""The number of failures in a row from which on the series is reported in a sentence of its own."""
_WHAT = "the sampler of the host's memory"


class Restarts:
    """The schedule of restarts of a failing child, and the sentences about its failures."""

    def __init__(self) -> None:
        self.at = 0.0
        """The time before which the child must not be started again, on the monotonic clock."""
        self.in_a_row = 0
        self._began = inf
        self._said: set[str] = set()
        self._news: list[str] = []

    def begun(self, now: float) -> None:
        """Note that the child was started."""
        self._began = now

    def well(self, now: float) -> None:
        """Note that the child answered; an answer long after the start ends a series of failures."""
        if self.in_a_row and now - self._began > WELL:
            self.in_a_row = 0
            if "often" in self._said:
                self._news.append(f"{_WHAT} answers again")
            self._said.clear()

    def failed(self, now: float, why: str, *, silent: bool) -> None:
        """Note that the child failed and must be started again: at once after the first failure in a row, and after a
        growing pause for each further one.
        """
        self.in_a_row = 1 if now - self._began > WELL else self.in_a_row + 1
        wait = 0.0 if self.in_a_row == 1 else min(LONGEST, 2.0 ** (self.in_a_row - 2))
        self._began, self.at = inf, now + wait
        if silent:
            self._say("silent", f"{_WHAT} {why}: it was killed and is started again")
        if self.in_a_row >= OFTEN:
            self._say(
                "often",
                f"{_WHAT} has failed {self.in_a_row} times in a row (it {why}) and is started again after up to "
                f"{LONGEST:g} s each time; until it answers, the host memory that tasks use is not measured: no "
                "reservation is lowered, and a task's peak is only what is measured at its end",
            )

    def _say(self, what: str, sentence: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._news.append(sentence)

    def news(self) -> list[str]:
        """Return the sentences for the user that were added since the last call."""
        news, self._news = self._news, []
        return news


class HostWatcher:
    """The watcher of host RAM; `fileno` becomes readable when there are samples. No method waits for the child."""

    def __init__(self, code: Path, groups: Sequence[Group] = ()) -> None:
        """Prepare the watcher; the control groups in `groups` limit free memory too."""
        self._code = code
        self._groups = list(groups)
        self._attempts: Mapping[Key, Watched] = {}
        self._others: Trees = {}
        self._order: dict[str, Any] = {}
        """The last order that was sent or is kept for the next child."""
        self._unsent, self._send_at = False, 0.0
        """A flag that is true while an order waits to be sent, and the time from which it may be sent."""
        self._other_use: Mapping[str, int] = {}
        self._looked = 0.0
        """The time at which the last sample began."""
        self._free: int | None = None
        """The free memory in bytes that the last sample found."""
        self._held: dict[str, int] = {}
        """The bytes of each attempt in the last sample; attempts of other schedulers are named by the pids of their
        shims.
        """
        self._here: frozenset[str] = frozenset()
        """The names of the attempts, and the pids of other schedulers' shims, that are watched now."""
        self._asked: dict[int, tuple[str, float]] = {}
        """For each shim, the lease that `used_by` was last called for, and the time of the first call for that
        lease.
        """
        self._child: SamplerChild | None = None
        self._dying: list[SamplerChild] = []
        """Children that were killed and have not ended yet; a child in an uninterruptible system call may take long to
        end.
        """
        self._restarts = Restarts()

    def fileno(self) -> int:
        """Return a descriptor that is readable when the child has sent something; -1 if no sampler child is running."""
        return self._child.fileno() if self._child else -1

    def watch(
        self,
        attempts: Mapping[Key, Watched],
        others: Trees,
        _unnamed: frozenset[UnnamedShim] = NO_UNNAMED,
    ) -> None:
        """Have these attempts and the trees of these shims sampled. If they have changed, the child soon gets a new
        order.
        """
        self._asked = {shim: since for shim, since in self._asked.items() if shim in others}
        self._attempts, self._others = attempts, others
        self._here = frozenset((*(f"{task}.{attempt}" for task, attempt in attempts), *map(str, others)))
        self._unsent = True
        self._send_if_due()

    def _send_if_due(self) -> None:
        """Send the order if it is due. Orders have a least distance in time, so not every start of a task sends one:
        the task may end before the first sample.
        """
        now = time.monotonic()
        if not self._unsent or now < self._send_at:
            return
        self._unsent, self._send_at = False, now + PAUSE
        order = self._said()
        if order == self._order and self._child is not None:
            return
        self._order = order
        if self._child is not None:
            self._child.order(order)
        elif order["trees"] or order["others"]:
            self._start(now)

    def _said(self) -> dict[str, Any]:
        trees = {
            f"{task}.{attempt}": [w.shim, w.guest, w.activity, w.files] for (task, attempt), w in self._attempts.items()
        }
        return {"trees": trees, "others": sorted(self._others.items()), "groups": self._groups}

    def _start(self, now: float) -> None:
        """Start a child with the newest order, if a start is due."""
        if now < self._restarts.at:
            self._unsent, self._send_at = True, self._restarts.at
            return
        try:
            self._child = SamplerChild(sampler_child.HOST, self._code)
        except OSError as exc:  # this user may have no more processes, or the machine has no memory for one
            self._failed(now, f"could not be started: {exc.strerror}")
            return
        self._restarts.begun(now)
        self._child.order(self._order)

    def _failed(self, now: float, why: str, *, silent: bool = False) -> None:
        """Kill the child if it still exists, and schedule the start of the next one with the newest order."""
        if self._child is not None:
            self._child.end()
            self._dying.append(self._child)
            self._child = None
        self._restarts.failed(now, why, silent=silent)
        self._unsent, self._send_at = True, max(now, self._restarts.at)

    def collect(self) -> list[Sample]:
        """Return the newest sample of each attempt; call this at least once a second, because it also supervises the
        child.
        """
        self._send_if_due()
        self._dying = bury(self._dying)
        child, now = self._child, time.monotonic()
        if child is None:
            return []
        child.push()
        answers = child.answers(now)
        if answers:
            self._restarts.well(now)
        if child.ended:
            self._failed(now, f"ended by itself ({child.bug})" if child.bug else "ended by itself")
            self._send_if_due()
        elif child.silence(now) > PATIENCE:
            self._failed(now, self._why_silent(child), silent=True)
            self._send_if_due()
        return self._samples(_joined(answers)) if answers else []

    @staticmethod
    def _why_silent(child: SamplerChild) -> str:
        call = child.call()
        what = call.where if call is not None else ""
        where = "" if not what or what.startswith("!") else f" while it looked at task {what.partition('.')[0]}"
        where = " (a signal had stopped it)" if child.is_stopped() else where
        return f"did not answer for {PATIENCE:g} s{where}"

    def _samples(self, said: Mapping[str, Any]) -> list[Sample]:
        self._other_use, self._looked = said["other_use"], said.get("at", inf)
        self._free = said.get("free")
        self._held = {**self._other_use, **{name: used for name, (used, *_) in said["trees"].items()}}
        samples = []
        for name, (used, peak, progress, cpu, rested, metrics) in said["trees"].items():
            task, attempt = name.split(".")
            done, of = progress or (None, None)
            sample = Sample(
                int(task), int(attempt), {HOST: used}, {HOST: peak}, done, cpu_seconds=cpu, rested=rested,
                epochs=of, metrics=metrics, readings=said["readings"].get(name, ()),
            )  # fmt: skip
            samples.append(sample)
        return samples + [_last_sample(name, readings) for name, readings in said["ended"].items()]

    def free(self, now: int) -> int:
        """Return the free bytes that a decision may count on: the lower of `now`, which the kernel reports, and the
        free memory that the last sample found.

        Memory of attempts that have ended since that sample counts as free. If the sample is old (LONG), return `now`
        minus the bytes that the attempts still running used in that sample: they may have freed this memory since, so
        that `now` contains it while it still counts as theirs.
        """
        if self._free is None or self._here.isdisjoint(self._held):
            return now
        if time.monotonic() - self._looked > LONG:
            return now - sum(used for name, used in self._held.items() if name in self._here)
        return min(now, self._free + sum(used for name, used in self._held.items() if name not in self._here))

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """Return the use of another scheduler's process tree, from a sample that began after the first call for the
        lease `whose`; 0 before there is such a sample.

        An older sample may show the memory of an earlier attempt of the shim, which is freed by now.
        """
        if shim not in self._asked or self._asked[shim][0] != whose:
            self._asked[shim] = whose, time.monotonic()
        return {HOST: self._other_use.get(str(shim), 0) if self._looked > self._asked[shim][1] else 0}

    def troubles(self) -> list[str]:
        """Return sentences for the user about the sampler, each once."""
        return self._restarts.news()

    def close(self) -> None:
        """End the sampler; a child that does not end at once is left to the kernel."""
        if self._child is not None:
            self._child.end()
            self._dying.append(self._child)
        self._child, self._attempts, self._unsent = None, {}, False
        self._dying = bury(self._dying, CLOSING)


def _joined(answers: Sequence[dict[str, Any]]) -> Mapping[str, Any]:
    """Return the newest answer, completed with metrics from earlier answers, because an answer contains only metrics
    that have changed.
    """
    newest = answers[-1]
    for part in ("readings", "ended"):
        newest[part] = _all_readings(answers, part)
    for earlier in answers[-2::-1]:
        for name, tree in newest["trees"].items():
            if tree[-1] is None and name in earlier["trees"]:
                tree[-1] = earlier["trees"][name][-1]
    return newest


def _all_readings(answers: Sequence[Mapping[str, Any]], part: str) -> dict[str, list[Any]]:
    """Return the readings of all answers by attempt, oldest first."""
    found: dict[str, list[Any]] = {}
    for answer in answers:
        for name, readings in answer.get(part, {}).items():
            found.setdefault(name, []).extend(readings)
    return found


def _last_sample(name: str, readings: Sequence[StepReading]) -> Sample:
    """Return a sample with the values that an attempt had written before it ended."""
    task, attempt = name.split(".")
    return Sample(int(task), int(attempt), {}, {}, readings=readings, ended=True)
