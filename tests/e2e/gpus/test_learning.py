"""The sources of a need: declared, observed, probed, from a profile; and the consequences of a wrong one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.units import MIB
from tests.e2e.older_tools.contracts import contract
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

HOLD = """
import json, os, sys, time
options = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
epochs, size = int(options["epochs"]), int(options["mib"]) << 20
done = os.path.join(os.environ["SCHEDULER_TASK_DIR"], "trained." + options["id"])
held = [b"x" * size]
for epoch in range(1, epochs + 1):
    if epoch == epochs and "late" in options and os.environ["SCHEDULER_PURPOSE"] == "run":
        held.append(b"x" * (size * (int(options["late"]) - 1)))
    time.sleep(float(options.get("rest", "0.05")))
    with open("log." + os.environ["SCHEDULER_PURPOSE"], "a") as file:
        file.write(f"{options['id']} {epoch}/{epochs}\\n")
    with open(done, "a") as file:
        file.write(f"{epoch}\\n")
    print(f"epoch {epoch}/{epochs}", flush=True)
"""
HEADER = "Directory,Executable,Filename,Epochs,Priority"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "hold.py").write_text(HOLD)
    yield made
    made.end()


def hold(home: Home, mib: int, epochs: int = 4, **options: object) -> list[object]:
    """Return one row of the script that uses this much memory."""
    said = " ".join(f"--{name}={value}" for name, value in options.items())
    return [home.root, "-1", f"hold.py --mib={mib} {said}".strip(), epochs, 1]


def run(home: Home, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """Run jobs.csv and return the results."""
    home.call("run", "jobs.csv", "--settle", "300ms", *arguments, code=code)
    return tasks(home)


def tasks(home: Home) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(home.call("results", "--json").stdout)["tasks"]
    return found


def margin(peak: int) -> int:
    return int(peak * 1.1) + 256 * MIB


class TestSources:
    def test_declared_need_is_reserved_as_declared(self, home: Home) -> None:
        home.write("jobs.csv", HEADER + ",Memory", [*hold(home, 50), "300MiB"])
        (task,) = run(home)
        assert (task["source"], task["reserved_bytes"]) == ("declared", 300 * MIB)
        assert 50 * MIB < task["peak_bytes"] < 120 * MIB

    def test_unknown_need_is_reserved_half_of_free_memory_and_less_once_settled(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 100, epochs=6, rest=0.4))
        (task,) = run(home, "--devices", "host:4GiB")
        assert task["source"] == "measured"
        assert "reserved 1.8GiB (unknown, measured while it runs)" in home.log()
        assert task["reserved_bytes"] == pytest.approx(margin(task["peak_bytes"]), rel=0.02)

    @contract("S3-D15")
    def test_profiled_need_is_reserved_as_peak_plus_margin(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 100))
        (first,) = run(home)
        (second,) = run(home)
        assert (first["source"], second["source"]) == ("measured", "profile")
        assert second["reserved_bytes"] == margin(first["peak_bytes"])

    def test_five_equal_peaks_reduce_the_margin(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, *[hold(home, 100, epochs=2)] * 5)
        peaks = [task["peak_bytes"] for task in run(home, "-j", "1")]
        last = run(home, "-j", "1")[-1]
        assert last["reserved_bytes"] <= int(max(*peaks, last["peak_bytes"]) * 1.03) + 128 * MIB + MIB

    @contract("S3-20", "S3-21")
    def test_probed_task_runs_two_epochs_first_under_its_own_id(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 100, epochs=5), hold(home, 100, epochs=7))
        first, second = run(home, "--profile", "probe")
        assert home.log().count(" probe  ") == 1
        assert {first["source"], second["source"]} <= {"probe", "profile"}
        for task, epochs in ((first, 5), (second, 7)):
            trained = Path(task["log"]).parent / f"trained.{task['id']}"
            assert trained.read_text().split() == [str(epoch) for epoch in range(1, epochs + 1)]
        folders = sorted(int(path.name) for path in Path(first["log"]).parents[1].iterdir())
        assert folders == [first["id"], second["id"]], "the probe's own folder is gone"
        probed = (home.root / "log.probe").read_text().split("\n")
        (own,) = {line.split()[0] for line in probed if line}
        assert int(own) not in folders
        assert probed == [f"{own} 1/2", f"{own} 2/2", ""]

    def test_probe_keeps_the_id_of_its_task_where_the_user_wants_it(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 100, epochs=5))
        (task,) = run(home, "--profile", "probe", "--profile-id", "same", "--profile-epochs", "1")
        assert (home.root / "log.probe").read_text() == f"{task['id']} 1/1\n"

    def test_auto_probes_only_where_a_probe_is_a_fiftieth_of_the_task(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 60, epochs=100, rest=0.001), hold(home, 61, epochs=99, rest=0.001))
        run(home)
        assert home.log().count(" probe  ") == 1

    def test_peak_of_a_running_task_serves_the_other_tasks(self, home: Home) -> None:
        rows = [hold(home, 100, epochs=8, rest=0.3), *[hold(home, 100, epochs=2, rest=0.05)] * 2]
        home.write("jobs.csv", HEADER, *rows)
        last = run(home, "-j", "1")[-1]
        assert last["source"] == "profile"


class TestWrongEstimates:
    def test_task_that_outgrows_its_profile_raises_its_reservation_before_the_next_start(self, home: Home) -> None:
        late = hold(home, 120, epochs=3, rest=0.3, late=5)
        home.write("jobs.csv", HEADER, late)
        home.call("profiles", "learn", "jobs.csv", code=0)
        home.write("jobs.csv", HEADER, late, hold(home, 30, epochs=2))
        grown, _ = run(home, "--devices", "host:4GiB")
        assert "grew" in home.log(2)
        assert grown["reserved_bytes"] >= grown["peak_bytes"] > 580 * MIB
        assert grown["attempts"] == 1

    def test_known_tasks_never_hold_more_than_the_budget_together(self, home: Home) -> None:
        """Twenty tasks that together need five times the budget are measured from outside as PSS."""
        home.write("jobs.csv", HEADER, hold(home, 250, epochs=2, rest=0.2))
        run(home)
        home.write("jobs.csv", HEADER + ",CPUs", *[[*hold(home, 250, epochs=2, rest=0.2), 0.1]] * 20)
        scheduler = home.start("run", "jobs.csv", "--devices", "host:1500MiB", "--buffer", "500MiB")
        most = 0
        while scheduler.poll() is None:
            most = max(most, held_by_tasks(home))
        assert scheduler.returncode == 0
        assert 250 * MIB < most <= 1000 * MIB
        assert {task["source"] for task in tasks(home)} == {"profile"}
        assert sum(task["ooms"] for task in tasks(home)) == 0

    def test_memory_error_is_retried_with_more_and_the_last_time_alone(self, home: Home) -> None:
        home.write("jobs.csv", "Command", "python3 -c 'raise MemoryError'", "true")
        task, other = run(home, code=1)
        # A fourth attempt follows if something else on this machine held memory during the one that had it all.
        assert (task["state"], task["ooms"]) in {("oom", 3), ("oom", 4)}
        assert task["attempts"] == task["ooms"]
        assert other["state"] == "succeeded"

    @fault(41)
    @contract("S3-D13")
    def test_failed_probe_is_reported_and_its_task_is_not_run(self, home: Home) -> None:
        (home.root / "bad.py").write_text("raise SystemExit('no such thing')")
        home.write("jobs.csv", HEADER, [home.root, "-1", "bad.py", 300, 1])
        (task,) = run(home, code=1)
        assert (task["state"], task["attempts"]) == ("failed", 1)
        assert " probe  " in home.log()
        assert "no such thing" in home.log()

    @fault(41)
    @contract("S3-D4")
    def test_script_that_ends_before_any_sample_has_a_peak(self, home: Home) -> None:
        home.write("jobs.csv", "Command", "true")
        (task,) = run(home)
        assert task["peak_bytes"] > 0

    def test_a_script_without_epochs_is_never_probed(self, home: Home) -> None:
        home.write("jobs.csv", "Command", "true")
        run(home, "--profile", "probe")
        assert " probe  " not in home.log()

    def test_changed_script_is_known_from_its_earlier_version(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 60, epochs=1))
        run(home)
        with open(home.root / "hold.py", "a") as script:
            script.write("# another version\n")
        (task,) = run(home)
        assert task["source"] == "earlier version"

    def test_script_is_known_from_another_interpreter(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 60, epochs=1))
        run(home)
        (task,) = run(home, "--python", "/usr/bin/python3") if os.path.exists("/usr/bin/python3") else [None]
        assert task is None or task["source"] == "earlier version"


class TestProfiles:
    def test_learn_fills_the_profiles_and_runs_no_task(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, *[hold(home, 80, epochs=9)] * 3)
        home.call("profiles", "learn", "jobs.csv", code=0)
        assert [task["state"] for task in tasks(home)] == ["skipped"] * 3
        assert home.log().count(" probe  ") == 1
        assert run(home)[0]["source"] == "profile"

    def test_learn_takes_a_command_for_every_row_of_a_table(self, home: Home) -> None:
        home.write("table.csv", "mib", "60")
        command = (sys.executable, str(home.root / "hold.py"))
        said = home.call("profiles", "learn", "table.csv", "--", *command, "--mib={mib}", code=0).stdout
        assert [task["command"] for task in tasks(home)] == [f"{' '.join(command)} --mib=60"]
        assert (
            "memory  1 unknown and impossible to probe (their number of epochs cannot be set): a run measures them"
            in said
        )

    def test_learn_refuses_another_profiling_mode(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 60, epochs=1))
        said = home.call("profiles", "learn", "jobs.csv", "--profile", "live", code=2).stderr
        assert said == "scheduler: profiles learn always uses probes: leave --profile live out\n"

    @pytest.mark.parametrize("how", [("forget", "hold.py", "--all"), ("show",), ("forget",)])
    def test_forget_takes_some_or_all_profiles(self, home: Home, how: tuple[str, ...]) -> None:
        said = home.call("profiles", *how, code=2).stderr
        assert said == f"scheduler: profiles {how[0]}: name profiles by key or script, or give --all\n"

    def test_profiles_are_shown_and_forgotten(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 60, epochs=1))
        run(home)
        kept = json.loads(home.call("profiles", "--json").stdout)["profiles"]
        assert [one["what"] for one in kept] == ["hold.py --mib=60"]
        assert 60 * MIB < kept[0]["peak_bytes"] < 130 * MIB
        assert "1 profile removed" in home.call("profiles", "forget", "hold.py", code=0).stdout
        assert run(home)[0]["source"] == "measured"
        assert "there is no profile nothing.py" in home.call("profiles", "forget", "nothing.py", code=2).stderr

    @pytest.mark.parametrize("damage", ["damaged", "newer"])
    def test_unreadable_profiles_are_set_aside_with_a_sentence(self, home: Home, damage: str) -> None:
        home.write("jobs.csv", HEADER, hold(home, 60, epochs=1))
        run(home)
        database = home.state / "profiles.db"
        if damage == "damaged":
            database.write_bytes(b"this is not a database" * 100)
        else:
            subprocess.run(["sqlite3", database, "UPDATE meta SET value='99'"], check=True)
        answer = home.call("run", "jobs.csv", code=0)
        assert "set aside" in answer.stdout + answer.stderr
        assert tasks(home)[0]["source"] == "measured"
        assert list(home.state.glob("profiles.db.aside-*"))


def held_by_tasks(home: Home) -> int:
    """Return the PSS of every process of this home's tasks."""
    total = 0
    for pid in home.living():
        try:
            if b"hold.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += int(text.split("\nPss:")[1].split()[0]) * 1024
        except (OSError, IndexError):
            continue
    return total


class TestTheKernel:
    """Runs inside of a memory cgroup of their own, where one can be made."""

    @pytest.fixture
    def group(self) -> Iterator[Path]:
        root = Path("/sys/fs/cgroup/memory")
        if os.getuid() != 0 or not (root / "memory.limit_in_bytes").exists():
            pytest.skip("needs root and the memory controller of cgroup v1")
        made = root / f"scheduler-test-{os.getpid()}"
        made.mkdir()
        (made / "memory.limit_in_bytes").write_text(str(700 * MIB))
        yield made
        wait_until(lambda: not (made / "cgroup.procs").read_text().split(), 20)
        made.rmdir()

    @fault(39)
    def test_task_killed_for_memory_is_oom_and_the_others_go_on(self, home: Home, group: Path) -> None:
        home.write("jobs.csv", HEADER, hold(home, 900, epochs=1), *[hold(home, 20, epochs=3, rest=0.2)] * 3)
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        home.command = ["sh", "-c", enter, "sh", *home.command]
        home.call("run", "jobs.csv", "--buffer", "50MiB", "--settle", "300ms", code=1)
        big, *small = tasks(home)
        assert big["state"] in ("oom", "refused")
        assert big["ooms"] >= 1
        assert [task["state"] for task in small] == ["succeeded"] * 3
        assert f"host    700MiB RAM (limited by cgroup {group})" in home.log()
