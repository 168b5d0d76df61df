"""The memory that ran out, by the messages of each framework; messages that only resemble an out-of-memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.profiling.error_lines import without_code
from scheduler.core.profiling.oom_patterns import OomMatch, killed_for_memory, may_be_gpu_memory, what_ran_out
from scheduler.units import parse_size

WORDS = Path(__file__).parents[3] / "data" / "last-words.txt"


def cases() -> Iterator[tuple[str, str, OomMatch | None]]:
    """Name, message, and what is to be read in it."""
    for case in WORDS.read_text(encoding="utf-8").split("\n## ")[1:]:
        head, _, message = case.partition("\n")
        name, _, what = head.partition(" = ")
        yield name, message, None if what == "nothing" else ran(*what.split(", "))


def ran(part: str, *numbers: str) -> OomMatch:
    said = dict(number.split(" ") for number in numbers)
    position = said.pop("position", None)
    sizes = {name: int(size) if size.isdecimal() else parse_size(size) for name, size in said.items()}
    return OomMatch(part, position=None if position is None else int(position), **sizes)  # type: ignore[arg-type]  # a Part


CASES = {name: (message, what) for name, message, what in cases()}


@pytest.mark.parametrize("name", CASES)
def test_messages_of_frameworks_are_recognised(name: str) -> None:
    message, what = CASES[name]
    assert what_ran_out(message) == what
    assert what_ran_out(f"epoch 1/5 loss 0.3\nTraceback (most recent call last):\n{message}") == what


@pytest.mark.parametrize("name", [name for name, (_, what) in CASES.items() if what is None])
def test_a_different_failure_below_a_handled_out_of_memory_is_no_out_of_memory(name: str) -> None:
    assert what_ran_out(f"{CASES[name][0]}\nKeyError: 'loss'\n") is None


class TestSeveralMessages:
    GPU, PYTHON = CASES["PyTorch, torch 2.5"][0], CASES["RAM, Python"][0]

    def test_the_last_of_several_out_of_memory_messages_counts(self) -> None:
        assert what_ran_out(self.GPU + self.PYTHON) == CASES["RAM, Python"][1]
        assert what_ran_out(self.PYTHON + self.GPU) == CASES["PyTorch, torch 2.5"][1]

    def test_an_out_of_memory_message_in_the_line_of_a_progress_bar_counts(self) -> None:
        assert what_ran_out(f" 5%|▌   | 1/20\r{self.GPU}\r") == CASES["PyTorch, torch 2.5"][1]

    def test_a_harmless_message_does_not_hide_a_failure(self) -> None:
        fine = CASES["TensorFlow does without"][0]
        message, what = CASES["TensorFlow, a tensor"]
        assert what_ran_out(fine + message + fine) == what


class TestFollowingErrors:
    GPU = CASES["PyTorch, torch 2.5"][0]
    KEY = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    table[1]\nKeyError: 1\n'
    DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
    BECAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"

    def test_a_handled_out_of_memory_before_another_error_is_none(self) -> None:
        huge = "Unable to allocate 256. TiB for an array with shape (35184372088832,) and data type float64\n"
        assert what_ran_out(huge + self.KEY) is None
        assert what_ran_out(self.GPU + self.KEY) is None

    @pytest.mark.parametrize("between", [DURING, BECAUSE])
    def test_an_error_raised_while_an_out_of_memory_is_handled_belongs_to_it(self, between: str) -> None:
        assert what_ran_out(self.GPU + between + self.KEY) == CASES["PyTorch, torch 2.5"][1]
        assert what_ran_out(self.GPU + between + self.KEY + self.KEY) is None

    @pytest.mark.parametrize(
        "report",
        [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.",
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "RuntimeError: DataLoader worker (pid(s) 3216) exited unexpectedly",
            "KeyboardInterrupt",
            "RuleException:\nCalledProcessError in line 62 of Snakefile:",
            "java.net.SocketException: Connection reset",
            "0. Poco::Exception::Exception(std::string const&, int) @ 0x18cd2050",
            "  File \"t.py\", line 3, in __del__\nAttributeError: 'Model' object has no attribute 'model'",
        ],
    )
    def test_an_error_that_only_reports_a_failed_process_does_not_hide_an_out_of_memory(self, report: str) -> None:
        said = f"{self.GPU}\nTraceback (most recent call last):\n{report}\n"
        assert what_ran_out(said) == CASES["PyTorch, torch 2.5"][1]

    def test_an_out_of_memory_for_which_a_batch_was_skipped_is_none(self) -> None:
        assert (
            what_ran_out("| WARNING: ran out of memory, skipping batch\nepoch 2\nerror: no such option --x\n") is None
        )

    def test_an_allocation_that_fails_after_an_illegal_access_is_none(self) -> None:
        access = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
        assert what_ran_out(f"{access}[error] Unable to allocate memory of size 4096\n") is None

    @pytest.mark.parametrize("error", ["AttributeError: {}", "KeyError: '{}'", "ImportError: {}", "TypeError: {}"])
    def test_an_attribute_error_that_quotes_an_out_of_memory_is_none(self, error: str) -> None:
        assert what_ran_out(error.format("torch.cuda.OutOfMemoryError, CUDA out of memory")) is None

    @pytest.mark.parametrize(
        "then", ["  Could not load the model from path: a.gguf", "  Value error, x\n  cannot load b"]
    )
    def test_an_exception_whose_indented_lines_report_a_failed_load_follows_from_it(self, then: str) -> None:
        words = "allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory\n"
        assert what_ran_out(f"{words}pydantic.ValidationError: 1 validation error for Model\n{then}\n") is not None
        assert what_ran_out(f"{words}pydantic.ValidationError: 1 validation error for Model\n  seven\n") is None

    def test_source_code_in_a_traceback_is_not_read(self) -> None:
        code = '  File "t.py", line 3, in f\n    raise OutOfMemoryError("CUDA out of memory")\n        ^^^^^\n'
        assert what_ran_out(f"Traceback (most recent call last):\n{code}ValueError: seven\n") is None


class TestProgramsThatGoOn:
    REFUSED = "allocating 51748.72 MiB on device 1: cudaMalloc failed: out of memory\n"

    @pytest.mark.parametrize(
        "then",
        [
            "compute buffer allocation failed, retrying without pipeline parallelism",
            "CUDA out of memory: falling back to the CPU",
            "CUDA memory allocation failed; attempting to free up memory...",
        ],
    )
    def test_a_refusal_before_a_second_try_is_no_out_of_memory(self, then: str) -> None:
        assert what_ran_out(f"{self.REFUSED}{then}\n") is None
        assert what_ran_out(f"{self.REFUSED}{then}\n{self.REFUSED}") is not None, "the second try failed too"

    def test_a_refusal_is_no_out_of_memory_if_the_next_line_reports_a_second_try(self) -> None:
        assert what_ran_out(f"{self.REFUSED}Will keep trying for 10 seconds...\nepoch 1\n") is None
        assert what_ran_out(f"{self.REFUSED}epoch 1\n") is not None

    def test_a_refusal_beside_a_part_that_was_left_out_is_an_out_of_memory(self) -> None:
        assert what_ran_out(f"{self.REFUSED}Skipping tactic: error allocating 15485030400-byte buffer\n") is not None


class TestWhichMemory:
    """Words that are mostly about the host, near words about a GPU."""

    @pytest.mark.parametrize(("between", "part"), [(0, "gpu"), (2, "gpu"), (3, "host"), (20, "host")])
    def test_a_gpu_in_the_lines_before_decides_as_far_as_it_is_near(self, between: int, part: str) -> None:
        found = what_ran_out("copying the weights to cuda:0\n" + "epoch\n" * between + "Cannot allocate memory\n")
        assert found is not None
        assert found.part == part

    def test_a_gpu_in_the_lines_behind_decides_before_those_in_front(self) -> None:
        found = what_ran_out("host memory is checked\nout of memory\n  while copying to cuda:0\n")
        assert found is not None
        assert found.part == "gpu"


class TestPresentation:
    GPU, WHAT = CASES["PyTorch, torch 2.5"]

    def test_a_message_in_colours_is_recognised(self) -> None:
        coloured = self.GPU.replace("CUDA", "\x1b[1;31mCUDA\x1b[0m").replace("out of", "out\x1b[38;5;9m of\x1b]0;x\x07")
        assert what_ran_out(coloured) == self.WHAT

    def test_a_message_in_a_frame_is_recognised_and_the_source_code_in_it_is_not_read(self) -> None:
        frame = "╭───── Traceback (most recent call last) ─────╮\n"
        frame += "│ /t.py:12 in <module>                         │\n"
        frame += "│ ❱ 12 │   raise MemoryError('code')           │\n"
        frame += "╰──────────────────────────────────────────────╯\n"
        assert what_ran_out(frame + "ValueError: seven\n") is None
        assert what_ran_out(frame + self.GPU) == self.WHAT
        inside = "│ OutOfMemoryError: CUDA out of memory. Tried  │\n│ to allocate 1.95 GiB. GPU 0 has a total      │\n"
        found = what_ran_out(frame + inside)
        assert found is not None
        assert (found.part, found.asked) == ("gpu", CASES["PyTorch, torch 2.5"][1].asked)  # type: ignore[union-attr]

    @pytest.mark.parametrize("prefix", ["[rank3]: ", "(pid=17) ", "2026-01-08 00:35:04 - train - ERROR - ", "E   "])
    def test_a_message_with_a_prefix_on_each_line_is_recognised(self, prefix: str) -> None:
        assert what_ran_out("".join(f"{prefix}{line}\n" for line in self.GPU.splitlines())) == self.WHAT

    @pytest.mark.parametrize("cut", range(0, 60, 7))
    def test_a_message_that_is_cut_raises_nothing(self, cut: int) -> None:
        found = what_ran_out(self.GPU[cut:])
        assert found is None or found.part == "gpu"
        assert what_ran_out(self.GPU[:cut]) in (None, OomMatch("gpu"))

    @pytest.mark.parametrize("size", ["17179869113.53 GiB", "4585490524328388608 bytes"])
    def test_a_request_that_no_machine_can_hold_is_none(self, size: str) -> None:
        assert what_ran_out(f"RuntimeError: CUDA out of memory. Tried to allocate {size}") is None

    def test_words_broken_at_the_end_of_a_line_are_recognised_and_advice_is_not(self) -> None:
        assert what_ran_out("E client.cc:672] failed: Resource exhausted: Out \nof memory while trying") is not None
        assert what_ran_out("hint: lower the batch size if you run out \nof memory") is None

    @pytest.mark.parametrize(
        "unit",
        [
            "a memory ",
            "error ",
            "failed to allocate ",
            "memory\n",
            "\x1b[",
            '  File "',
            "not the total ",
            "too big to fit ",
        ],
    )
    def test_64_kib_of_repeated_text_are_read_in_half_a_second(self, unit: str) -> None:
        began = time.process_time()
        what_ran_out((unit * 65536)[:65536])
        assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("sort: memory exhausted", "host"),
        ("simulator: all device heaps are exhausted", "host"),
        ("solver: the matrix does not fit into GPU memory", "gpu"),
        ("the model is too large to fit in the available VRAM", "gpu"),
        ("the device does not provide enough device-memory", "gpu"),
        ("no more memory available", "host"),
        ("there is no memory left", "host"),
        ("aborted: lack of virtual memory", "host"),
        ("fatal: memory limit exceeded", "host"),
        ("PBS: job killed: vmem 9423kb exceeded limit 8388kb", "host"),
        ("could not reserve 400 MiB of memory", "host"),
        ("calloc(1, 73741824) returned NULL", "host"),
        ("error: posix_memalign failed", "host"),
        ("Failed to allocate.", "host"),
        ("cuMemHostAlloc failed: OS call failed", "host"),
        ("SQLITE_NOMEM", "host"),
        ("CURAND_STATUS_ALLOCATION_FAILED", "gpu"),
        ("CUDA error 2 at kernel.cu:17", "gpu"),
        ("CUresult error result=2", "gpu"),
        ("fork: Nicht genügend Hauptspeicher verfügbar", "host"),
        ("OSError: [Errno 12] Impossible d'allouer de la mémoire", "host"),
        ("bash: fork: 无法分配内存", "host"),
        ("RuntimeError: 显存不足", "gpu"),
        ("solver: memory is not sufficient", "host"),
        ("renderer: the scene is too large for the device", "gpu"),
        ("job exceeded its requested memory", "host"),
        ("process is over its 16 GiB memory limit", "host"),
        ("the matrix needs 40 GB but only 12 GB are available", "host"),
        ("required GPU memory 9.1 GiB is larger than what is there", "gpu"),
        ("loader: used all of the available VRAM", "gpu"),
        ("kernel: ran through all memory", "host"),
        ("ERROR_NOT_ENOUGH_MEMORY", "host"),
        ("panicked at InsufficientDeviceMemory", "gpu"),
        ("The node was low on resource: memory.", "host"),
        ("gap: cannot extend the workspace any more!", "host"),
        ("failed to create buffer of 734003200 bytes", "host"),
        ("pool: not enough room to grow", "host"),
        ("clEnqueueNDRangeKernel failed: MEM_OBJECT_ALLOCATION_FAILURE", "gpu"),
        ("no enough memory", "host"),
    ],
)
def test_general_words_for_a_lack_of_memory_are_recognised_in_any_program(words: str, part: str) -> None:
    found = what_ran_out(words)
    assert found is not None
    assert found.part == part


def test_words_without_a_kind_of_memory_are_about_the_gpu_of_the_lines_before() -> None:
    log = "loading\n" * 10
    assert what_ran_out(f"using CUDA device 0\n{log}out of memory") == OomMatch("gpu")
    assert what_ran_out(f"{log}out of memory") == OomMatch("host")
    assert what_ran_out(f"using CUDA device 0\n{log}std::bad_alloc") == OomMatch("host")


@pytest.mark.parametrize(
    "words",
    [
        "failed to change OOM score to -500: permission denied",
        "error: oom_kill_disable is not supported",
        "memory usage: 90% of the limit; error: no data",
        "error: exceeds 10% of system memory",
        "error: the board has no memory slots left",
        "error: insufficient memory bandwidth",
        "fallocate failed: not enough free memory blocks on the disk",
        "sbatch: error: Memory required by task is not available",
        "error: could not get memory usage of process 7",
        "CUDA error 209: no kernel image is available",
        "CUDA error 2.1 of the toolkit",
        "java.lang.OutOfMemoryError: Metaspace",
        "the report found no more memory leaks; error in line 4",
        "error: this key does not fit in the lock",
        "error: the run failed, see https://example.org/out-of-memory",
        "error: the kernel exceeds the limit of shared memory",
        "job 17 exceeded MEM usage soft limit",
        "error: out of resource: shared memory",
        '{"oomKilled": false, "error": "no such file"}',
        "Cannot allocate memory for the interpreter: conv.cc:191 input->dims->size != 4 (0 != 4)",
        "table allocation failed: not enough memory, switching to the disk",
    ],
)
def test_words_that_resemble_a_lack_of_memory_are_none(words: str) -> None:
    assert what_ran_out(words) is None


@pytest.mark.parametrize(
    ("output", "signalled", "may_be"),
    [
        ("", True, True),
        ("", False, False),
        ("epoch 3\nloss 0.1", True, True),
        ("KeyError: 1", True, False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered\n", True, False),
        ("device-side assert triggered\nepoch 3", True, False),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", False, True),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\nKeyError: 1", False, False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True, True),
        ("MemoryError", True, False),
    ],
)
def test_a_failure_may_be_for_gpu_memory_by_words_or_in_silence(output: str, signalled: bool, may_be: bool) -> None:
    assert may_be_gpu_memory(output, signalled=signalled) is may_be


TORCHRUN = "traceback : Signal 9 (SIGKILL) received by PID 4242\n"


@pytest.mark.parametrize(
    ("signal", "code", "kills", "output", "was"),
    [
        (9, None, 1, "", True),
        (None, 137, 1, "", True),
        (9, None, 0, "", False),
        (None, 1, 1, "", False),
        (None, 1, 1, TORCHRUN, True),
        (None, 1, 0, TORCHRUN, False),
        (None, 1, 1, "ProcessExitedException: process 0 terminated with signal SIGKILL", True),
        (None, 1, 1, "died with <Signals.SIGKILL: 9>.", True),
        (None, 1, 1, "  exitcode  : -9 (pid: 31)", True),
        (None, 1, 1, "  exitcode  : -11 (pid: 31)", False),
        (15, None, 1, "", False),
        (None, 0, 3, TORCHRUN, False),
    ],
)
def test_a_kill_by_the_kernel_is_an_out_of_memory(
    signal: int | None, code: int | None, kills: int, output: str, was: bool
) -> None:
    assert killed_for_memory(signal, code, kills, output) is was


def test_code_of_a_traceback_is_emptied_and_its_error_stays() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    raise OutOfMemoryError()",
        "KeyError: 1",
    ]
    assert without_code(lines)[2:] == ["", "KeyError: 1"]
