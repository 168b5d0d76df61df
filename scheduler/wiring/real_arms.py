"""Joins what runs an experiment's arms on this machine: each is an ordinary run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.core import packing
from scheduler.core.experiments import About, Arm, Reading, Setting, read
from scheduler.core.model import UNFINISHED, KnownBy
from scheduler.core.ports import View
from scheduler.devices.cards import joules, look_at_cards
from scheduler.errors import NoSuchRun, StateError, StillRunning, UsageError
from scheduler.settings import Settings
from scheduler.store.experiments import Readings
from scheduler.units import count
from scheduler.view.arm_progress import ArmView
from scheduler.view.sink import hint
from scheduler.wiring import starting
from scheduler.wiring.addressing import Target
from scheduler.wiring.asking import ask
from scheduler.wiring.choices import Choices, Resuming, this_python
from scheduler.wiring.experiments import Bench, Interrupted, choices_of, settings_of
from scheduler.wiring.finding import find_devices
from scheduler.wiring.listing import Listing, csv_listing
from scheduler.wiring.reading import Telling, find_run
from scheduler.wiring.running import Session
from scheduler.wiring.sharing import why_not

LEARNING = "learning what the tasks need"


class RealBench:
    """The same list again and again, on the devices of this machine."""

    def __init__(self, bench: Bench, settings: Settings) -> None:
        self._bench = bench
        self._settings = settings
        self._python = this_python(settings)

    @property
    def setting(self) -> Setting:
        """All of it is real."""
        return Setting()

    def learn(self) -> None:
        """By probes; what cannot be probed by a run of the whole list that is not measured."""
        choices = replace(choices_of(Arm("learn"), self._bench), learn_only=True)
        with self._session(choices, replace(self._settings, profile="probe"), Arm("learn")) as session:
            self._go(session, LEARNING)
            unknown = _unknown(session)
        if unknown:
            hint(f"{count(unknown, 'task')} cannot be probed: one run of the whole list teaches what they need")
            with self._session(choices_of(Arm("learn"), self._bench), self._settings, Arm("learn")) as session:
                self._go(session, LEARNING)

    def measure(self, arm: Arm, repeat: int, kept: Readings) -> tuple[Reading, Mapping[str, Any]]:
        """One arm to its end, between two looks at the GPUs."""
        left = kept.begun.get((arm.name, repeat))
        if left is not None:
            clear_away(left, self._settings)
        before = look_at_cards()
        with self._session(choices_of(arm, self._bench), settings_of(arm, self._settings), arm) as session:
            kept.note_begun(arm, repeat, session.number)
            percentages = session.devices.mps.percentages() if session.devices.mps is not None else {}
            self._go(session, f"{arm.name}, repeat {repeat}")
            reading = _read(arm, repeat, session)
            uuids = [device.key for device in session.devices.discover() if device.is_gpu]
        after = look_at_cards()
        around = {
            "arm": arm.name,
            "repeat": repeat,
            "run": reading.run,
            "gpus_before": [card for card in before if card["uuid"] in uuids],
            "gpus_after": [card for card in after if card["uuid"] in uuids],
            "thread_percentage": arm.percentage or None,
            "percentages_read_back": percentages,
            "clients_verified": f"{reading.clients} of {reading.shared}" if arm.mps else None,
        }
        return replace(reading, energy=joules(before, after, uuids)), around

    @contextlib.contextmanager
    def _session(self, choices: Choices, settings: Settings, arm: Arm) -> Iterator[Session]:
        """One run of the list; nothing is left of an interrupted one unless it was to be left running."""
        session = self._begin(choices, settings, arm)
        try:
            with contextlib.closing(session):
                yield session
        except Interrupted as exc:
            if exc.signal != signal.SIGQUIT:
                clear_away(session.number, self._settings)
            raise

    def _begin(self, choices: Choices, settings: Settings, arm: Arm) -> Session:
        session = starting.begin(self._listing(arm), choices, settings, self._python)
        if session is None:
            raise StateError(f"{self._bench.path} has a header and no rows: nothing to measure")
        return session

    def _listing(self, arm: Arm) -> Listing:
        """The rows and no file: the same list runs again on purpose, and nothing that is appended to it joins."""
        listing = csv_listing(
            self._bench.path,
            header=0,
            defaults={"ThreadPercentage": arm.percentage} if arm.mps else {},
            append=self._bench.append,
            python=self._python,
        )
        return replace(listing, file=None, path="")

    def _go(self, session: Session, what: str) -> None:
        """To its end; raises Interrupted."""
        shown: list[ArmView] = []

        def dress(log: View) -> View:
            shown.append(ArmView(log, what, lambda: session.brain.roll.counts, sys.stderr))
            return shown[0]

        ended = session.go(None, dress=dress)
        for one in shown:
            one.clear()
        if ended.signal:
            raise Interrupted(ended.signal)

    def machine(self) -> Mapping[str, Any]:
        """What it is, by what NVML and the system say."""
        uname = os.uname()
        pool = find_devices(self._bench.devices, self._settings)
        try:
            devices = [{"label": d.label, "key": d.key, "model": d.model, "total": d.total} for d in pool.discover()]
            driver = pool.gpus.node() if pool.gpus is not None else None
        finally:
            pool.close()
        return {
            "simulated": False,
            "host": uname.nodename,
            "kernel": uname.release,
            "cores": os.cpu_count(),
            "python": self._python,
            "driver": driver.driver if driver else None,
            "cuda": driver.cuda if driver else None,
            "devices": devices,
        }


def check(bench: Bench, settings: Settings) -> int:
    """How many GPUs there are; raises UsageError where the experiment cannot be made on this machine."""
    pool = find_devices(bench.devices, settings)
    try:
        gpus = sum(device.is_gpu for device in pool.discover())
        if bench.of_priority:
            return gpus
        otherwise = f"simulate it (scheduler experiment mps {bench.path} --simulate 4x24GiB)"
        if not gpus:
            raise UsageError(f"MPS shares GPUs, and there is none to run on here: {otherwise}")
        why = why_not(pool, settings, otherwise)
        if why:
            raise UsageError(why)
        return gpus
    finally:
        pool.close()


def clear_away(number: int, settings: Settings) -> None:
    """Nothing of a run that was broken off stays, neither processes nor tasks that wait; raises StillRunning."""
    try:
        info = find_run(settings, str(number))
    except NoSuchRun:
        return
    if info.alive:
        raise StillRunning(f"run {number} of this experiment has a scheduler that lives: scheduler stop {number} --now")
    telling = Telling(info, only_states=True)
    tasks = tuple(task for task in telling.brain.roll if telling.brain.state(task) in UNFINISHED)
    telling.close()
    if not tasks:
        return
    ask(Target(info, tasks), "cancel")
    session = starting.take_over(find_run(settings, str(number)), settings, Resuming(mps="off"))
    try:
        session.go(None, dress=lambda view: view)
    finally:
        session.close()


def _unknown(session: Session) -> int:
    """How many tasks no probe told the need of."""
    brain = session.brain
    some = any(device.is_gpu for device in session.devices.discover())
    tasks: Sequence[int] = list(brain.roll)
    needs = (brain.need(task, packing.gpus_of(brain.terms[brain.roll.terms(task)], some)) for task in tasks)
    return sum(need.known_by is KnownBy.LIVE for need in needs)


def _read(arm: Arm, repeat: int, session: Session) -> Reading:
    brain = session.brain
    about = {}
    for task in brain.roll:
        terms = brain.terms[brain.roll.terms(task)]
        about[task] = About(terms.priority, brain.roll.batch(task), terms.epochs or 0)
    accepted = float(session.meta["accepted"])
    return read(arm, repeat, session.number, session.fold, dict(brain.roll.counts), about, accepted)
