"""Mutation testing: `./scripts/mutate` breaks the product in a copy, and reports what no test notices.

Each mutation of tests/mutations (see `scripts/mutations.py`) is applied by itself, its tests are run, and the file is
restored. A mutation whose tests all pass has survived: they show less than their names say. Every worker has a copy of
the project in a folder below $TMPDIR and an environment in which that copy is imported; nothing of it is left at the
end, nor after Ctrl-C.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

from scripts import core_mutants, mutations
from scripts.core_mutants import Mutant
from scripts.mutations import Mutation, Unusable
from scripts.outcomes import VARIABLE

ROOT = mutations.ROOT
EXTRA, TIMES = 20.0, 6.0
"""A mutated test has so many seconds, and so many times what it takes unmutated, before it counts as failed."""
PATIENCE = 900.0
"""Seconds that the tests of one file may take unmutated."""
CORE_PATIENCE = 3600.0
"""Seconds that all tests of the core may take unmutated, while they are traced."""
LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", ".peers", "site", "build", "dist", "*.egg-info")
"""Names that are not copied; compiled modules are, because a copied source has the time that stands in them."""
CORE_TESTS = ("unit/core",)
"""The tests by which mutants of the core are judged."""
CORE_SECONDS = 40.0
"""The seconds that the tests of one mutant of the core may take unmutated; the slowest are left out."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Verdict(StrEnum):
    """A judgement on the tests of a mutation."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"  # its tests cannot even be imported: it shows nothing
    UNJUDGED = "unjudged"  # its tests fail without it
    SKIPPED = "skipped"  # its tests cannot be run on this machine


BAD = (Verdict.SURVIVED, Verdict.BROKEN, Verdict.UNJUDGED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A test and its end: passed, failed, skipped, or broken where it could not be imported."""

    test: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutation, and what it has shown."""

    mutation: Mutation | Mutant
    verdict: Verdict
    seconds: float


class Copy:
    """A copy of the project with an environment of its own, in which tests are run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "project"
        self._outcomes = folder / "outcomes"
        self.calls = folder / "outcomes.calls"
        self._temporary = folder / "t"
        self._temporary.mkdir(parents=True)
        shutil.copytree(root, self.root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        self._python = self._make_environment()
        self._changes = int(time.time())

    def _make_environment(self) -> Path:
        """Make a .venv that has the packages of this one, and imports the copy."""
        venv = self.root / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / "copy.pth").write_text("\n".join([str(self.root), *_packages(), ""]))
        python = venv / "bin/python"
        told = subprocess.run(
            [python, "-c", WHERE], cwd="/", check=True, capture_output=True, text=True, env=self._env()
        )
        if Path(told.stdout) != self.root / "scheduler":
            raise Unusable(f"the tests would import {told.stdout} instead of the copy in {self.root}")
        return python

    def _env(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "SCHEDULER_", "VIRTUAL"))
        }
        kept["PATH"] = f"{Path(sys.executable).resolve().parent}:{kept.get('PATH', os.defpath)}"  # no shim of pyenv
        return {**kept, VARIABLE: str(self._outcomes), "TEST_ALL": "1", "TMPDIR": str(self._temporary)}

    def change(self, file: str, text: str) -> None:
        """Write a file so that its compiled form is seen to be out of date, however fast changes follow each other."""
        path = self.root / file
        path.write_text(text, encoding="utf-8")
        self._changes += 1
        os.utime(path, (self._changes, self._changes))

    def run(self, tests: Sequence[str], limit: float, *options: str) -> list[Outcome] | None:
        """Run tests and return what became of them, or None if they took longer than the limit."""
        self._outcomes.unlink(missing_ok=True)
        words = [self._python, "-m", "pytest", "-p", "scripts.outcomes", "-p", "no:cacheprovider", "--no-header"]
        words += ["-p", "no:gpu_batch_scheduler.pytest_plugin"]  # a copy may not have it
        words += ["-p", "no:anyio", "-p", "no:platformdirs", "-p", "no:xdist"]  # no test here uses them
        paths = [f"tests/{name}" for name in tests]
        quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(
            [*words, *options, *paths], cwd=self.root, env=self._env(), start_new_session=True, **quiet
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            kill_descendants()
            self._empty()
        return [*self._read(), *([] if code in (0, 1, 2) else [Outcome("", "broken", 0.0)])]

    def _read(self) -> Iterator[Outcome]:
        if self._outcomes.exists():
            for line in self._outcomes.read_text(encoding="utf-8").splitlines():
                yield Outcome(*json.loads(line))

    def _empty(self) -> None:
        for path in self._temporary.iterdir():
            shutil.rmtree(path, ignore_errors=True)


WHERE = "import os, scheduler; print(os.path.dirname(scheduler.__file__), end='')"


def _packages() -> list[str]:
    """Return the folders of this environment's packages."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def kill_descendants() -> None:
    """Kill every process below this one; orphans are its children, because it is their subreaper."""
    deadline = time.monotonic() + 10
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=1)


def baseline(copy: Copy, tests: Sequence[str]) -> list[Outcome]:
    """Run tests of one file unmutated; those that fail are run once more, each by itself."""
    outcomes = copy.run(tests, PATIENCE)
    good = [told for told in outcomes or [] if told.outcome in ("passed", "skipped")]
    if outcomes and len(good) == len(outcomes):
        return outcomes
    found: list[Outcome] = []
    for test in tests:
        mine = [told for told in outcomes or [] if covers(test, told.test)]
        if not mine or any(told not in good for told in mine):
            mine = copy.run([test], PATIENCE) or [Outcome(f"tests/{test}", "failed", PATIENCE)]
        found += mine
    return found


def covers(test: str, name: str) -> bool:
    """Tell whether pytest's name is that of a test of a mutation: itself, one of its parameters, one of its class."""
    full = f"tests/{test}"
    return name == full or name.startswith((f"{full}[", f"{full}::"))


def judge(copy: Copy, mutation: Mutation | Mutant, known: Sequence[Outcome]) -> Verdict:
    """Apply a mutation, run its tests, restore the file, and return what that shows."""
    mine = [told for told in known if any(covers(test, told.test) for test in mutation.tests)]
    if not mine or any(told.outcome not in ("passed", "skipped") for told in mine):
        return Verdict.UNJUDGED
    if all(told.outcome == "skipped" for told in mine):
        return Verdict.SKIPPED
    text = (copy.root / mutation.file).read_text(encoding="utf-8")
    copy.change(mutation.file, mutation.applied(text))
    try:
        outcomes = copy.run(mutation.tests, EXTRA + TIMES * sum(told.seconds for told in mine), "-x")
    finally:
        copy.change(mutation.file, text)
    if outcomes is None or any(told.outcome == "failed" for told in outcomes):
        return Verdict.KILLED
    return Verdict.BROKEN if not outcomes or any(told.outcome == "broken" for told in outcomes) else Verdict.SURVIVED


def traced(copy: Copy) -> tuple[list[Outcome], list[tuple[str, list[tuple[str, int]]]]]:
    """Run the tests of the core unmutated; return their outcomes, and which functions of the core each enters."""
    outcomes = copy.run(CORE_TESTS, CORE_PATIENCE, "-p", "scripts.calls")
    if outcomes is None:
        raise Unusable(f"the traced tests of the core took over {CORE_PATIENCE:.0f} s: run this on a quieter machine")
    lines = copy.calls.read_text(encoding="utf-8").splitlines() if copy.calls.exists() else []
    return outcomes, [(name, [(file, line) for file, line in functions]) for name, functions in map(json.loads, lines)]


def work(root: Path, folder: Path, jobs: Any, results: Any) -> None:
    """Do jobs in a copy until there is none: tests to run unmutated, or a mutation with what is known of its tests."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    try:
        copy = Copy(root, folder)
        while (job := jobs.get()) is not None:
            began = time.monotonic()
            given, known = job
            if isinstance(given, Mutation | Mutant):
                results.put(Judged(given, judge(copy, given, known), time.monotonic() - began))
            elif given == CORE_TESTS:
                results.put(traced(copy))
            else:
                results.put(baseline(copy, given))
    except (Unusable, OSError, subprocess.SubprocessError) as exc:
        results.put(Unusable(str(exc)))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_descendants()
        shutil.rmtree(folder, ignore_errors=True)


def _leave(*_: object) -> None:
    sys.exit(1)


class Workers:
    """Processes that each have a copy, for a `with` block: at its end they and their copies are gone."""

    def __init__(self, root: Path, number: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mutate-"))
        self._folder.chmod(0o755)  # other users read the copy in tests of two users
        context = multiprocessing.get_context("fork")
        self._jobs, self._results = context.SimpleQueue(), context.SimpleQueue()
        queues = (self._jobs, self._results)
        self._workers = [
            context.Process(target=work, args=(root, self._folder / str(n), *queues)) for n in range(number)
        ]

    def __enter__(self) -> Workers:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def do(self, jobs: Iterable[tuple[Any, Sequence[Outcome]]]) -> Iterator[Any]:
        """Give jobs to the workers, and yield what comes of them as they are done."""
        waiting = list(jobs)
        given = 0
        for job in waiting[: len(self._workers)]:
            self._jobs.put(job)
            given += 1
        for _ in waiting:
            result = self._take()
            if isinstance(result, Unusable):
                raise result
            if given < len(waiting):
                self._jobs.put(waiting[given])
                given += 1
            yield result

    def _take(self) -> Any:
        while self._results.empty():
            if not all(worker.is_alive() for worker in self._workers):
                raise Unusable("a worker was killed: see what the kernel or a user did to it, and start again")
            time.sleep(0.05)
        return self._results.get()


def chosen(found: Sequence[Mutation], names: Sequence[str], sample: int, seed: str) -> list[Mutation]:
    """Return the mutations of the names, globs or files, and so many of them, drawn by the seed."""
    for name in names:
        if not any(_is_meant(mutation, name) for mutation in found):
            raise Unusable(
                f"no mutation is called {name}, and none changes such a file: ./scripts/mutate --list has all"
            )
    meant = [mutation for mutation in found if not names or any(_is_meant(mutation, name) for name in names)]
    if sample and sample < len(meant):
        drawn = set(random.Random(seed).sample([mutation.name for mutation in meant], sample))
        return [mutation for mutation in meant if mutation.name in drawn]
    return meant


def _is_meant(mutation: Mutation, name: str) -> bool:
    return any(
        fnmatch(text, name) for text in (mutation.name, mutation.row, mutation.name.partition("/")[0], mutation.file)
    )


def seed_of(root: Path, found: Sequence[Mutation]) -> str:
    """Return the hash of the commit, or of the mutations where the project is no clone."""
    words = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return hashlib.sha256(repr(found).encode()).hexdigest()


def run(root: Path, meant: Sequence[Mutation], workers: int) -> int:
    """Judge the mutations, print each as it is done, and return the exit code."""
    began = time.monotonic()
    places = {one.name: f"{one.file}:{one.line((root / one.file).read_text(encoding='utf-8'))}" for one in meant}
    by_file: dict[str, set[str]] = {}
    for test in {test for mutation in meant for test in mutation.tests}:
        by_file.setdefault(test.partition("::")[0], set()).add(test)
    print(f"{len(meant)} mutations, {sum(map(len, by_file.values()))} tests without them first", flush=True)
    judged: list[Judged] = []
    with Workers(root, min(workers, len(meant))) as crew:
        known = [told for some in crew.do((sorted(tests), ()) for tests in by_file.values()) for told in some]
        for one in crew.do((mutation, _known_of(mutation, known)) for mutation in meant):
            print(f"{one.verdict:9} {one.mutation.name}  {one.seconds:.1f} s", flush=True)
            judged.append(one)
    return report(judged, places, time.monotonic() - began)


def run_core(root: Path, number: int, seed: str, workers: int) -> int:
    """Draw mutants of the core, judge them, print those that survived and the score, and return 0."""
    began = time.monotonic()
    every = core_mutants.every(root)
    drawn = random.Random(seed).sample(every, min(number, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants of {core_mutants.CORE}, seed {seed}", flush=True)
    judged: list[Judged] = []
    with Workers(root, min(workers, len(drawn))) as crew:
        [(outcomes, calls)] = crew.do([(CORE_TESTS, ())])
        wrong = {_plain(told.test) for told in outcomes if told.outcome not in ("passed", "skipped")}
        if wrong or not calls:
            print(f"left out, because they fail without a mutant: {', '.join(sorted(wrong)) or 'all tests'}")
        jobs = list(_core_jobs(drawn, outcomes, [call for call in calls if _plain(call[0]) not in wrong]))
        judged += [Judged(mutant, Verdict.SURVIVED, 0.0) for mutant, known in jobs if not known]
        for one in crew.do([job for job in jobs if job[1]]):
            print(f"{one.verdict:9} {one.mutation.name}  {one.seconds:.1f} s", flush=True)
            judged.append(one)
    counts = Counter(one.verdict for one in judged)
    for one in judged:
        if one.verdict is Verdict.SURVIVED:
            print(f"survived  {one.mutation.name}" + ("" if one.mutation.tests else "  (no test enters it)"))
    of = counts[Verdict.KILLED] + counts[Verdict.SURVIVED]
    seconds = time.monotonic() - began
    print(f"\nmutate: {counts[Verdict.KILLED]} of {of} killed ({counts[Verdict.KILLED] / max(1, of):.1%}),", end=" ")
    print(f"{len(drawn) - of} not judged, in {seconds // 60:.0f} min {seconds % 60:.0f} s")
    return 0


def _core_jobs(
    drawn: Sequence[Mutant], outcomes: Sequence[Outcome], calls: Sequence[tuple[str, list[tuple[str, int]]]]
) -> Iterator[tuple[Mutant, list[Outcome]]]:
    """Yield each mutant with its tests, and what is known of them."""
    seconds: Counter[str] = Counter()
    for told in outcomes:
        seconds[_plain(told.test)] += told.seconds  # type: ignore[assignment]  # seconds are counted like things
    entered: dict[tuple[str, int], dict[str, float]] = {}
    for test, functions in calls:
        for function in functions:
            entered.setdefault(function, {})[_plain(test)] = seconds[_plain(test)]
    by_function = {key: [(took, name) for name, took in tests.items()] for key, tests in entered.items()}
    for mutant in drawn:
        tests = core_mutants.tests_of(mutant, by_function, CORE_SECONDS)
        known = [Outcome(f"tests/{test}", "passed", seconds[test]) for test in tests]
        yield replace(mutant, tests=tuple(tests)), known


def _plain(test: str) -> str:
    """Return a test's path below tests/, without its parameters."""
    return test.removeprefix("tests/").partition("[")[0]


def _known_of(mutation: Mutation, known: Iterable[Outcome]) -> list[Outcome]:
    return [told for told in known if any(covers(test, told.test) for test in mutation.tests)]


WHY = {
    Verdict.SURVIVED: "passes with this change, so it does not show what its row says:",
    Verdict.BROKEN: "cannot be imported with this change, which shows nothing:",
    Verdict.UNJUDGED: "fails without this change, or is not there:",
}


def report(judged: Sequence[Judged], places: Mapping[str, str], seconds: float) -> int:
    """Print what has to be mended and the sum, and return 1 if there is anything."""
    bad = [one for one in judged if one.verdict in BAD]
    for one in bad:
        print(f"\n{one.verdict} {one.mutation.name}: {one.mutation.breaks}")
        print(f"  {places[one.mutation.name]}", WHY[one.verdict], *one.mutation.tests, sep="\n  ")
    counts = Counter(one.verdict for one in judged)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    print(f"\nmutate: {told or 'nothing to do'}, in {seconds // 60:.0f} min {seconds % 60:.0f} s")
    return 1 if bad else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="./scripts/mutate", description="Break the product on purpose, in a copy, and report what no test notices."
    )
    made.add_argument(
        "names", nargs="*", metavar="NAME", help="a mutation, a theme, a file of the product; globs as well"
    )
    made.add_argument("--sample", type=int, default=0, metavar="N", help="only N of them, drawn by the commit's hash")
    made.add_argument("--seed", help="what they are drawn by instead")
    made.add_argument(
        "--workers",
        type=int,
        default=(os.cpu_count() or 1) + 1,
        metavar="N",
        help="at once; default: one more than cores",
    )
    made.add_argument(
        "--core", type=int, default=0, metavar="N", help="draw and judge N small changes of scheduler/core instead"
    )
    made.add_argument("--list", action="store_true", help="print their names and what they break, and run nothing")
    return made


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; return 0 if every mutation was noticed, 1 if not, 2 for what cannot be done."""
    options = parser().parse_args(words)
    try:
        if options.sample < 0 or options.workers < 1:
            raise Unusable("--sample is at least 0, and --workers at least 1")
        found = mutations.read(root)
        if options.core:
            return run_core(root, options.core, options.seed or seed_of(root, found), options.workers)
        meant = chosen(found, options.names, options.sample, options.seed or seed_of(root, found))
        if wrong := [line for mutation in meant for line in mutations.problems(mutation, root)]:
            raise Unusable("\n".join(wrong))
        if options.list:
            print(*(f"{mutation.name}  {mutation.breaks}" for mutation in meant), sep="\n")
            return 0
        return run(root, meant, options.workers)
    except Unusable as exc:
        print(f"mutate: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mutate: stopped; nothing is left of its copies", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
