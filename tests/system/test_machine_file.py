"""Root's file and what users reserve, on stand-in GPUs and with two real users."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from scheduler import machinefile
from scheduler.errors import LeaseError
from scheduler.settings import Settings
from scheduler.view.schemas import PRINTS, schema
from scheduler.wiring import preparing
from tests.standin.box import NO_COMPILER, build
from tests.system.gpu_home import PATIENCE, GpuHome, holding
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(build() is None, reason=NO_COMPILER),
    pytest.mark.skipif(os.geteuid() != 0, reason="a machine's file is root's"),
    pytest.mark.skipif(os.path.lexists(machinefile.PLACE), reason=f"{machinefile.PLACE} holds on this machine"),
]


class Machine(GpuHome):
    """A home on a machine of which root says something."""

    @property
    def file(self) -> Path:
        return Path(self.env[machinefile.ELSEWHERE])

    def says(self, text: str) -> None:
        """Root writes the file anew."""
        part = self.file.with_suffix(".part")
        part.write_text(text)
        part.chmod(0o644)
        part.rename(self.file)

    def waits_because(self, task: int, words: str) -> None:
        """Wait until a task is said to wait for that."""
        wait_until(lambda: words in " ".join(self.call("why", str(task)).stdout.split()), PATIENCE)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, gpus=2)
    made.env[machinefile.ELSEWHERE] = str(tmp_path / "machine.toml")
    yield made
    made.end()


RUN = ("run", "jobs.csv", "--profile", "off")


def living(home: Machine) -> int:
    return sum(bool(one.pid) and not one.ended for one in home.tries())


class TestCaps:
    def test_they_bind_over_all_runs_and_are_followed_while_they_go_on(self, home: Machine) -> None:
        home.says("[caps]\ntasks = 2\n")
        home.jobs(*[holding("1GiB", Memory="1GiB")] * 3)
        other = home.root / "other.csv"
        other.write_text((home.root / "jobs.csv").read_text())
        with home.start(*RUN, stderr=subprocess.DEVNULL) as first:
            home.wait_for(2)
            home.waits_because(2, f"its user holds 2 tasks of the 2 that [caps] in {home.file} allows")
            with home.start("run", "other.csv", "--profile", "off", stderr=subprocess.DEVNULL) as second:
                home.waits_because(4, "its user holds 2 tasks of the 2")
                assert living(home) == 2
                home.says("[caps]\ntasks = 8\n")
                home.wait_for(3)
                home.go()
                assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)

    def test_what_can_never_be_is_refused_at_the_door_with_who_says_so(self, home: Machine) -> None:
        home.says("[caps]\nmemory = '4GiB'\ngpus = 1\n")
        home.jobs(holding("5GiB", Memory="5GiB"))
        said = home.call(*RUN, code=2).stderr
        assert f"wants 5.0GiB of GPU memory, one user may hold 4.0GiB at a time ([caps] in {home.file})" in said
        home.jobs(holding("1GiB", Memory="1GiB", GPUs=2))
        assert "wants 2 GPUs, one user may have 1 at a time" in home.call(*RUN, code=2).stderr

    def test_a_slip_in_the_file_stops_runs_with_its_place(self, home: Machine) -> None:
        home.says("[caps]\ngpu = 1\n")
        home.jobs(holding("1GiB", Memory="1GiB"))
        assert f"{home.file}, [caps]: nobody knows 'gpu'" in home.call(*RUN, code=2).stderr
        assert "[caps]: nobody knows 'gpu'" in home.call("doctor").stdout


class TestFile:
    def test_one_that_does_not_count_is_named_at_the_start_and_by_doctor(self, home: Machine) -> None:
        home.says("[caps]\ntasks = 1\n")
        home.file.chmod(0o666)
        home.jobs(*[holding("1GiB", until="jobs.csv", Memory="1GiB")] * 2)
        home.call(*RUN, code=0)
        sentence = f"{home.file} can be written by others than root, so it is ignored"
        assert f"hint:   {sentence}: sudo chmod 644 {home.file}" in home.log()
        assert sentence in " ".join(home.call("doctor").stdout.split())

    def test_only_the_gpus_that_are_offered_are_used(self, home: Machine) -> None:
        home.says("devices = '1'\n")
        home.jobs(*[holding("1GiB", until="jobs.csv", Memory="1GiB")] * 3)
        assert {one.gpus for one in home.run("--profile", "off")} == {(1,)}
        said = home.call("run", "jobs.csv", "--new", "--devices", "0", code=2).stderr
        assert f"this shell may use GPU 1 (devices in {home.file})" in said

    def test_doctor_says_what_holds_and_who_says_so(self, home: Machine) -> None:
        home.says(
            "max_load = 0.5\n[caps]\ngpus = 1\n[caps.users.root]\ngpus = 2\nmemory = '9GiB'\n[may]\nreserve='*'\n"
        )
        found = json.loads(home.call("doctor", "--json").stdout)
        assert found["house"]["caps"] == {"gpus": 2, "memory": 9 << 30, "host_memory": None, "tasks": None}
        assert found["house"]["caps_by"] == f"[caps.users.root] in {home.file}"
        sources = {one["name"]: one["source"] for one in found["settings"]["settings"]}
        assert (sources["max_load"], sources["num"], sources["leases"]) == (str(home.file), "default", "environment")
        page = " ".join(home.call("doctor").stdout.split())
        assert f"0.5 ({home.file})" in page
        assert "you may hold 2 GPUs, 9.0GiB of GPU memory at a time" in page


class TestReserving:
    def test_nobody_elses_task_starts_there_and_what_runs_ends_by_itself(self, home: Machine) -> None:
        home.jobs(*[holding("1GiB", Memory="1GiB", Device=0), *[holding("1GiB", Memory="1GiB", Device=0)] * 2])
        with home.going("--profile", "off", "-j", "1"):
            home.wait_for(1)
            said = home.call("devices", "reserve", "0", "--for", "2h", "--user", "12345", "--why", "a deadline", code=0)
            assert said.stdout.startswith("GPU 0: it is reserved for 12345 until ")
            (facts,) = json.loads(home.call("devices", "--json", code=0).stdout)["reserved"]
            assert (facts["device"], facts["user"], facts["by"]) == ("GPU 0", "12345", "root")
            assert "GPU 0: it is reserved for 12345" in home.call("status", code=0).stdout
            home.call("set", "--run", "1", "-j", "9", code=0)
            home.waits_because(2, "finds GPU 0 closed: it is reserved for 12345 until")
            assert living(home) == 1
            other = json.loads(home.call("devices", "reserve", "--end", "--json", code=0).stdout)
            assert other == {"format": 1, "reserved": []}
            home.wait_for(3)
            home.go()

    def test_its_user_goes_on_and_it_ends_by_itself(self, home: Machine) -> None:
        home.jobs(*[holding("1GiB", until="jobs.csv", Memory="1GiB", Device=0)] * 2)
        home.call("devices", "reserve", "0", "--for", "2h", code=0)
        assert [one.gpus for one in home.run("--profile", "off")] == [(0,), (0,)]
        home.call("devices", "reserve", "--end", code=0)
        home.call("devices", "reserve", "0", "--for", "2s", "--user", "12345", code=0)
        assert home.call("run", "jobs.csv", "--new", "--profile", "off").returncode == 0

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("reserve", "0"), "say which and how long, like scheduler devices reserve 2 --for 4h"),
            (("reserve", "0", "--for", "4"), "--for: "),
            (("reserve", "0", "--for", "4h", "--user", "nobody-here"), "there is no such user"),
            (("reserve", "7", "--for", "4h"), "there is no device '7' here"),
            (("list", "--for", "4h"), "--for goes with reserve"),
            (("reserve", "0", "--end", "--for", "4h"), "leave --for"),
        ],
    )
    def test_bad_input(self, home: Machine, words: tuple[str, ...], sentence: str) -> None:
        assert sentence in home.call("devices", *words, code=2).stderr


class TestPreparing:
    @pytest.fixture
    def tmpfiles(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder in the place of systemd's; nothing is written into the machine's own /etc."""
        monkeypatch.setenv(machinefile.ELSEWHERE, str(tmp_path / "machine.toml"))
        (tmp_path / "tmpfiles.d").mkdir()
        return tmp_path / "tmpfiles.d" / "gpu-batch-scheduler.conf"

    def test_what_is_missing_is_made_and_what_is_there_stays(self, home: Machine) -> None:
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
        home.says("[caps]\ntasks = 1\n")
        again = home.call("devices", "init", code=0).stdout
        assert "is there already, and stays as it is" in again
        assert home.file.read_text() == "[caps]\ntasks = 1\n"
        told = json.loads(home.call("devices", "init", "--json", code=0).stdout)
        Draft202012Validator(schema(dict(PRINTS["devices"])["init"])).validate(told)
        assert told["done"] == again.splitlines()

    def test_the_example_says_nothing_yet_and_all_that_it_shows_is_understood(self, home: Machine) -> None:
        home.call("devices", "init", code=0)
        lines = home.file.read_text().splitlines()
        assert "none for you" in home.call("doctor").stdout
        shown = [
            line.removeprefix("# ") for line in lines if line.startswith(("# ", "[")) and ("=" in line or "[" in line)
        ]
        words = [line.partition("#")[0].strip() for line in shown]
        text = "\n".join(line for line in words if " = " in line or line.startswith("["))
        home.says(text.replace("ben", "root").replace("@staff", "@root").replace("@operators", "@root"))
        found = json.loads(home.call("doctor", "--json").stdout)["house"]
        assert found["caps"]["tasks"] == 64
        assert found["trouble"] == ""

    def test_a_directory_that_goes_with_a_reboot_has_its_line(self, tmpfiles: Path) -> None:
        directory = Path(f"/run/scheduler-test-{os.getpid()}")
        try:
            said = preparing.prepare(Settings(leases=str(directory)), tmpfiles)
        finally:
            directory.rmdir()
        assert f"d {directory} 1777 root root -" in tmpfiles.read_text().splitlines()
        assert any("made again after a reboot" in line for line in said)

    def test_where_schedulers_meet_elsewhere_now_nothing_is_done(
        self, tmp_path: Path, tmpfiles: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = tmp_path / "old"
        old.mkdir()
        monkeypatch.setattr(preparing, "FALLBACK", old)
        with subprocess.Popen(["sleep", "60"], stdin=open(old / "lease", "w+")) as process:
            with pytest.raises(LeaseError, match=f"process {process.pid} of root"):
                preparing.prepare(Settings(leases=str(tmp_path / "new")), tmpfiles)
            process.kill()
        assert not (tmp_path / "new").exists()

    def test_it_takes_root(self, tmpfiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machinefile, "ROOT", 4711)
        with pytest.raises(LeaseError, match="sudo scheduler devices init"):
            preparing.prepare(Settings(), tmpfiles)
