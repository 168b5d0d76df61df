"""Generated input for every door of the program: lists, lines, grids, settings, command lines, and files of its own.

A case is made of texts, which JSON can keep. A door gives it to the program in this process and looks at what comes
back: a result, or one sentence and an exit code. A traceback, a second sentence, more than `HANG` seconds of a core,
and a process that is started although the input is refused are faults. `scripts/bench/fuzz.py` tries any number of
cases; `tests/unit/test_doors.py` a few of each door, and each case that ever found a fault (`tests/data/doors.jsonl`).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import strategies as st

from scheduler.cli.main import main
from scheduler.core import events
from scheduler.core.control.requests import grant
from scheduler.errors import SchedulerError
from scheduler.runtime import shim, site_file
from scheduler.runtime.paths import StatePaths
from scheduler.store.machine import device_reservations, published_forecasts, site_config, wait_tickets
from scheduler.store.machine.lease_records import living
from scheduler.store.result_file import has_lines, read_result
from scheduler.store.run.requests import RequestInbox
from tests.support import builders
from tests.support import generated as made

HANG = 5.0
"""Seconds of a core within which each case is judged."""
WAIT = 30.0
"""Seconds by the clock, of which other programs may have taken most."""
CORPUS = Path(__file__).parents[1] / "data/doors.jsonl"
"""Cases that found a fault once, each with the name of its door."""
Case = Any


class Fault(AssertionError):
    """A case that the program does not judge in one sentence."""


class Begun(BaseException):
    """A process is about to be started."""


def block(fields: Any) -> bytes:
    """Return the block of a record, whose checksum is right whatever is in it."""
    try:
        return shim.pack_block(fields)
    except ValueError:
        return b"\0" * shim.BLOCK


class Place:
    """A folder in which cases are tried: a state with two ended runs, a lease directory, and their environment."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.state, self.leases, self.config = (self.root / name for name in ("state", "leases", "config"))
        self.list, self.kept = self.root / "jobs.csv", self.root / "kept"
        self._seen: list[tuple[str, int, int]] = []
        for verb in made.SAFE_VERBS:
            import_module(f"scheduler.cli.{verb}")  # once, and not in each child
        for folder in (self.leases, self.config / "gpu-batch-scheduler"):
            folder.mkdir(parents=True)
        (self.root / "train.py").touch()
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("SCHEDULER_")}
        self.env = {
            **inherited, "SCHEDULER_STATE": str(self.state), "SCHEDULER_LEASES": str(self.leases), "COLUMNS": "80",
            "XDG_CONFIG_HOME": str(self.config), "SCHEDULER_MACHINE_FILE": "/nonexistent", "HOME": str(self.root),
        }  # fmt: skip
        self.list.write_text('Command,lr\n"sh -c ""echo loss=3""",0.1\nfalse,0.2\n')
        for extra in ((), ("--new",)):
            words = [sys.executable, "-m", "scheduler", "run", "jobs.csv", "--devices", "host", "--keep-going", *extra]
            env = {**self.env, "PYTHONPATH": str(Path(__file__).parents[2])}
            subprocess.run(words, cwd=self.root, env=env, check=False, capture_output=True, timeout=60)
        shutil.copytree(self.state, self.kept, ignore=shutil.ignore_patterns("bell"))

    def restore(self) -> None:
        """Bring the state back to the two ended runs, if a case has changed it."""
        if self._seen and self._seen == self._look():
            return
        shutil.rmtree(self.state)
        shutil.copytree(self.kept, self.state)
        self._seen = self._look()

    def _look(self) -> list[tuple[str, int, int]]:
        """Return what shows that a file of the state was changed."""
        found = []
        for folder, _, names in os.walk(self.state):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                status = os.lstat(path)
                found.append((path, status.st_mtime_ns, status.st_size))
        return sorted(found)

    def run(
        self, *argv: str, given: str = "", names: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a command line in this process with a text as its standard input; return its code and its sentence.

        An input that is refused must name `names`. Raise Fault.
        """
        with _process(self.root, {**self.env, **(env or {})}, given) as said:
            begun = False
            try:
                code = judged(lambda: main(list(argv)))
            except SystemExit as exc:  # --help
                code = int(exc.code or 0)
            except Begun:
                code, begun = 0, True
        errors = [line for line in said.getvalue().splitlines() if not line.startswith("hint:")]
        if code not in (0, 1, 2, 130):
            raise Fault(f"exit code {code}: {errors}")
        if code == 2 and (len(errors) != 1 or not errors[0].startswith("scheduler: ") or len(errors[0]) < 20):
            raise Fault(f"exit code 2 without its one sentence: {errors}")
        if code == 2 and names not in errors[0]:
            raise Fault(f"the sentence does not name {names}: {errors}")
        return 3 if begun else code, errors[0] if errors else ""


def judged(call: Callable[[], Any]) -> Any:
    """Return what a call returns; raise Fault for an error that is no sentence of the program, or a hang."""

    def hang(*_: object) -> NoReturn:
        raise Fault(f"no answer after {HANG:g} seconds of a core")

    def wait(*_: object) -> NoReturn:
        raise Fault(f"no answer after {WAIT:g} seconds by the clock")

    is_main = threading.current_thread() is threading.main_thread()
    before = (signal.signal(signal.SIGPROF, hang), signal.signal(signal.SIGALRM, wait)) if is_main else (None, None)
    if is_main:
        signal.setitimer(signal.ITIMER_PROF, HANG)
        signal.setitimer(signal.ITIMER_REAL, WAIT)
    try:
        return call()
    except SchedulerError as exc:
        text = str(exc)
        if not text.strip() or "\n" in text.strip():
            raise Fault(f"no sentence: {text!r}") from exc
        return None
    except (Fault, Begun, SystemExit):
        raise
    except Exception as exc:
        raise Fault(f"{type(exc).__name__}: {str(exc)[:200]}") from exc
    finally:
        if is_main:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGPROF, before[0])
            signal.signal(signal.SIGALRM, before[1])


def apart(call: Callable[[], object]) -> None:
    """Make a call in a child: what was begun and forbidden leaves locks and open files behind. Raise Fault."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            call()
        except BaseException as exc:  # noqa: BLE001 - the parent raises it
            os.write(writer, f"{exc}{_place_of(exc.__cause__)}".encode("utf-8", "replace")[:4096])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        is_over = bool(select.select([file], [], [], 2 * WAIT)[0])
        said = file.read().decode() if is_over else f"no answer after {2 * WAIT:g} seconds by the clock"
    if not is_over:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if said:
        raise Fault(said)


def _place_of(exc: BaseException | None) -> str:
    frames = traceback.extract_tb(exc.__traceback__)[-3:] if exc is not None else []
    return "".join(f" <- {Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))


@contextlib.contextmanager
def _process(root: Path, env: Mapping[str, str], given: str) -> Iterator[io.StringIO]:
    """Make this process look like a new one: directory, environment and standard streams; forbid starting others."""

    def begin(*_: object, **__: object) -> NoReturn:
        raise Begun

    kept_env, kept_folder, kept = dict(os.environ), os.getcwd(), (sys.stdin, sys.stdout, sys.stderr)
    fds = [os.dup(fd) for fd in range(3)]
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    }
    patched = [(subprocess.Popen, "_execute_child"), (os, "fork"), (os, "posix_spawn"), (os, "execve"), (os, "execv")]
    real = [getattr(owner, name) for owner, name in patched]
    input_ = os.memfd_create("input")
    os.write(input_, given.encode("latin-1"))
    os.lseek(input_, 0, os.SEEK_SET)
    os.dup2(input_, 0)
    os.close(input_)
    said = io.StringIO()
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), said
    os.environ.clear()
    os.environ.update(env)
    os.chdir(root)
    for owner, name in patched:
        setattr(owner, name, begin)
    try:
        yield said
    finally:
        for (owner, name), old in zip(patched, real, strict=True):
            setattr(owner, name, old)
        sys.stdin, sys.stdout, sys.stderr = kept
        for fd, old in enumerate(fds):
            os.dup2(old, fd)
            os.close(old)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(kept_env)
        os.chdir(kept_folder)


# ---- the doors ----


def give_list(place: Place, case: Case) -> None:
    """A list in a file, planned without starting anything."""
    text, suffix, words = case
    path = place.root / f"given{suffix}"
    path.write_bytes(text.encode("latin-1"))
    place.run("run", path.name, "--devices", "host", "--dry-run", "--new", *words, names=path.name if not words else "")


def give_lines(place: Place, case: Case) -> None:
    """Lines on standard input."""
    text, words = case
    place.run("run", "-", "--devices", "host", "--dry-run", *words, given=text)


def give_grid(place: Place, case: Case) -> None:
    """A grid on the command line."""
    place.run("grid", *case)


def give_words(place: Place, case: Case) -> None:
    """A command line."""
    apart(lambda: place.run(*case[0], given=case[1]))
    place.restore()


def give_settings(place: Place, case: Case) -> None:
    """The user's file of settings, and variables."""
    text, variables = case
    path = place.config / "gpu-batch-scheduler/config.toml"
    path.write_bytes(text.encode("latin-1"))
    safe = {f"SCHEDULER_{key}": value.replace("\0", "") for key, value in variables.items()}
    try:
        place.run("run", "jobs.csv", "--devices", "host", "--dry-run", "--new", env=safe)
    finally:
        path.unlink()


def give_site(place: Place, case: Case) -> None:
    """The file of the machine's administrator."""
    path = place.root / "machine.toml"
    judged(
        lambda: site_config.parse(site_file.SiteFile(str(path), site_file._parsed(path, case.encode("latin-1"))), 4711)
    )
    path.write_bytes(case.encode("latin-1"))
    place.run("status", "--json", env={"SCHEDULER_MACHINE_FILE": str(path)})
    place.run("run", "jobs.csv", "--devices", "host", "--dry-run", "--new", env={"SCHEDULER_MACHINE_FILE": str(path)})


def give_records(place: Place, case: Case) -> None:
    """Locked files in the lease directory, looked at by all readers and views."""
    import fcntl

    held = []
    for name, said in case:
        path = place.leases / name.format(uid=os.getuid())
        path.write_bytes(block(said))
        held.append(os.open(path, os.O_RDONLY))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    try:
        judged(lambda: living(place.leases))
        judged(lambda: wait_tickets.waiters(place.leases))
        judged(lambda: published_forecasts.others(place.leases, 4711, "x"))
        judged(lambda: device_reservations.look(place.leases, lambda uid, what: True))
        place.run("status", "--json")
        place.run("top", "--all", "--plain")
        place.run("run", "jobs.csv", "--devices", "host", "--dry-run", "--new")
    finally:
        for fd in held:
            os.close(fd)
        for path in place.leases.iterdir():
            path.unlink()


def give_requests(place: Place, case: Case) -> None:
    """Files of requests, read and judged as a scheduler does."""
    places = StatePaths(place.root / "other").run(1)
    shutil.rmtree(places.root, ignore_errors=True)
    places.requests.mkdir(parents=True)
    for number, (suffix, said) in enumerate(case, 1):
        text = said if isinstance(said, str) else json.dumps(said)
        (places.requests / f"{number:020d}.1.1{suffix}").write_bytes(text.encode("utf-8", "surrogatepass"))

    def judge() -> None:
        inbox = RequestInbox(places)
        try:
            for request in inbox.collect():
                brain = builders.brain(builders.tasks(3, "1GiB"))
                granted = grant(brain, request, [builders.host()], lambda terms: 0, 1e9)
                for event in granted.events:
                    events.decode(event.kind, json.loads(json.dumps(events.encode(event))))
                    brain.apply(event)
                inbox.answer(request, granted.answers)
        finally:
            inbox.close()

    judged(judge)


def give_attempt(place: Place, case: Case) -> None:
    """A claim and an exit record with right checksums."""
    path = place.root / ".claim.1"
    path.write_bytes(b"".join(map(block, case)))
    judged(lambda: (shim.read_claim(str(path)), shim.read_record(str(path)), shim.claim_state(str(path))))


def give_result(place: Place, case: Case) -> None:
    """The result file of a task."""
    path = place.root / "result"
    path.write_bytes(case.encode("latin-1"))
    judged(lambda: (read_result(str(path)), has_lines(str(path))))


def give_profiles(place: Place, case: Case) -> None:
    """A file of profiles from another machine."""
    (place.root / "given.json").write_text(case if isinstance(case, str) else json.dumps(case), errors="surrogatepass")
    place.run("profiles", "import", "given.json", names="given.json")
    place.run("profiles", "list")


def give_journal(place: Place, case: Case) -> None:
    """A journal with damaged places, looked at by the views and taken over."""
    run = place.state / "runs/1/journal.db"
    content = bytearray(run.read_bytes())
    for at, piece in case:
        begin = int(at * len(content))
        content[begin : begin + len(piece)] = piece.encode("latin-1")[: len(content) - begin]
    run.write_bytes(content)
    try:
        for verb in (
            ("list", "r1"),
            ("results", "r1"),
            ("why", "0"),
            ("status",),
            ("runs",),
            ("logs", "0"),
            ("resume", "r1"),
        ):
            place.run(*verb)
    finally:
        place.restore()


def give_trace(place: Place, case: Case) -> None:
    """A trace or a machine for `simulate`."""
    text, words = case
    (place.root / "trace.csv").write_bytes(text.encode("latin-1"))
    place.run("simulate", "trace.csv", *words)


@dataclass(frozen=True, slots=True)
class Door:
    """One way into the program: how cases are made, and how one is given."""

    name: str
    cases: st.SearchStrategy[Case]
    give: Callable[[Place, Case], None]
    share: int
    """The number of its cases in a hundred."""


DOORS = (
    Door("list", st.tuples(made.table(), st.sampled_from((".csv", ".csv", ".tsv")), made.options), give_list, 24),
    Door("json lines", st.tuples(made.json_lines, st.just(".jsonl"), made.options), give_list, 8),
    Door("lines", st.tuples(made.lines, st.sampled_from(([], ["--multiline"]))), give_lines, 6),
    Door("grid", made.grid(), give_grid, 6),
    Door("words", made.command_line(), give_words, 16),
    Door("settings", st.tuples(made.toml(), made.variables), give_settings, 8),
    Door("site file", made.toml(), give_site, 8),
    Door("leases", st.lists(made.record, min_size=1, max_size=3, unique_by=lambda one: one[0]), give_records, 6),
    Door("requests", st.lists(made.request, min_size=1, max_size=3), give_requests, 6),
    Door("attempt", st.tuples(made.changed(made.CLAIM), made.changed(made.RECORD)), give_attempt, 2),
    Door("result", made.result, give_result, 2),
    Door("profiles", made.profiles, give_profiles, 3),
    Door("journal", st.lists(made.damage, min_size=1, max_size=3), give_journal, 2),
    Door("trace", st.tuples(made.trace(), made.machine), give_trace, 3),
)
BY_NAME = {door.name: door for door in DOORS}


def corpus() -> list[tuple[str, Case]]:
    """Return the cases that found a fault once."""
    lines = CORPUS.read_text().splitlines() if CORPUS.exists() else []
    return [(said["door"], said["case"]) for said in map(json.loads, lines)]
