"""Programs that cannot start as they were told: the hint in their reason."""

from __future__ import annotations

import pytest

from scheduler.core.attempts.start_faults import hint

UUID = "GPU-5f2c9d1e-8c1b-4d55-9a0e-4b6c8f9d7a21"
NUMBERS = "it takes a GPU's UUID for a number: give it numbers with --visible index"
LAUNCHER = """
E1120 07:10:01.123000 4711 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""


@pytest.mark.parametrize(
    "line",
    [
        f"ValueError: invalid literal for int() with base 10: '{UUID}'",
        f"ValueError: could not convert string to float: '{UUID}'",
        f"train.py: error: argument --gpu: invalid int value: '{UUID}'",
        f"RuntimeError: Invalid device string: 'cuda:{UUID}'",
        f"ValueError: No slot '{UUID}' specified on host 'localhost'",
        f"  Input should be a valid integer [type=int_parsing, input_value='{UUID}', input_type=str]",
        f'panic: strconv.Atoi: parsing "{UUID}": invalid syntax',
    ],
)
@pytest.mark.parametrize("after", ["", LAUNCHER])
def test_a_program_that_takes_a_uuid_for_a_number_is_told_how_to_get_numbers(line: str, after: str) -> None:
    assert hint(f"epoch 1\nTraceback (most recent call last):\n{line}\n{after}") == NUMBERS


@pytest.mark.parametrize(
    ("line", "which"),
    [
        (
            (
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
                "address. port: 12355, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            ),
            "port 12355",
        ),
        ("OSError: [Errno 98] Address already in use", "its port"),
    ],
)
def test_a_program_whose_port_is_taken_is_told_which_one_is_its_own(line: str, which: str) -> None:
    assert hint(line) == f"{which} is in use: let it read its port from MASTER_PORT, which no other task gets"


@pytest.mark.parametrize(
    "output",
    [
        "",
        "ValueError: invalid literal for int() with base 10: 'seven'",
        f"CUDA_VISIBLE_DEVICES={UUID}\nValueError: shapes do not match",
        f"ValueError: invalid literal for int() with base 10: '{UUID}'\nKeyError: 'lr'",
        "OSError: [Errno 98] Address already in use, trying the next port\nValueError: no data",
        f"RuntimeError: CUDA error: device-side assert on {UUID}",
    ],
)
def test_any_other_last_error_gets_no_hint(output: str) -> None:
    assert hint(output) == ""
