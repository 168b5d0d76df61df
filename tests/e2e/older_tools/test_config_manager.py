"""The configuration of Python tasks, to the letter."""

from __future__ import annotations

import os
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from scheduler import ConfigError, ConfigManager
from tests.e2e.older_tools.contracts import contract

SAMPLE: dict[str, Any] = {
    "scheduler_config": {"gpu": ["0", "1", "2"]},
    "global_config": {"num_run": 5, "num_epoch": 200},
    "test_config": [
        {"method": ["GAN", "ALI"], "num_packing": [1], "num_zmode": [1]},
        {"method": ["WGAN"], "num_packing": [3], "num_zmode": [1, 2]},
    ],
}
"""The document's own example."""


def manager(*test: dict[str, Any], **said: Any) -> ConfigManager:
    return ConfigManager({"scheduler_config": {"gpu": ["0"], **said}, "test_config": list(test)})


def everything(of: ConfigManager) -> list[dict[str, Any]]:
    found = []
    while (one := of.get_next_config())["config"] is not None:
        found.append(one)
    return found


def folders(*test: dict[str, Any], **said: Any) -> list[str]:
    return [one["test_config_string_filtered"] for one in everything(manager(*test, **said))]


@contract("S4-05", "S4-06")
def test_the_documents_example_gives_the_documents_instances() -> None:
    assert [one["config"] for one in everything(ConfigManager(deepcopy(SAMPLE)))] == [
        {"num_run": 5, "num_epoch": 200, "method": "GAN", "num_packing": 1, "num_zmode": 1},
        {"num_run": 5, "num_epoch": 200, "method": "ALI", "num_packing": 1, "num_zmode": 1},
        {"num_run": 5, "num_epoch": 200, "method": "WGAN", "num_packing": 3, "num_zmode": 1},
        {"num_run": 5, "num_epoch": 200, "method": "WGAN", "num_packing": 3, "num_zmode": 2},
    ]


@contract("S4-01")
def test_the_defaults_are_filled_in_place() -> None:
    config: dict[str, Any] = {"scheduler_config": {"gpu": ["0", ["1", "2"]]}}
    ConfigManager(config)
    assert config["scheduler_config"]["gpu"] == ["0", "1,2"]
    assert config["scheduler_config"]["log_file"] == "worker.log"


@contract("S4-02")
def test_all_settings_have_the_documented_defaults() -> None:
    said = manager().get_all_scheduler_config()
    assert said == {
        "gpu": ["0"],
        "force_rerun": False,
        "result_root_folder": os.path.abspath("results/"),
        "test_config_string_separator": ",",
        "test_config_string_indicator": "-",
        "test_config_string_inst_separator": "+",
        "temp_folder": os.path.abspath("temp/"),
        "log_file": "worker.log",
        "scheduler_log_file_path": "scheduler.log",
        "config_string_value_maxlen": 30,
        "ignored_keys_for_folder_name": [],
        "ignored_characters_for_folder_name": [" ", "[", "]"],
    }


@contract("S4-03")
def test_reading_a_configuration_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    everything(manager({"a": [1]}))
    assert list(tmp_path.iterdir()) == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no scheduler": ({}, "could not find scheduler_config in config"),
    "no gpu": ({"scheduler_config": {}}, "could not find gpu in scheduler_config"),
    "an empty list": ({"scheduler_config": {"gpu": []}}, "please specify at least one gpu in scheduler_config"),
    "a number": ({"scheduler_config": {"gpu": 0}}, "gpu can only be a string or a list of strings"),
    "an empty tuple": ({"scheduler_config": {"gpu": ()}}, "please specify at least one gpu in scheduler_config"),
    "a dictionary": ({"scheduler_config": {"gpu": {"0": 1}}}, "gpu can only be a string or a list of strings"),
    "a truth value": ({"scheduler_config": {"gpu": [True]}}, "gpu can only be a string or a list of strings"),
    "a list of floats": ({"scheduler_config": {"gpu": [0.5]}}, "gpu can only be a string or a list of strings"),
}


class TestGpus:
    @contract("S4-04")
    @pytest.mark.parametrize("wrong", WRONG)
    def test_a_value_that_is_no_list_of_gpus_is_refused_in_the_old_words(self, wrong: str) -> None:
        config, words = WRONG[wrong]
        with pytest.raises(ValueError, match=words):
            ConfigManager(config)

    @contract("S4-04")
    def test_a_text_is_one_gpu_for_each_character(self) -> None:
        assert ConfigManager({"scheduler_config": {"gpu": "01"}}).get_num_gpu() == 2

    @contract("S4-04")
    def test_numbers_are_taken_as_gpus(self) -> None:
        assert ConfigManager({"scheduler_config": {"gpu": [0, [1, 2]]}}).get_all_scheduler_config()["gpu"] == [
            "0",
            "1,2",
        ]

    @contract("S4-10")
    def test_each_gpu_entry_gives_its_environment(self) -> None:
        envs = ConfigManager({"scheduler_config": {"gpu": ["0", ["1", "2"]]}}).get_gpu_envs()
        assert envs == [
            {"name": "gpu0", "env": {"CUDA_VISIBLE_DEVICES": "0"}},
            {"name": "gpu1,2", "env": {"CUDA_VISIBLE_DEVICES": "1,2"}},
        ]

    def test_gpu_auto_is_one_entry_without_a_variable(self) -> None:
        assert ConfigManager({"scheduler_config": {"gpu": "auto"}}).get_gpu_envs() == [{"name": "auto", "env": {}}]


SHAPE = "test_config is a list of dictionaries, each of names and lists of values"


class TestCombinations:
    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ({"a": [1]}, SHAPE),
            ([["a", 1]], SHAPE),
            ("a", SHAPE),
            ([{"a": 1}], r"test_config: 'a' is 1, which is no list of values: write \[1\]"),
        ],
    )
    def test_a_configuration_that_is_no_list_of_values_is_refused(self, said: Any, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            ConfigManager({"scheduler_config": {"gpu": "0"}, "test_config": said})

    @contract("S4-05")
    def test_the_last_key_changes_fastest(self) -> None:
        of = manager({"b": "xy", "a": range(2)})
        listed = of.get_all_test_config()
        assert listed == [{"b": "x", "a": 0}, {"b": "x", "a": 1}, {"b": "y", "a": 0}, {"b": "y", "a": 1}]
        assert [one["config"] for one in everything(of)] == listed

    @contract("S4-05")
    def test_a_configuration_without_variants_is_one_and_an_empty_list_is_none(self) -> None:
        assert [one["config"] for one in everything(ConfigManager({"scheduler_config": {"gpu": "0"}}))] == [{}]
        assert everything(manager()) == []

    @contract("S4-06")
    def test_values_of_the_test_override_and_no_two_combinations_share_an_object(self) -> None:
        shared: dict[str, Any] = {"layers": [1], "lr": 1}
        config = {"scheduler_config": {"gpu": "0"}, "global_config": shared, "test_config": [{"lr": [2, 3]}]}
        first, second = (one["config"] for one in everything(ConfigManager(config)))
        first["layers"].append(2)
        assert (second, shared) == ({"layers": [1], "lr": 3}, {"layers": [1], "lr": 1})

    @contract("S4-07", "S4-10")
    def test_combinations_are_given_one_after_another(self) -> None:
        of = manager({"a": [1, 2]}, result_root_folder="out")
        assert of.get_num_left_config() == 2
        assert of.get_next_config(create_dir=True) == {
            "config": {"a": 1},
            "test_config_string": "a-1,",
            "test_config_string_filtered": "a-1,",
            "work_dir": "out/a-1,",
        }
        assert of.get_num_left_config() == 1
        of.get_next_config()
        assert of.get_next_config() == of.get_next_config() == {"config": None}

    @contract("S4-11")
    def test_combinations_with_keys_that_cannot_be_sorted(self) -> None:
        with pytest.raises(TypeError):
            manager({"a": [1], 2: [1]}).get_next_config()  # type: ignore[dict-item]


class TestFolders:
    @contract("S4-08")
    def test_keys_are_sorted_and_each_ends_with_the_separator(self) -> None:
        assert folders({"num_zmode": [1], "method": ["GAN"], "num_packing": [1]}) == [
            "method-GAN,num_packing-1,num_zmode-1,"
        ]

    @contract("S4-08")
    def test_values_are_cut_keys_ignored_and_characters_removed(self) -> None:
        said = {"config_string_value_maxlen": 6, "ignored_keys_for_folder_name": ["b"]}
        assert folders({"a": [[1, 2, 3]], "b": [7]}, **said) == ["a-1,2,,"]

    @contract("S4-08")
    def test_the_indicator_and_separator_of_folders_can_be_set(self) -> None:
        said = {"test_config_string_indicator": "=", "test_config_string_separator": ";"}
        assert folders({"a": [1], "b": [2]}, **said) == ["a=1;b=2;"]

    @contract("S4-09")
    def test_folders_are_below_the_root_as_it_was_given(self) -> None:
        (one,) = everything(manager({"a": [1]}, result_root_folder="../out"))
        assert one["work_dir"] == "../out/a-1,"
        (empty,) = everything(manager({}, result_root_folder="out/"))
        assert empty["work_dir"] == "out/"

    @contract("S4-10")
    def test_all_combinations_can_be_had_as_one_text(self) -> None:
        assert ConfigManager(deepcopy(SAMPLE)).get_all_test_config_in_string() == (
            "method-['GAN', 'ALI'],num_packing-[1],num_zmode-[1],+method-['WGAN'],num_packing-[3],num_zmode-[1, 2],+"
        )
        with pytest.raises(KeyError):
            ConfigManager({"scheduler_config": {"gpu": "0"}}).get_all_test_config_in_string()

    @contract("S4-10")
    def test_the_getters_return_configurations_and_number_of_gpus(self) -> None:
        of = ConfigManager(deepcopy(SAMPLE))
        assert of.get_all_global_config() == SAMPLE["global_config"]
        assert of.get_all_test_config() == [
            {"method": "GAN", "num_packing": 1, "num_zmode": 1},
            {"method": "ALI", "num_packing": 1, "num_zmode": 1},
            {"method": "WGAN", "num_packing": 3, "num_zmode": 1},
            {"method": "WGAN", "num_packing": 3, "num_zmode": 2},
        ]
        assert of.get_num_gpu() == 3

    @contract("S4-D9")
    def test_names_that_only_cutting_made_equal_have_different_folders(self) -> None:
        first, second, third = folders({"data": ["x" * 30 + "1", "x" * 30 + "2", "x" * 30 + "2"]})
        assert first == f"data-{'x' * 30},"
        assert second.startswith(first + "~")
        assert third == second
        several = folders({"data": ["x" * 30 + end for end in "1234"]})
        assert len(set(several)) == 4, "a suffix tells more than two apart"

    @contract("S4-16")
    def test_combinations_that_differ_in_ignored_keys_share_a_folder(self) -> None:
        assert folders({"a": [1], "b": [1, 2]}, ignored_keys_for_folder_name=["b"]) == ["a-1,", "a-1,"]

    @contract("S4-D10")
    def test_a_slash_makes_folders_but_none_outside_of_the_root(self) -> None:
        (inside,) = everything(manager({"a": ["x/y"]}, result_root_folder="out"))
        assert inside["work_dir"] == "out/a-x/y,"
        with pytest.raises(ConfigError, match=r"lies outside of result_root_folder out: no value may lead out of it"):
            everything(manager({"a": ["x/../../../y"]}, result_root_folder="out"))


def test_a_million_combinations_are_counted_at_once_and_given_one_by_one() -> None:
    of = manager({name: range(100) for name in "abc"})
    began = time.process_time()
    assert of.get_num_left_config() == 1_000_000
    assert [of.get_next_config()["work_dir"] for _ in range(2)] == [
        os.path.abspath(f"results/a-0,b-0,c-{c},") for c in (0, 1)
    ]
    assert time.process_time() - began < 1.0
