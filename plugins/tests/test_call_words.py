"""The words of a call, by which its memory is learned: names, attributes, overrides, and what has no name."""

from __future__ import annotations

import functools

from gpu_batch_scheduler_plugins.call_words import name_of_call, words_of_call


class Training:
    def __init__(self, width: int) -> None:
        self.width = width
        self.weights = [0.0] * width
        self._saved = 1

    def __call__(self, lr: float) -> float:
        return lr


def train(lr: float, width: int = 64) -> float:
    return lr * width


def test_function_is_shown_by_its_file_its_name_and_its_arguments() -> None:
    words = words_of_call(functools.partial(train, 0.1), (), {"width": 8})
    assert words == [__file__, "train", "--lr=0.1", "--width=8"]
    assert name_of_call(functools.partial(train, 0.1)) == "train"


def test_object_that_is_called_shows_its_plain_attributes() -> None:
    words = words_of_call(Training(8), (0.1,), {})
    assert words[1] == "Training"
    assert "--width=8" in words
    assert not [word for word in words if "saved" in word or "weights" in word]


def test_overrides_in_a_list_are_words_of_their_own() -> None:
    words = words_of_call(train, (["lr=0.1", "db={id}"],), {})
    assert words[-2:] == ["lr=0.1", "db={{id}}"]


def test_wrapper_of_a_slot_which_has_no_module_is_shown_by_its_name() -> None:
    class Plain:
        pass

    assert words_of_call(Plain.__call__, (), {})[-1] == "type.__call__"
