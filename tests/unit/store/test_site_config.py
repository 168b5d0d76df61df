"""The site file of root: when it counts, its settings and rules, and what is refused in it."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from scheduler.core.site_policy import NO_CAPS, Caps
from scheduler.errors import UsageError
from scheduler.runtime import site_file
from scheduler.runtime.settings import read_settings
from scheduler.store.machine import device_reservations, site_config
from scheduler.store.machine.device_reservations import DeviceReservation
from scheduler.store.machine.lease_directory import make_directory
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.machine.site_config import DISABLE, RESERVE, SiteConfig, SiteConfigReader
from scheduler.units import GIB

ME = os.getuid()
NAME = pwd.getpwuid(ME).pw_name
ELSE = 4711


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a site file that belongs to the user of this test, who counts as root, in place of the machine's own."""
    path = tmp_path / "machine.toml"
    monkeypatch.setattr(site_file, "PLACE", str(path))
    monkeypatch.setattr(site_file, "ROOT", ME)
    return path


def write(file: Path, text: str, mode: int = 0o644) -> None:
    file.write_text(text)
    file.chmod(mode)


def rules(uid: int = ELSE) -> SiteConfig:
    return site_config.read({}, uid)


class TestValidity:
    def test_without_a_site_file_there_are_no_rules(self, file: Path) -> None:
        assert (rules().caps.some, rules().devices, rules().allows(ELSE, RESERVE)) == (False, "", False)

    def test_a_site_file_of_root_counts(self, file: Path) -> None:
        write(file, "[quotas]\ngpus = 2\n")
        assert rules().caps.gpus == 2

    @pytest.mark.parametrize("mode", [0o646, 0o664, 0o666])
    def test_a_site_file_that_others_can_write_is_ignored(self, file: Path, mode: int) -> None:
        write(file, "unmanaged = 'ignore'\n[quotas]\ngpus = 2\n", mode)
        assert rules().caps == Caps(source=f"[quotas] in {file}")
        settings = read_settings({}, {})
        assert (settings.unmanaged, settings.ignored) == (
            "headroom",
            f"{file} can be written by users other than root, so it is ignored: sudo chmod 644 {file}",
        )

    def test_a_site_file_of_another_user_is_ignored(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site_file, "ROOT", ME + 1)
        write(file, "[quotas]\ngpus = 2\n")
        assert not rules().caps.some
        assert f"belongs to user {ME} and not to root, so it is ignored" in site_file.read({}).why_not

    @pytest.mark.parametrize("plant", ["pipe", "folder"])
    def test_a_pipe_or_folder_in_place_of_the_site_file_is_ignored(self, file: Path, plant: str) -> None:
        if plant == "pipe":
            os.mkfifo(file)
        else:
            file.mkdir()
        assert "is ignored" in site_file.read({}).why_not

    def test_another_site_file_can_be_named_where_the_machine_has_none(self, file: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.toml"
        write(other, "[quotas]\ngpus = 3\n")
        named = {site_file.ELSEWHERE: str(other)}
        assert site_config.read(named, ELSE).caps.gpus == 3
        write(file, "[quotas]\ngpus = 2\n")
        assert site_config.read(named, ELSE).caps.gpus == 2, "the machine's own file cannot be replaced"


class TestPrecedence:
    def test_settings_come_from_flag_environment_users_file_site_file_default(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        own = tmp_path / ".config/gpu-batch-scheduler/config.toml"
        own.parent.mkdir(parents=True)
        own.write_text("num = 3\norder = 'global'\nbuffer = '3GiB'\n")
        write(file, "num = 4\norder = 'batch'\nbuffer = '4GiB'\nmax_load = 0.4\nleases = '/from/root'\n")
        settings = read_settings({"num": "1"}, {"SCHEDULER_NUM": "2", "SCHEDULER_ORDER": "batch"})
        assert (settings.num, settings.order, settings.buffer) == (1, "batch", 3 * GIB)
        assert (settings.max_load, settings.leases, settings.max_gpu_load) == (0.4, "/from/root", 2.0)
        users = "~/.config/gpu-batch-scheduler/config.toml"
        assert settings.source == {
            "num": "flag", "order": "environment", "buffer": users, "max_load": str(file), "leases": str(file),
        }  # fmt: skip

    def test_the_users_file_is_below_xdg_config_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        for base, num in ((".config", 3), ("elsewhere", 5)):
            own = tmp_path / base / "gpu-batch-scheduler/config.toml"
            own.parent.mkdir(parents=True)
            own.write_text(f"num = {num}\n")
        said = read_settings({}, {"XDG_CONFIG_HOME": str(tmp_path / "elsewhere")})
        assert (said.num, said.source["num"]) == (5, "~/elsewhere/gpu-batch-scheduler/config.toml")
        assert read_settings({}, {"XDG_CONFIG_HOME": "relative"}).num == 3
        assert read_settings({}, {"XDG_CONFIG_HOME": ""}).num == 3

    @pytest.mark.parametrize("name", ["state", "leases", "python", "notify", "memory_args", "num"])
    @pytest.mark.parametrize(
        ("said", "says"),
        [
            ('"a\\u0000b"', "it contains a NUL byte"),
            ("true", "True is neither a text nor a number"),
            ("['a']", "is neither a text nor a number"),
        ],
    )
    def test_an_unusable_value_is_refused_with_its_name_and_place(
        self, file: Path, name: str, said: str, says: str
    ) -> None:
        write(file, f"{name} = {said}\n")
        with pytest.raises(UsageError, match=rf"^{name} \({file}\): .*{says}$"):
            read_settings({}, {})

    @pytest.mark.parametrize("name", ["state", "leases"])
    def test_a_home_of_a_user_that_does_not_exist_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match=rf"^{name} \(environment\): '~nosuch' is no user's home directory here$"):
            read_settings({}, {f"SCHEDULER_{name.upper()}": "~nosuch/x"})

    def test_a_count_that_no_machine_could_reach_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"^num \(environment\): 9{20}\.\.\. is above 1,000,000,000,000$"):
            read_settings({}, {"SCHEDULER_NUM": "9" * 400})

    def test_a_file_of_endless_brackets_is_refused_in_one_sentence(self, tmp_path: Path) -> None:
        own = tmp_path / "gpu-batch-scheduler/config.toml"
        own.parent.mkdir()
        own.write_text("state = " + "[" * 5000)
        with pytest.raises(UsageError, match=r"config.toml cannot be read: "):
            read_settings({}, {"XDG_CONFIG_HOME": str(tmp_path)})

    def test_a_users_setting_with_a_misspelled_name_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        own = tmp_path / ".config/gpu-batch-scheduler/config.toml"
        own.parent.mkdir(parents=True)
        own.write_text("bufer = '3GiB'\n")
        with pytest.raises(UsageError, match=r"config.toml: there is no setting 'bufer'; there are buffer, cgroup, "):
            read_settings({}, {})

    @pytest.mark.parametrize(
        ("name", "text", "says"),
        [
            ("num", "x", "--num: 'x' is not a whole number"),
            ("max_load", "half", "--max-load: 'half' is not a number"),
            ("margin", "x%", "--margin: 'x' is not a number"),
            ("disk_min", "1GiB,x%", "--disk-min: 'x' is not a number"),
        ],
    )
    def test_a_text_that_is_no_number_is_refused_with_the_flag(self, name: str, text: str, says: str) -> None:
        with pytest.raises(UsageError, match=f"^{says}$"):
            read_settings({name: text}, {})

    def test_an_invalid_value_is_named_with_its_file(self, file: Path) -> None:
        write(file, "num = 0\n")
        with pytest.raises(UsageError, match=rf"num \({file}\): 0 is below 1"):
            read_settings({}, {})


class TestQuotas:
    def test_all_quotas_are_read_with_their_source(self, file: Path) -> None:
        write(file, "[quotas]\ngpus = 2\nmemory = '40GiB'\nhost_memory = '64GiB'\ntasks = 8\n")
        assert rules().caps == Caps(2, 40 * GIB, 64 * GIB, 8, f"[quotas] in {file}")

    def test_quotas_of_a_user_come_before_quotas_of_all_users(self, file: Path) -> None:
        write(file, f"[quotas]\ngpus = 2\ntasks = 8\n[quotas.users.{NAME}]\ngpus = 4\ntasks = 'none'\n")
        assert rules(ME).caps == Caps(gpus=4, source=f"[quotas.users.{NAME}] in {file}")
        assert rules().caps == Caps(gpus=2, tasks=8, source=f"[quotas] in {file}")

    def test_quotas_of_other_users_are_read_too(self, file: Path) -> None:
        write(file, f"[quotas]\ngpus = 2\n[quotas.users.{ELSE}]\ntasks = 3\n")
        quotas = rules(ME).quotas
        assert (quotas.of(ME).gpus, quotas.of(ME).tasks) == (2, None)
        assert (quotas.of(ELSE).gpus, quotas.of(ELSE).tasks) == (2, 3)

    def test_a_quota_can_name_a_user_by_number(self, file: Path) -> None:
        write(file, f"[quotas.users.{ELSE}]\ngpus = 1\n")
        assert rules().caps.gpus == 1

    def test_a_rule_for_an_account_that_is_gone_restricts_no_other_user(self, file: Path) -> None:
        write(file, "[quotas.users.no-such-user-here]\ngpus = 1\n[may]\nreserve = ['no-such-user-here', '@no-such']\n")
        assert rules().caps.some is False
        assert set(rules().unknown) == {"no-such-user-here", "@no-such"}

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("[quotas]\ngpu = 1\n", r"\[quotas\]: 'gpu' is unknown; known are gpus, host_memory, memory, tasks"),
            ("[quotas]\ngpus = 0\n", r"\[quotas\], gpus: 0 is below 1"),
            ("[quotas]\nmemory = 40\n", r"\[quotas\], memory: "),
            ("quotas = 3\n", r"quotas is a table: write \[quotas\]"),
            ("[quotas.users]\nben = 3\n", r"quotas.users.ben is a table"),
            ("[may]\nreserve = 7\n", r"\[may\], reserve: give a list of users and groups"),
            ("[may]\ncancel = ['ben']\n", r"\[may\]: 'cancel' is unknown; known are disable, reserve"),
            ("foreing = 'avoid'\n", "'foreing' is unknown"),
        ],
    )
    def test_rules_that_could_never_apply_are_refused(self, file: Path, text: str, sentence: str) -> None:
        write(file, text)
        with pytest.raises(UsageError, match=sentence):
            rules()


class TestRights:
    def test_root_has_every_right(self, file: Path) -> None:
        assert rules().allows(ME, RESERVE)
        assert rules().allows(ME, DISABLE)

    def test_other_users_have_the_rights_they_are_named_for(self, file: Path) -> None:
        write(file, f"[may]\nreserve = ['{ELSE}']\ndisable = '*'\n")
        assert (rules().allows(ELSE, RESERVE), rules().allows(ELSE + 1, RESERVE)) == (True, False)
        assert rules().allows(ELSE + 1, DISABLE)

    def test_a_rule_for_a_group_holds_for_all_members_that_id_lists(self, file: Path) -> None:
        others = [user for user in pwd.getpwall() if user.pw_uid != ME]
        user = next(user for user in others if user.pw_name not in grp.getgrgid(user.pw_gid).gr_mem)
        write(file, f"[may]\nreserve = ['@{grp.getgrgid(user.pw_gid).gr_name}']\n")
        told = {one.pw_uid for one in others if user.pw_gid in os.getgrouplist(one.pw_name, one.pw_gid)}
        allowed = {one.pw_uid for one in others if rules().allows(one.pw_uid, RESERVE)}
        assert user.pw_uid in allowed == told
        assert not rules().allows(ELSE, RESERVE)

    @pytest.mark.skipif(ME != 0, reason="only root can give files to another user")
    def test_the_members_of_a_group_are_read_before_the_mutex_is_taken(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A directory service may take its time, and all schedulers of the machine would wait for it."""
        user = next(user for user in pwd.getpwall() if user.pw_uid != ME)
        write(file, f"[may]\ndisable = ['@{grp.getgrgid(user.pw_gid).gr_name}']\n")
        leases, told, real = make_directory(str(tmp_path / "leases")), list[bool](), os.getgrouplist
        device_reservations.close(leases, [DeviceReservation("GPU-a", ME)])
        (made,) = leases.glob("closed.*")
        os.chown(made.rename(leases / f"closed.{user.pw_uid}.{made.suffix[1:]}"), user.pw_uid, -1)
        monkeypatch.setattr(os, "getgrouplist", lambda *who: told.append(is_locked(leases)) or real(*who))
        registry = FileLeaseRegistry(leases, "1-a", "boot")
        with registry.deciding() as transaction:
            assert [*transaction.house().closed] == ["GPU-a"]
        registry.close()
        assert told == [False]


class TestFollowing:
    def test_a_changed_site_file_applies_from_the_next_look_on(self, file: Path) -> None:
        follower = SiteConfigReader(ELSE, {})
        assert not follower.now().caps.some
        write(file, "[quotas]\ngpus = 2\n")
        assert follower.now().caps.gpus == 2
        file.unlink()
        assert follower.now().caps == NO_CAPS or not follower.now().caps.some

    def test_an_invalid_change_of_the_site_file_keeps_the_earlier_rules(self, file: Path) -> None:
        write(file, "[quotas]\ngpus = 2\n")
        follower = SiteConfigReader(ELSE, {})
        write(file, "[quotas]\ngpus = \n")
        assert follower.now().caps.gpus == 2
