"""The site file of root and device reservations of users, on stand-in GPUs and with two real users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from scheduler.app.control import machine_init
from scheduler.errors import LeaseError
from scheduler.runtime import site_file
from scheduler.runtime.settings import Settings
from tests.docs.json_shapes import PRINTS, schema
from tests.support.faults import fault
from tests.support.gpu_home import PATIENCE, GpuHome, holding
from tests.support.mounts import needs_mounts, run_apart
from tests.support.standin.box import NO_COMPILER, build
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(build() is None, reason=NO_COMPILER),
    pytest.mark.skipif(os.geteuid() != 0, reason="a machine's file is root's"),
    pytest.mark.skipif(os.path.lexists(site_file.PLACE), reason=f"{site_file.PLACE} holds on this machine"),
]


class Machine(GpuHome):
    """A home on a machine with a site file."""

    @property
    def file(self) -> Path:
        return Path(self.env[site_file.ELSEWHERE])

    def says(self, text: str) -> None:
        """Replace the site file."""
        part = self.file.with_suffix(".part")
        part.write_text(text)
        part.chmod(0o644)
        part.rename(self.file)

    def waits_because(self, task: int, words: str) -> None:
        """Wait until `why` of a task contains these words."""
        wait_until(lambda: words in " ".join(self.call("why", str(task)).stdout.split()), PATIENCE)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, gpus=2)
    made.env[site_file.ELSEWHERE] = str(tmp_path / "machine.toml")
    yield made
    made.end()


OTHER = 61_007
ALONE = ("--buffer", "1MiB", "--max-load", "1000")
FORGE = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from scheduler.runtime.shim import pack_block
from scheduler.store.machine.locked_files import make_locked
folder, uid, claim = sys.argv[1:]
directory = os.open(folder, os.O_RDONLY)
os.setuid(int(uid))
said = {{"version": 1, "shim": 0, "boot": "", "bytes": eval(claim), "load": {{"host": 1e9}}}}
lock = make_locked(directory, f"{{uid}}.9-f.1.1.0123456789abcdef", pack_block(said))
print("forged", flush=True)
time.sleep(600)
"""
"""A program that becomes another user, and keeps a lease file that claims these bytes locked."""
RUN = ("run", "jobs.csv", "--profile", "off")


def living(home: Machine) -> int:
    return sum(bool(one.pid) and not one.ended for one in home.tries())


class TestQuotas:
    def test_quotas_hold_over_all_runs_and_changes_apply_in_mid_run(self, home: Machine) -> None:
        home.says("[quotas]\ntasks = 2\n")
        home.jobs(*[holding("1GiB", Memory="1GiB")] * 3)
        other = home.root / "other.csv"
        other.write_text((home.root / "jobs.csv").read_text())
        with home.start(*RUN, stderr=subprocess.DEVNULL) as first:
            home.wait_for(2)
            home.waits_because(2, f"its user holds 2 tasks, the quota is 2 ([quotas] in {home.file})")
            with home.start("run", "other.csv", "--profile", "off", stderr=subprocess.DEVNULL) as second:
                home.waits_because(4, "its user holds 2 tasks, the quota is 2")
                assert living(home) == 2
                home.says("[quotas]\ntasks = 8\n")
                home.wait_for(3)
                home.go()
                assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)

    def test_a_row_above_the_quota_is_refused_with_its_source(self, home: Machine) -> None:
        home.says("[quotas]\nmemory = '4GiB'\ngpus = 1\n")
        home.jobs(holding("5GiB", Memory="5GiB"))
        said = home.call(*RUN, code=2).stderr
        assert f"needs 5.0GiB of GPU memory; one user may hold 4.0GiB at a time ([quotas] in {home.file})" in said
        home.jobs(holding("1GiB", Memory="1GiB", GPUs=2))
        assert "needs 2 GPUs; one user may have 1 at a time" in home.call(*RUN, code=2).stderr

    @fault(129)
    @pytest.mark.parametrize("claim", ["{'host': 1 << 59}", "None"], ids=["of everything", "unreadable"])
    def test_forged_lease_of_another_user_keeps_no_more_than_the_quota_of_that_user(
        self, home: Machine, claim: str
    ) -> None:
        home.says(f"[quotas.users.{OTHER}]\nhost_memory = '64MiB'\nmemory = '64MiB'\n")
        home.leases.mkdir()
        home.leases.chmod(0o1777)
        forger = subprocess.Popen([sys.executable, "-c", FORGE, home.leases, str(OTHER), claim], stdout=subprocess.PIPE)
        with forger:
            try:
                assert forger.stdout is not None
                assert forger.stdout.readline() == b"forged\n"
                home.call("exec", "--devices", "host:1GiB", "--memory", "512MiB", *ALONE, "--", "true", code=0)
            finally:
                forger.kill()

    def test_an_invalid_site_file_stops_runs_with_its_place(self, home: Machine) -> None:
        home.says("[quotas]\ngpu = 1\n")
        home.jobs(holding("1GiB", Memory="1GiB"))
        assert f"{home.file}, [quotas]: 'gpu' is unknown" in home.call(*RUN, code=2).stderr
        assert "[quotas]: 'gpu' is unknown" in home.call("doctor").stdout


class TestFile:
    def test_an_ignored_site_file_is_named_at_the_start_and_by_doctor(self, home: Machine) -> None:
        home.says("[quotas]\ntasks = 1\n")
        home.file.chmod(0o666)
        home.jobs(*[holding("1GiB", until="jobs.csv", Memory="1GiB")] * 2)
        home.call(*RUN, code=0)
        sentence = f"{home.file} can be written by users other than root, so it is ignored"
        assert f"hint:   {sentence}: sudo chmod 644 {home.file}" in home.log()
        assert sentence in " ".join(home.call("doctor").stdout.split())

    def test_only_gpus_that_the_site_file_offers_are_used(self, home: Machine) -> None:
        home.says("devices = '1'\n")
        home.jobs(*[holding("1GiB", until="jobs.csv", Memory="1GiB")] * 3)
        assert {one.gpus for one in home.run("--profile", "off")} == {(1,)}
        said = home.call("run", "jobs.csv", "--new", "--devices", "0", code=2).stderr
        assert f"this shell may use GPU 1 (devices in {home.file})" in said

    def test_doctor_prints_quotas_and_settings_with_their_sources(self, home: Machine) -> None:
        home.says(
            "max_load = 0.5\n[quotas]\ngpus = 1\n[quotas.users.root]\ngpus = 2\nmemory = '9GiB'\n[may]\nreserve='*'\n"
        )
        found = json.loads(home.call("doctor", "--json").stdout)
        said = {line["what"]: line["says"] for line in found["lines"]}
        quota = "you may hold 2 GPUs, 9.0GiB of GPU memory at a time"
        assert said["quota"] == f"{quota} ([quotas.users.root] in {home.file})"
        sources = {one["name"]: one["source"] for one in found["settings"]}
        assert (sources["max_load"], sources["num"], sources["leases"]) == (str(home.file), "default", "environment")
        page = " ".join(home.call("doctor").stdout.split())
        assert f"0.5 ({home.file})" in page
        assert "you may hold 2 GPUs, 9.0GiB of GPU memory at a time" in page


class TestReserving:
    def test_tasks_of_other_users_do_not_start_on_a_reserved_device_and_running_ones_end_by_themselves(
        self, home: Machine
    ) -> None:
        home.jobs(*[holding("1GiB", Memory="1GiB", Device=0), *[holding("1GiB", Memory="1GiB", Device=0)] * 2])
        with home.going("--profile", "off", "-j", "1"):
            home.wait_for(1)
            said = home.call("devices", "reserve", "0", "--for", "2h", "--user", "12345", "--why", "a deadline", code=0)
            assert said.stdout.startswith("GPU 0: it is reserved for 12345 until ")
            (facts,) = json.loads(home.call("devices", "--json", code=0).stdout)["reserved"]
            assert (facts["device"], facts["user"], facts["by"]) == ("GPU 0", "12345", "root")
            assert "GPU 0: it is reserved for 12345" in home.call("status", code=0).stdout
            home.call("set", "--run", "1", "-j", "9", code=0)
            home.waits_because(2, "may not start on GPU 0: it is reserved for 12345 until")
            assert living(home) == 1
            other = json.loads(home.call("devices", "reserve", "--end", "--json", code=0).stdout)
            assert other == {"format": 1, "reserved": []}
            home.wait_for(3)
            home.go()

    def test_the_user_of_a_reservation_starts_tasks_until_it_ends_by_itself(self, home: Machine) -> None:
        home.jobs(*[holding("1GiB", until="jobs.csv", Memory="1GiB", Device=0)] * 2)
        home.call("devices", "reserve", "0", "--for", "2h", code=0)
        assert [one.gpus for one in home.run("--profile", "off")] == [(0,), (0,)]
        home.call("devices", "reserve", "--end", code=0)
        home.call("devices", "reserve", "0", "--for", "2s", "--user", "12345", code=0)
        assert home.call("run", "jobs.csv", "--new", "--profile", "off").returncode == 0

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("reserve", "0"), "give a device and a time, such as scheduler devices reserve 2 --for 4h"),
            (("reserve", "0", "--for", "4"), "--for: "),
            (("reserve", "0", "--for", "4h", "--user", "no-such-user"), "there is no such user"),
            (("reserve", "7", "--for", "4h"), "there is no device '7' here"),
            (("list", "--for", "4h"), "--for goes with reserve"),
            (("reserve", "0", "--end", "--for", "4h"), "leave --for"),
        ],
    )
    def test_bad_input_of_devices_reserve_is_refused(
        self, home: Machine, words: tuple[str, ...], sentence: str
    ) -> None:
        assert sentence in home.call("devices", *words, code=2).stderr


FILL = """
import os, subprocess, sys
from pathlib import Path
from scheduler.runtime.settings import Settings
from scheduler.store.machine.lease_directory import find_directory
from scheduler.app.control import machine_init
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", "/run"], check=True)
directory = find_directory("/run/gpu-batch-scheduler")
print(*machine_init.prepare(Settings(leases=str(directory)), Path(sys.argv[1])), sep="\\n")
print(*machine_init.prepare(Settings(leases=str(directory)), Path(sys.argv[1])), sep="\\n", flush=True)
if not (child := os.fork()):
    os.setuid(12002)
    try:
        with open(directory / "filling", "wb") as file:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
    except OSError as exc:
        print(exc.strerror, flush=True)
        os._exit(0)
os.waitpid(child, 0)
Path("/run/six").write_text("bytes\\n")
print("root writes 6 bytes to /run")
print(directory.is_mount())
"""


class TestPreparing:
    @pytest.fixture
    def units(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a folder in place of systemd's, so that nothing is written to /etc."""
        monkeypatch.setenv(site_file.ELSEWHERE, str(tmp_path / "machine.toml"))
        (tmp_path / "units").mkdir()
        return tmp_path / "units"

    def test_devices_init_makes_missing_files_and_keeps_existing_ones(self, home: Machine) -> None:
        home.file.unlink(missing_ok=True)
        before = os.umask(0o077)
        try:
            first = home.call("devices", "init", code=0).stdout.splitlines()
        finally:
            os.umask(before)
        assert first[0].endswith("mode 1777: all schedulers of this machine meet there")
        assert oct(home.leases.stat().st_mode & 0o7777) == "0o1777"
        assert oct(home.file.stat().st_mode & 0o777) == "0o644"
        assert home.call("doctor", "--json").returncode in (0, 1)
        home.says("[quotas]\ntasks = 1\n")
        again = home.call("devices", "init", code=0).stdout
        assert "exists already and is unchanged" in again
        assert home.file.read_text() == "[quotas]\ntasks = 1\n"
        told = json.loads(home.call("devices", "init", "--json", code=0).stdout)
        Draft202012Validator(schema(dict(PRINTS["devices"])["init"])).validate(told)
        assert told["done"] == again.splitlines()

    def test_the_example_of_devices_init_sets_nothing_and_its_lines_are_valid(self, home: Machine) -> None:
        home.call("devices", "init", code=0)
        lines = home.file.read_text().splitlines()
        assert "none for you" in home.call("doctor").stdout
        shown = [
            line.removeprefix("# ") for line in lines if line.startswith(("# ", "[")) and ("=" in line or "[" in line)
        ]
        words = [line.partition("#")[0].strip() for line in shown]
        text = "\n".join(line for line in words if " = " in line or line.startswith("["))
        home.says(text.replace("ben", "root").replace("@staff", "@root").replace("@operators", "@root"))
        lines = json.loads(home.call("doctor", "--json").stdout)["lines"]
        assert "64 tasks" in next(line["says"] for line in lines if line["what"] == "quota")
        assert "!!" not in {line["mark"] for line in lines if line["what"] == "machine"}

    @fault(104)
    @needs_mounts
    def test_a_full_lease_directory_does_not_fill_the_file_system_of_run(self, units: Path) -> None:
        said = run_apart(FILL, units).splitlines()
        assert said[-3:] == ["No space left on device", "root writes 6 bytes to /run", "True"]
        assert any("is now a file system of its own" in line for line in said)
        assert any("is mounted again after a reboot" in line for line in said)
        unit = units / r"run-gpu\x2dbatch\x2dscheduler.mount"
        assert {"Where=/run/gpu-batch-scheduler", f"Options={machine_init.OPTIONS}"} <= set(
            unit.read_text().splitlines()
        )
        wanted = units / "local-fs.target.wants" / unit.name
        assert wanted.resolve() == unit

    def test_devices_init_refuses_while_schedulers_use_another_lease_directory(
        self, tmp_path: Path, units: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = tmp_path / "old"
        old.mkdir()
        monkeypatch.setattr(machine_init, "FALLBACK", old)
        with subprocess.Popen(["sleep", "60"], stdin=open(old / "lease", "w+")) as process:
            with pytest.raises(LeaseError, match=f"process {process.pid} of root"):
                machine_init.prepare(Settings(leases=str(tmp_path / "new")), units)
            process.kill()
        assert not (tmp_path / "new").exists()

    def test_devices_init_needs_root(self, units: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site_file, "ROOT", 4711)
        with pytest.raises(LeaseError, match="sudo scheduler devices init"):
            machine_init.prepare(Settings(), units)
