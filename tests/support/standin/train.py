"""A training script that needs no GPU: it takes memory of the stand-in's, works off its time, and tells its epochs.

    --peak 3.5GiB[,2GiB]    what it takes at most, of each device it is shown; nothing unless said
    --per batch=64MiB       ... and so much more for each unit of its own option --batch
    --seconds 2             how long it takes on devices of its own
    --epochs 10             how many epochs it tells of
    --profile ramp          ramp, late, children, prealloc, leak or flat, explained at `needed`
    --rise 0.3              `ramp` reaches its peak after so many seconds, if that is before a tenth of its time
    --busy 0.5              how much of each device it keeps busy, once it trains and does not only load its data
    --host 100MiB           host RAM that it really touches
    --fault 0.5             when so much is done, it does what no GPU forgives

Any other option is accepted, and changes nothing.
"""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import client

GIB = 1 << 30
CONTEXT = 300 << 20
UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
PREALLOCATION_OFF = (("TF_FORCE_GPU_ALLOW_GROWTH", "true"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"))


def options(argv: list[str]) -> dict[str, str]:
    """Read `--name value` and `--name=value` by name; argparse would take a third of the start-up time."""
    found = {}
    for word, following in zip(argv, [*argv[1:], "--"], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found[name[2:]] = value if equals else "" if following.startswith("--") else following
    return found


def size(text: str) -> int:
    number = text.rstrip("BKMGTibkmgt ")
    return int(float(number) * UNITS[text[len(number) :].strip().upper()])


def peaks(said: dict[str, str]) -> list[int]:
    """Return the peak of each position, in bytes."""
    name, _, each = said.get("per", "").partition("=")
    more = int(float(said[name]) * size(each)) if each else 0
    return [size(peak) + more for peak in said.get("peak", "0" if each else "").split(",") if peak]


class Training:
    """The work of one process: the memory of its positions, and its time."""

    def __init__(self, said: dict[str, str], cuda: client.Cuda, positions: dict[int, int]) -> None:
        self.cuda = cuda
        self.profile = said.get("profile", "ramp")
        self.seconds = float(said.get("seconds", 1))
        self.epochs = int(said.get("epochs", 10))
        self.busy = float(said.get("busy", 0.5))
        self.fault = float(said.get("fault", 2))
        self.rise = min(0.1, float(said.get("rise", self.seconds)) / self.seconds) if self.seconds else 0.0
        self.peaks = positions
        self.held = dict.fromkeys(positions, 0)

    def needed(self, peak: int, done: float) -> int:
        """Return the bytes in use when this share of the work is done."""
        context = min(peak, CONTEXT)
        if self.profile == "flat":
            return peak
        if self.profile == "late":  # as a validation at the end does
            return peak if done >= 1 - 1 / self.epochs else int(0.6 * peak)
        if self.profile == "leak":
            return context + int((peak - context) * done)
        return peak if done >= self.rise else context  # at first only the context

    def grow(self, done: float) -> None:
        for position, peak in self.peaks.items():
            more = self.needed(peak, done) - self.held[position]
            if more > 0:
                self.cuda.allocate(position, more)
                self.held[position] += more

    def preallocate(self) -> None:
        """Take most of each device first, as TensorFlow and JAX do by default."""
        if any(os.environ.get(name, "").lower() == value for name, value in PREALLOCATION_OFF):
            return
        for position in self.peaks:
            self.held[position] = int(0.9 * self.cuda.available(position))
            self.cuda.allocate(position, self.held[position])

    def begin(self) -> None:
        if self.profile == "prealloc":
            self.preallocate()
        self.grow(0.0)
        if self.profile != "ramp":
            self.work()

    def work(self) -> None:
        for position in self.peaks:
            self.cuda.busy(position, self.busy)

    def pace(self) -> float:
        return max((self.cuda.pace(position) for position in self.peaks), default=1.0)

    def run(self, tell: bool) -> None:
        """Work it all off in small steps, more slowly where others want the device as well."""
        self.begin()
        step = min(0.1, max(0.02, self.seconds / 40))
        worked, told, now = 0.0, 0, time.monotonic()
        before_rise = self.profile == "ramp"
        while worked < self.seconds:
            pace = self.pace()
            time.sleep(min(step, (self.seconds - worked) * pace))
            before, now = now, time.monotonic()
            worked += (now - before) / pace
            done = min(1.0, worked / self.seconds)
            if done >= self.fault:
                self.cuda.fault()
            self.grow(done)
            if before_rise and done >= self.rise:
                before_rise = False
                self.work()
            while tell and told < int(done * self.epochs + 1e-9):
                told += 1
                print(f"epoch {told}/{self.epochs}", flush=True)


def gib(number: int) -> str:
    return f"{number / GIB:.2f} GiB"


def run(said: dict[str, str], cuda: client.Cuda, positions: dict[int, int], tell: bool = True) -> int:
    """Train; the exit code."""
    training = Training(said, cuda, positions)
    host = b"\1" * size(said.get("host", "0") if tell else "0")  # every page written, as `bytes(n)` would not
    try:
        training.run(tell)
    except client.OutOfMemory as full:
        held = training.held[full.position]
        print(
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {gib(full.requested)}. "
            f"GPU {full.position} has a total capacity of {gib(full.total)} of which {gib(full.free)} is free. "
            f"Including non-PyTorch memory, this process has {gib(held)} memory in use.",
            file=sys.stderr,
            flush=True,
        )
        return 1
    except client.Fault as fault:
        print(f"torch.AcceleratorError: {fault}", file=sys.stderr, flush=True)
        return 1
    del host
    return 0


def run_children(said: dict[str, str], cuda: client.Cuda, positions: dict[int, int]) -> int:
    """Fork a child for each position, as torchrun does; if one fails, end the others."""
    living = {}
    for position, peak in positions.items():
        pid = os.fork()
        if not pid:
            os._exit(run(said, cuda, {position: peak}, tell=position == 0))
        living[pid] = position
    failed = 0
    while living:
        pid, status = os.wait()
        living.pop(pid, None)
        if status and not failed:
            failed = 1
            for other in living:
                os.kill(other, 15)
    return failed


def main(argv: list[str]) -> int:
    said = options(argv)
    wanted = peaks(said)
    cuda = client.Cuda()
    if len(wanted) > len(cuda.devices()):
        shown = len(cuda.devices())
        print(f"RuntimeError: {len(wanted)} CUDA devices wanted, {shown} available", file=sys.stderr)
        return 1
    in_children = wanted and said.get("profile") == "children"
    return (run_children if in_children else run)(said, cuda, dict(enumerate(wanted)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
