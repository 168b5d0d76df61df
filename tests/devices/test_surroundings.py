"""What this process lives in, told from small trees of files that look like one machine or another."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.devices import cgroups, surroundings
from scheduler.devices.surroundings import Login
from tests.faults import fault

SESSION = "0::/user.slice/user-1000.slice/session-3.scope"
OLD_SESSION = "4:memory:/user.slice\n1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n0::/"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-1.scope"
BUILT_IN_NO = "[Login]\n#KillUserProcesses=no\n#KillExcludeUsers=root\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def write(root: Path, **files: str) -> None:
    """Files by their paths, `__` for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def config(root: Path, text: str, path: str = "etc/systemd/logind.conf") -> None:
    write(root, **{path.replace("/", "__"): text})


class TestContainer:
    def test_none(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        assert surroundings.container({}, root) == ("", "")

    @pytest.mark.parametrize(
        ("file", "kind"), [(".dockerenv", "Docker"), ("run/.containerenv", "Podman")], ids=["Docker", "Podman"]
    )
    def test_by_a_file(self, root: Path, file: str, kind: str) -> None:
        config(root, "", file)
        assert surroundings.container({}, root) == (kind, f"/{file}")

    @pytest.mark.parametrize(
        ("name", "kind"),
        [("APPTAINER_CONTAINER", "Apptainer"), ("KUBERNETES_SERVICE_HOST", "Kubernetes")],
    )
    def test_by_a_variable(self, root: Path, name: str, kind: str) -> None:
        assert surroundings.container({name: "x"}, root) == (kind, f"the variable {name}")

    def test_as_it_says_itself(self, root: Path) -> None:
        assert surroundings.container({"container": "oci"}, root) == ("oci", "the variable container")
        write(root, run__systemd__container="systemd-nspawn")
        assert surroundings.container({}, root) == ("systemd-nspawn", "/run/systemd/container")

    def test_by_its_cgroup(self, root: Path) -> None:
        write(root, proc__self__cgroup="0::/kubepods/besteffort/pod1/abc")
        assert surroundings.container({}, root) == ("Kubernetes", "the name of its cgroup")


class TestLoggingOut:
    def test_is_nothing_to_a_process_of_no_session(self, root: Path) -> None:
        write(root, proc__self__cgroup="0::/system.slice/cron.service")
        assert not surroundings.login("ben", root).ends_us

    @fault(21)
    @pytest.mark.parametrize("groups", [SESSION, OLD_SESSION], ids=["v2", "v1"])
    def test_ends_a_session_where_it_is_set_to(self, root: Path, groups: str) -> None:
        write(root, proc__self__cgroup=groups)
        config(root, "[Login]\nKillUserProcesses=yes")
        login = surroundings.login("ben", root)
        assert (login.is_session, login.ends_us, login.source) == (True, True, "/etc/systemd/logind.conf")

    def test_lingering_does_not_save_a_session(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION, var__lib__systemd__linger__ben="")
        config(root, "[Login]\nKillUserProcesses=yes")
        assert surroundings.login("ben", root).ends_us

    def test_does_not_by_what_the_distribution_built_in(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, BUILT_IN_NO)
        assert surroundings.login("ben", root) == Login("session-3.scope", False, "its default", False)

    def test_does_by_what_another_distribution_built_in(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, "[Login]\n#KillUserProcesses=yes", "usr/lib/systemd/logind.conf")
        assert surroundings.login("ben", root).ends_us

    def test_the_last_drop_in_has_the_last_word(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, BUILT_IN_NO)
        config(root, "[Login]\nKillUserProcesses=no", "etc/systemd/logind.conf.d/10.conf")
        config(root, "[Login]\nKillUserProcesses=true", "usr/lib/systemd/logind.conf.d/50.conf")
        login = surroundings.login("ben", root)
        assert (login.kills, login.source) == (True, "/usr/lib/systemd/logind.conf.d/50.conf")

    def test_a_drop_in_of_the_same_name_hides_the_distributions(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, "[Login]", "etc/systemd/logind.conf.d/50.conf")
        config(root, "[Login]\nKillUserProcesses=yes", "usr/lib/systemd/logind.conf.d/50.conf")
        assert not surroundings.login("ben", root).kills

    @pytest.mark.parametrize(
        ("said", "user", "kills"),
        [
            ("", "root", False),
            ("KillExcludeUsers=ann", "ann", False),
            ("KillExcludeUsers=ann", "root", True),
            ("KillOnlyUsers=ann", "ben", False),
            ("KillOnlyUsers=ann ben", "ben", True),
        ],
    )
    def test_some_users_are_exempt(self, root: Path, said: str, user: str, kills: bool) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, f"[Login]\nKillUserProcesses=yes\n{said}")
        assert surroundings.login(user, root).kills == kills

    def test_the_last_one_ends_the_users_own_services(self, root: Path) -> None:
        write(root, proc__self__cgroup=MANAGER)
        login = surroundings.login("ben", root)
        assert (login.unit, login.is_session, login.ends_us) == ("user@1000.service", False, True)

    def test_but_not_of_one_who_lingers(self, root: Path) -> None:
        write(root, proc__self__cgroup=MANAGER, var__lib__systemd__linger__ben="")
        assert not surroundings.login("ben", root).ends_us


class TestKernel:
    @pytest.mark.parametrize(
        ("groups", "version"),
        [
            ("0::/a", "v2"),
            ("4:memory:/a\n1:name=systemd:/", "v1"),
            ("4:memory:/a\n0::/", "v1 and v2"),
            ("1:name=systemd:/\n0::/", "v2"),
            ("", ""),
        ],
    )
    def test_version_of_its_cgroups(self, root: Path, groups: str, version: str) -> None:
        write(root, proc__self__cgroup=groups)
        assert surroundings.cgroup_version(root) == version

    def test_whether_it_counts_whom_it_killed(self, root: Path) -> None:
        assert not surroundings.counts_kills(root)
        write(root, proc__vmstat="nr_free_pages 7\noom_kill 3")
        assert surroundings.counts_kills(root)

    def test_swap(self, root: Path) -> None:
        assert surroundings.swap(root) == 0
        write(root, proc__meminfo="MemTotal:  8 kB\nSwapTotal:    2048 kB\nSwapFree: 1 kB")
        assert surroundings.swap(root) == 2048 * 1024

    def test_that_of_windows(self, root: Path) -> None:
        assert not surroundings.in_wsl(root)
        write(root, proc__sys__kernel__osrelease="5.15.167.4-microsoft-standard-WSL2")
        assert surroundings.in_wsl(root)

    def test_shared_memory_that_is_not_there(self, root: Path) -> None:
        assert surroundings.shared_memory(root / "shm") is None
        size, free = surroundings.shared_memory(root) or (0, 0)
        assert size >= free > 0

    def test_its_cgroup_limits_processes(self, root: Path) -> None:
        write(root, own="0::/a/b")
        config(root, "100", "groups/a/pids.max")
        config(root, "7", "groups/a/pids.current")
        config(root, "max", "groups/a/b/pids.max")
        found = list(cgroups.process_limits(root / "groups", root / "own"))
        assert found == [(root / "groups/a", 100, 7)]

    def test_limits_are_numbers_or_none(self) -> None:
        limits = {limit.name: limit for limit in surroundings.ulimits()}
        assert limits["open files"].flag == "-n"
        assert all(limit.soft is None or limit.soft >= 0 for limit in limits.values())
