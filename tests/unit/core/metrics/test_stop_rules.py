"""The rules of --stop-when and --keep-best, as users write them."""

from __future__ import annotations

import math
import re

import pytest

from scheduler.core.metrics.goal import Goal
from scheduler.core.metrics.stop_rules import KeepBest, StopRule, keep_best, stop_rules, wanted


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("val_loss > 2 after 3", [StopRule("val_loss", ">", 2.0, 3.0)]),
        ("val_loss>2", [StopRule("val_loss", ">", 2.0)]),
        ("val/acc <= .5e-1 AFTER 300", [StopRule("val/acc", "<=", 0.05, 300.0)]),
        ("loss is nan", [StopRule("loss", "is nan")]),
        ("loss IS NaN after 2, acc < 0.1", [StopRule("loss", "is nan", 0.0, 2.0), StopRule("acc", "<", 0.1)]),
        ("x >= -1", [StopRule("x", ">=", -1.0)]),
        ("", []),
    ],
)
def test_rules_are_read_as_they_are_written(text: str, rules: list[StopRule]) -> None:
    assert list(stop_rules(text)) == rules


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("val_loss > two after 3", "column 12: 'two' instead of a number"),
        ("val_loss", "column 9: >, >=, <, <= or is is missing"),
        ("> 2", "column 1: '>' instead of the name of a metric"),
        ("val_loss = 2", "column 10: '=' instead of >, >=, <, <= or is"),
        ("val_loss is infinite", "column 13: 'infinite' instead of nan"),
        ("val_loss > 2 past 3", "column 14: 'past' instead of after STEP, or a comma"),
        ("val_loss > 2 after", "column 19: a step, such as 3 is missing"),
        ("val_loss > 2 after 3 epochs", "column 22: 'epochs' instead of a comma"),
        ("val_loss > 2x", "column 12: '2x' instead of a number"),
        ("a > 1, ,b > 2", "column 7: a rule is missing"),
        ("a > 1, b > nan", "column 12: 'nan' instead of a number"),
        (", ".join(["a > 1"] * 33), "33 rules: at most 32"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ValueError, match=re.escape(place)):
        stop_rules(text)


def test_a_condition_counts_from_its_step_on() -> None:
    rule = StopRule("loss", ">", 2.0, 3.0)
    assert [rule.is_met(2.5, step) for step in (2, 3, 4)] == [False, True, True]
    assert not rule.is_met(2.0, 5)


@pytest.mark.parametrize(("sign", "met"), [(">", False), ("<=", False), ("is nan", True)])
def test_only_is_nan_is_met_by_what_is_no_number(sign: str, met: bool) -> None:
    assert StopRule("loss", sign, 1.0).is_met(math.nan, 1) is met


def test_an_infinite_loss_is_above_any_bound_and_no_number() -> None:
    assert StopRule("loss", ">", 2.0).is_met(math.inf, 1)
    assert StopRule("loss", "is nan").is_met(math.inf, 1)
    assert not StopRule("loss", "is nan").is_met(1.0, 1)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("1/3 by val_acc at 3,9,27", KeepBest(1 / 3, "val_acc", Goal.MAX, (3.0, 9.0, 27.0))),
        ("25% by val_loss at 5", KeepBest(0.25, "val_loss", Goal.MIN, (5.0,))),
        ("0.5 by max:time at 1, 2", KeepBest(0.5, "time", Goal.MAX, (1.0, 2.0))),
        ("0.5 by min:val_acc at 1", KeepBest(0.5, "val_acc", Goal.MIN, (1.0,))),
    ],
)
def test_successive_halving_is_read_as_it_is_written(text: str, rule: KeepBest) -> None:
    assert keep_best(text) == rule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1/3", "does not say by which metric"),
        ("1/3 by val_acc", "does not say at which steps"),
        ("3 by val_acc at 3", "'3' is not a share between 0 and 1"),
        ("1/0 by val_acc at 3", "'1/0' is not a share between 0 and 1"),
        ("third by val_acc at 3", "'third' is not a share between 0 and 1"),
        ("1/3 by val_acc at 9,3", "give rising steps above 0"),
        ("1/3 by val_acc at 0,3", "give rising steps above 0"),
        ("1/3 by val_acc at 3,x", "give rising steps above 0"),
        ("1/3 by val_acc at 1,inf", "give rising steps above 0"),
        ("1/3 by best:val_acc at 1", "by best:val_acc: give the name of a metric"),
        ("1/3 of val_acc at 1", "write --keep-best 1/3 --by val_acc --at 3,9,27"),
    ],
)
def test_successive_halving_that_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        keep_best(text)


def test_every_metric_that_a_rule_needs_is_watched_once() -> None:
    assert wanted("val_loss > 2, loss is nan", "1/2 by val/loss at 3") == "val/loss,loss"
    assert wanted("", "") == ""
