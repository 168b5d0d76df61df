"""The environment of this process, read from small trees of files that look like one machine or another."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.devices.host import cgroups, host_environment
from scheduler.devices.host.host_environment import LoginPolicy
from tests.support.faults import fault

SESSION = "0::/user.slice/user-1000.slice/session-3.scope"
OLD_SESSION = "4:memory:/user.slice\n1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n0::/"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-1.scope"
BUILT_IN_NO = "[Login]\n#KillUserProcesses=no\n#KillExcludeUsers=root\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def write(root: Path, **files: str) -> None:
    """Write files by their paths, `__` for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def config(root: Path, text: str, path: str = "etc/systemd/logind.conf") -> None:
    write(root, **{path.replace("/", "__"): text})


class TestContainer:
    def test_no_sign_means_no_container(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        assert host_environment.container({}, root) == ("", "")

    @pytest.mark.parametrize(
        ("file", "kind"), [(".dockerenv", "Docker"), ("run/.containerenv", "Podman")], ids=["Docker", "Podman"]
    )
    def test_container_is_detected_by_a_file(self, root: Path, file: str, kind: str) -> None:
        config(root, "", file)
        assert host_environment.container({}, root) == (kind, f"/{file}")

    @pytest.mark.parametrize(
        ("name", "kind"),
        [("APPTAINER_CONTAINER", "Apptainer"), ("KUBERNETES_SERVICE_HOST", "Kubernetes")],
    )
    def test_container_is_detected_by_a_variable(self, root: Path, name: str, kind: str) -> None:
        assert host_environment.container({name: "x"}, root) == (kind, f"the variable {name}")

    def test_container_is_detected_by_its_own_variable(self, root: Path) -> None:
        assert host_environment.container({"container": "oci"}, root) == ("oci", "the variable container")
        write(root, run__systemd__container="systemd-nspawn")
        assert host_environment.container({}, root) == ("systemd-nspawn", "/run/systemd/container")

    def test_container_is_detected_by_its_cgroup(self, root: Path) -> None:
        write(root, proc__self__cgroup="0::/kubepods/besteffort/pod1/abc")
        assert host_environment.container({}, root) == ("Kubernetes", "the name of its cgroup")


class TestLoggingOut:
    def test_logout_does_not_end_a_process_without_a_session(self, root: Path) -> None:
        write(root, proc__self__cgroup="0::/system.slice/cron.service")
        assert not host_environment.login("ben", root).ends_us

    @fault(21)
    @pytest.mark.parametrize("groups", [SESSION, OLD_SESSION], ids=["v2", "v1"])
    def test_logout_ends_a_session_where_configured(self, root: Path, groups: str) -> None:
        write(root, proc__self__cgroup=groups)
        config(root, "[Login]\nKillUserProcesses=yes")
        login = host_environment.login("ben", root)
        assert (login.is_session, login.ends_us, login.source) == (True, True, "/etc/systemd/logind.conf")

    def test_logout_ends_a_session_of_a_lingering_user(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION, var__lib__systemd__linger__ben="")
        config(root, "[Login]\nKillUserProcesses=yes")
        assert host_environment.login("ben", root).ends_us

    def test_logout_ends_nothing_by_a_built_in_default_of_no(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, BUILT_IN_NO)
        assert host_environment.login("ben", root) == LoginPolicy("session-3.scope", False, "its default", False)

    def test_logout_ends_a_session_by_a_built_in_default_of_yes(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, "[Login]\n#KillUserProcesses=yes", "usr/lib/systemd/logind.conf")
        assert host_environment.login("ben", root).ends_us

    def test_last_drop_in_decides(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, BUILT_IN_NO)
        config(root, "[Login]\nKillUserProcesses=no", "etc/systemd/logind.conf.d/10.conf")
        config(root, "[Login]\nKillUserProcesses=true", "usr/lib/systemd/logind.conf.d/50.conf")
        login = host_environment.login("ben", root)
        assert (login.kills, login.source) == (True, "/usr/lib/systemd/logind.conf.d/50.conf")

    def test_drop_in_of_the_same_name_hides_the_distributions(self, root: Path) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, "[Login]", "etc/systemd/logind.conf.d/50.conf")
        config(root, "[Login]\nKillUserProcesses=yes", "usr/lib/systemd/logind.conf.d/50.conf")
        assert not host_environment.login("ben", root).kills

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
    def test_exempt_user_keeps_processes_at_logout(self, root: Path, said: str, user: str, kills: bool) -> None:
        write(root, proc__self__cgroup=SESSION)
        config(root, f"[Login]\nKillUserProcesses=yes\n{said}")
        assert host_environment.login(user, root).kills == kills

    def test_last_logout_ends_the_users_services(self, root: Path) -> None:
        write(root, proc__self__cgroup=MANAGER)
        login = host_environment.login("ben", root)
        assert (login.unit, login.is_session, login.ends_us) == ("user@1000.service", False, True)

    def test_last_logout_keeps_the_services_of_a_lingering_user(self, root: Path) -> None:
        write(root, proc__self__cgroup=MANAGER, var__lib__systemd__linger__ben="")
        assert not host_environment.login("ben", root).ends_us


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
    def test_cgroup_version_is_read_from_the_mounts(self, root: Path, groups: str, version: str) -> None:
        write(root, proc__self__cgroup=groups)
        assert host_environment.cgroup_version(root) == version

    def test_counter_of_kills_for_memory_is_detected(self, root: Path) -> None:
        assert not host_environment.counts_kills(root)
        write(root, proc__vmstat="nr_free_pages 7\noom_kill 3")
        assert host_environment.counts_kills(root)

    def test_swap_is_read_in_bytes(self, root: Path) -> None:
        assert host_environment.swap(root) == 0
        write(root, proc__meminfo="MemTotal:  8 kB\nSwapTotal:    2048 kB\nSwapFree: 1 kB")
        assert host_environment.swap(root) == 2048 * 1024

    def test_kernel_of_wsl_is_detected(self, root: Path) -> None:
        assert not host_environment.in_wsl(root)
        write(root, proc__sys__kernel__osrelease="5.15.167.4-microsoft-standard-WSL2")
        assert host_environment.in_wsl(root)

    def test_missing_shared_memory_is_none(self, root: Path) -> None:
        assert host_environment.shared_memory(root / "shm") is None
        size, free = host_environment.shared_memory(root) or (0, 0)
        assert size >= free > 0

    def test_process_limits_are_read_from_the_cgroup(self, root: Path) -> None:
        write(root, own="0::/a/b")
        config(root, "100", "groups/a/pids.max")
        config(root, "7", "groups/a/pids.current")
        config(root, "max", "groups/a/b/pids.max")
        found = list(cgroups.process_limits(root / "groups", root / "own"))
        assert found == [(root / "groups/a", 100, 7)]

    def test_ulimits_are_numbers_or_none(self) -> None:
        limits = {limit.name: limit for limit in host_environment.ulimits()}
        assert limits["open files"].flag == "-n"
        assert all(limit.soft is None or limit.soft >= 0 for limit in limits.values())
