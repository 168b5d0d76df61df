"""Traces: which rows are accepted, which are refused with which sentence, and what is written."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from scheduler.errors import InputError
from scheduler.simulation.generators import WORKLOADS
from scheduler.simulation.traces import looks_like_trace, read_trace, write_trace
from scheduler.simulation.workload import TraceRow
from scheduler.units import GIB, MIB

HEADER = "job_id,arrival_s,duration_s,peak_mem_mib,gpus,priority,util,epochs,config"


def trace(folder: Path, *lines: str) -> str:
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def one(folder: Path, *lines: str) -> TraceRow:
    (row,) = read_trace(trace(folder, *lines))
    return row


def test_a_row_of_a_trace_has_times_memory_and_fields(tmp_path: Path) -> None:
    row = one(tmp_path, HEADER, "j-1,30,622.5,4008,2,3,0.8,20,resnet --bs 50")
    assert (row.job, row.arrives, row.seconds, row.peak, row.busy) == ("j-1", 30.0, 622.5, 4008 * MIB, 0.8)
    assert (row.spec.command, row.spec.terms.epochs, row.gpus) == ("resnet --bs 50", 20, 2)
    assert row.spec.terms.priority == 3


def test_a_trace_needs_only_time_and_peak(tmp_path: Path) -> None:
    row = one(tmp_path, "peak_mem_mib,Duration_S", "1024,60")
    assert (row.job, row.peak, row.seconds, row.arrives, row.busy) == ("row-2", GIB, 60.0, 0.0, 1.0)
    assert (row.spec.terms.gpus, row.spec.terms.epochs, row.cores) == (None, None, 0.0)


def test_a_trace_may_have_columns_in_any_order_blank_lines_and_a_bom(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfpeak_mem_mib,job_id,duration_s\r\n\r\n100,a,5\r\n,,\r\n200,b,6\r\n")
    assert looks_like_trace(str(path))
    assert [(row.job, row.seconds) for row in read_trace(str(path))] == [("a", 5.0), ("b", 6.0)]


@pytest.mark.parametrize(
    ("header", "is_one"),
    [
        (HEADER, True),
        ("duration_s,peak_mem_mib", True),
        ("Directory,Executable,Filename,Epochs,Priority", False),
        ("Command,duration_s,peak_mem_mib", False),
        ("", False),
    ],
)
def test_a_trace_is_recognised_by_its_header(tmp_path: Path, header: str, is_one: bool) -> None:
    assert looks_like_trace(trace(tmp_path, header)) is is_one


def test_a_missing_file_is_no_trace(tmp_path: Path) -> None:
    assert not looks_like_trace(str(tmp_path / "nothing.csv"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("j,0,soon,4008,1,1,1,20,c", "row 2, column duration_s: 'soon' is not a number"),
        ("j,0,inf,4008,1,1,1,20,c", "row 2, column duration_s: 'inf' is not a number"),
        ("j,0,0,4008,1,1,1,20,c", "row 2, column duration_s: 0 is out of range: at least 0.001"),
        ("j,0,,4008,1,1,1,20,c", "row 2, column duration_s: it is empty"),
        ("j,0,5,-1,1,1,1,20,c", "row 2, column peak_mem_mib: -1 is out of range: at least 0"),
        ("j,0,5,4008,1,1,1.5,20,c", "row 2, column util: 1.5 is out of range: at most 1"),
        ("j,0,5,4008,1.5,1,1,20,c", "row 2, column gpus: 1.5 is not a whole number"),
        ("j,0,5,4008,1,1,1,20,it's", "row 2, column config: "),
        ("j,0,5,4008", "row 2: 4 fields where the header names 9"),
    ],
)
def test_a_bad_row_of_a_trace_is_refused_with_its_place(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(trace(tmp_path, HEADER, line))
    assert str(caught.value).startswith(f"{tmp_path}/trace.csv, {said}")


def test_a_trace_without_its_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 1: it has no column peak_mem_mib, which every trace has"):
        read_trace(trace(tmp_path, "job_id,duration_s"))


def test_a_trace_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"duration_s,peak_mem_mib,job_id\n1,1,\xff\n")
    with pytest.raises(InputError, match="it holds bytes that are not UTF-8"):
        read_trace(str(path))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_written_trace_is_read_again_equal(tmp_path: Path, name: str) -> None:
    make, _ = WORKLOADS[name]
    rows, out = list(make(30, 7)), io.StringIO()
    write_trace(rows, out)
    again = read_trace(trace(tmp_path, *out.getvalue().splitlines()))
    assert again == rows


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_made_up_workload_follows_from_its_seed(name: str) -> None:
    make, _ = WORKLOADS[name]
    assert list(make(50, 7)) == list(make(50, 7)) != list(make(50, 8))


def test_gangs_need_up_to_four_gpus() -> None:
    make, usual = WORKLOADS["gangs"]
    assert {row.gpus for row in make(usual, 1)} == {1, 2, 4}
