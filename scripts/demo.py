"""A sweep for pictures and recordings: trainings on stand-in GPUs whose loss depends on their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from rich.style import Style

from tests.support.standin.box import HERE

VALUES = {
    "lr": ("1", "0.3", "0.1", "0.03", "0.01", "0.003", "0.001", "0.0003", "0.0001"),
    "bs": ("32", "64", "128", "256", "512"),
    "width": ("64", "128", "256", "512", "1024", "2048"),
}
TRAINING = "python train.py --lr {lr} --bs {bs} --width {width}"
NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
TRAIN = f"""\
import math, os, random, sys, threading, time
sys.path.insert(0, {str(HERE)!r})
import client, train
said = train.options(sys.argv[1:])
lr, bs, width = (float(said.get(name, 512)) for name in ("lr", "bs", "width"))
seconds, epochs = float(os.environ["TASK_SECONDS"]) * (0.6 + bs / 700), 12
peak = f"{{1.2 + bs / 128 + width / 1024:.2f}}GiB"
chance = random.Random(f"{{lr}} {{bs}} {{width}}")
def tell():
    best = 0.32 + 0.11 * abs(math.log10(lr / 0.02)) ** 1.5 + 0.05 * abs(math.log2(width / 512)) + bs / 4000
    for epoch in range(1, epochs + 1):
        time.sleep(seconds / epochs)
        loss = best + 2 * math.exp(-epoch * (0.25 + 3 * min(lr, 0.1))) + chance.gauss(0, 0.02)
        if lr == 1 and width >= 512 and epoch > 3:
            loss = math.nan
        print(f"epoch {{epoch}}/{{epochs}} val_loss={{loss:.4f}} val_acc={{max(0.1, 1 - loss / 3):.4f}}", flush=True)
        if loss != loss and epoch > 6:
            print("ValueError: the loss is not finite", flush=True)
            os._exit(1)
threading.Thread(target=tell, daemon=True).start()
busy = str(0.05 + bs / 2500)
sys.exit(train.main(f"--peak {{peak}} --seconds {{seconds + 0.3}} --busy {{busy}} --rise 0.5 --epochs 0".split()))
"""


def write_sweep(folder: Path, values: Mapping[str, Sequence[str]]) -> None:
    """Write the script, and the list of all combinations in an order that is not the one of the table."""
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    rows = list(product(*values.values()))
    rows = [rows[at * 97 % len(rows)] for at in range(len(rows))]
    text = f"{','.join(values)}\n" + "".join(f"{','.join(row)}\n" for row in rows)
    (folder / "sweep.csv").write_text(text, encoding="utf-8")


def colour_name(style: Style | None) -> str:
    """Return the name of a style's colour, one of the eight of a terminal, or `default`."""
    number = style.color.number if style and style.color else None
    return "default" if number is None else NAMES[number % 8]
