"""Pictures of the live view, the page and the report, to be looked at: `python scripts/screens.py FOLDER`.

It really runs a sweep of 270 tasks with three parameters and two metrics on four stand-in GPUs (tests/support/standin).
The live view is captured in tmux at three sizes, the page and the report in Chromium at three widths, all of them dark
and light. Needs tmux, Chromium and a C compiler. `--seconds N` says how long a task takes.
"""

from __future__ import annotations

import argparse
import csv
import html
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.text import Text

from tests.support.chromium import Browser, browser
from tests.support.standin.box import HERE, Box

ROOT = Path(__file__).resolve().parents[1]
SIZES = ((80, 24), (120, 40), (200, 50))
WIDTHS = (360, 1280, 1920)
VALUES = {
    "lr": ("1", "0.3", "0.1", "0.03", "0.01", "0.003", "0.001", "0.0003", "0.0001"),
    "bs": ("32", "64", "128", "256", "512"),
    "width": ("64", "128", "256", "512", "1024", "2048"),
}
TRAIN = f"""\
import math, os, random, sys, threading, time
sys.path.insert(0, {str(HERE)!r})
import client, train
said = train.options(sys.argv[1:])
lr, bs, width = (float(said[name]) for name in ("lr", "bs", "width"))
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
NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
DARK = {
    "background": "#1e1e2e", "default": "#cdd6f4", "dim": "#7f849c", "black": "#45475a", "red": "#f38ba8",
    "green": "#a6e3a1", "yellow": "#f9e2af", "blue": "#89b4fa", "magenta": "#cba6f7", "cyan": "#94e2d5",
    "white": "#bac2de",
}  # fmt: skip
LIGHT = {
    "background": "#ffffff", "default": "#24292f", "dim": "#8c959f", "black": "#24292f", "red": "#cf222e",
    "green": "#116329", "yellow": "#8a6500", "blue": "#0969da", "magenta": "#8250df", "cyan": "#1b7c83",
    "white": "#6e7781",
}  # fmt: skip


class Terminals:
    """Terminals of tmux, in which programs are watched."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env = folder, {name: value for name, value in env.items() if name != "TMUX"}
        self._tmux = ["tmux", "-L", f"screens-{os.getpid()}"]

    def open(self, name: str, size: tuple[int, int], *arguments: str) -> None:
        """Open a terminal with a verb of the product."""
        command = [sys.executable, "-m", "scheduler", *arguments]
        shape = ["-x", str(size[0]), "-y", str(size[1])]
        started = [*self._tmux, "new-session", "-d", "-s", name, *shape, *command]
        subprocess.run(started, cwd=self._folder, env={**self._env, "TERM": "xterm-256color"}, check=True)

    def press(self, name: str, *keys: str) -> None:
        """Press keys, by tmux's names, one after another."""
        for key in keys:
            subprocess.run([*self._tmux, "send-keys", "-t", name, key], check=True)
            time.sleep(0.15)

    def shown(self, name: str) -> str:
        """Return what a terminal shows, with its colours."""
        done = subprocess.run([*self._tmux, "capture-pane", "-t", name, "-p", "-e"], capture_output=True, check=True)
        return done.stdout.decode()

    def close(self) -> None:
        """End the server of these terminals."""
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


def picture(text: str, width: int, colours: dict[str, str]) -> str:
    """Return what a terminal shows as a page."""
    console = Console(width=width, color_system="truecolor", legacy_windows=False)
    rows = []
    for line in Text.from_ansi(text).split():  # colours may last longer than a line
        spans = []
        for segment in line.render(console):
            style = segment.style
            number = style.color.number if style and style.color else None
            name = "default" if number is None else NAMES[number % 8]
            colour = colours.get("dim" if style and style.dim and name == "default" else name, colours["default"])
            css = f"color:{colour}" + (";font-weight:bold" if style and style.bold else "")
            if style and style.reverse:
                css = f"background:{colour};color:{colours['background']}"
            spans.append(f'<span style="{css}">{cells(segment.text.rstrip(chr(10)))}</span>')
        rows.append("".join(spans))
    body = f"margin:0;padding:12px;background:{colours['background']};color:{colours['default']}"
    font = "font:14px/18px 'DejaVu Sans Mono',monospace;margin:0"
    fixed = "<style>i{display:inline-block;width:1ch;height:18px;vertical-align:top;font-style:normal}</style>"
    return f'<meta charset="utf-8">{fixed}<body style="{body}"><pre style="{font}">{chr(10).join(rows)}</pre>'


def cells(text: str) -> str:
    """Return a text in which every character that is not ASCII has the width of a column."""
    return "".join(html.escape(c) if c.isascii() else f"<i>{c}</i>" for c in text)


def write_sweep(folder: Path) -> None:
    """Write the script, and the list of all combinations in an order that is not the one of the table."""
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    rows = [(lr, bs, width) for lr in VALUES["lr"] for bs in VALUES["bs"] for width in VALUES["width"]]
    rows = [rows[at * 97 % len(rows)] for at in range(len(rows))]
    text = "lr,bs,width\n" + "".join(f"{','.join(row)}\n" for row in rows)
    (folder / "sweep.csv").write_text(text, encoding="utf-8")


def write_hard(folder: Path) -> None:
    """Write a list with long names, failures, nothing to measure, and names that are not for terminals and pages."""
    names = (
        "a-very-long-experiment-name-with-no-blank-in-it-" + "x" * 60, "模型 训练 batch=32", "<b>bold</b> & \"quoted\"",
        "\x1b[31mred\x1b[0m", "fails at once", "fails later", "short", "another task of the usual length",
    )  # fmt: skip
    ends = {"fails at once": "exit 3", "fails later": "sleep 5; echo Killed by me; exit 1"}
    rows = [(name, f"sh -c '{ends.get(name, 'echo working; sleep 20')}'") for name in names]
    with (folder / "hard.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("Name", "Command"), *rows])


def capture_terminals(terminals: Terminals, out: Path, chromium: Browser) -> None:
    """Take pictures of the list, of a task's page, of the help, and of the machine."""
    for size in SIZES:
        name = f"{size[0]}x{size[1]}"
        terminals.open(name, size, "top")
        terminals.open(f"all-{name}", size, "top", "--all")
    time.sleep(25)  # courses over the last minutes need some
    for size in SIZES:
        name = f"{size[0]}x{size[1]}"
        steps = {"list": (), "selected": ("Down", "Down"), "task": ("Enter",), "help": ("Escape", "?"),
                 "sorted": ("Escape", "s", "s", "s"), "ended": ("Escape", "End", "Enter")}  # fmt: skip
        for what, keys in steps.items():
            terminals.press(name, *keys)
            time.sleep(1.5)
            save(chromium, terminals.shown(name), size[0], out / f"live-{name}-{what}")
        save(chromium, terminals.shown(f"all-{name}"), size[0], out / f"live-{name}-all")


def save(chromium: Browser, text: str, columns: int, path: Path) -> None:
    """Write a terminal's screen as pictures, dark and light."""
    path.with_suffix(".ansi").write_text(text, encoding="utf-8")
    for name, colours in (("dark", DARK), ("light", LIGHT)):
        page = path.with_suffix(".html")
        page.write_text(picture(text, columns, colours), encoding="utf-8")
        chromium.open(page.as_uri(), (int(columns * 8.5) + 40, 400))
        chromium.shot(Path(f"{path}-{name}.png"))
        page.unlink()


def capture_hard(terminals: Terminals, out: Path, chromium: Browser) -> None:
    """Take pictures of a run with long names, failures and no metrics, while it runs."""
    for size in SIZES:
        terminals.open(f"hard-{size[0]}", size, "top")
    time.sleep(8)
    for size in SIZES:
        save(chromium, terminals.shown(f"hard-{size[0]}"), size[0], out / f"live-{size[0]}x{size[1]}-hard")


def capture_page(chromium: Browser, address: str, out: Path, what: str, opens: str) -> None:
    """Take pictures of a page at all widths, and with a task that is open."""
    for dark in (True, False):
        for width in WIDTHS:
            chromium.open(address, (width, 900), dark=dark)
            time.sleep(3)
            end = "dark" if dark else "light"
            chromium.driver.save_screenshot(str(out / f"{what}-{width}-{end}-top.png"))
            chromium.shot(out / f"{what}-{width}-{end}.png")
            chromium.resize(width, 900)
            if not chromium.tells("document.querySelector(arguments[0])?.click() ?? true", opens):
                continue
            time.sleep(1.5)
            chromium.driver.execute_script("document.querySelector('tr.open')?.scrollIntoView({block: 'center'})")
            chromium.driver.save_screenshot(str(out / f"{what}-{width}-{end}-open.png"))


def main() -> None:
    """Run the sweep and take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screens-", ignore_cleanup_errors=True) as name, browser() as chromium:
        folder = Path(name)
        take(folder, args.out.resolve(), args.seconds, chromium)


def take(folder: Path, out: Path, seconds: float, chromium: Browser) -> None:
    """Take all pictures of a run in a folder."""
    box = Box(folder / "gpus", gpus=4)
    (folder / "leases").mkdir(mode=0o700)
    write_sweep(folder)
    env = {**os.environ, **box.env, "PYTHONPATH": str(ROOT), "TASK_SECONDS": str(seconds)}
    env |= {"SCHEDULER_STATE": str(folder / "state"), "SCHEDULER_LEASES": str(folder / "leases")}
    verb = [sys.executable, "-m", "scheduler"]
    run = [*verb, "run", "sweep.csv", "-d", "--settle", "1s", "--cpus", "0.05"]
    terminals = Terminals(folder, env)
    opens = "#tasks tbody tr:last-of-type td"
    try:
        line = "python train.py --lr {lr} --bs {bs} --width {width}"
        subprocess.run([*run, "--", *line.split()], cwd=folder, env=env, check=True)
        time.sleep(20)
        capture_terminals(terminals, out, chromium)
        web = subprocess.Popen([*verb, "top", "--web"], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
        assert web.stdout is not None
        address = next(line.split()[1] for line in web.stdout if line.startswith("open"))
        capture_page(chromium, address, out, "page-running", opens)
        subprocess.run([*verb, "wait", "r1"], cwd=folder, env=env, check=False)
        capture_page(chromium, address, out, "page-ended", opens)
        write_hard(folder)
        hard = [*verb, "run", "hard.csv", "-d", "--devices", "host", "-j", "5", "--cpus", "0.1"]
        subprocess.run(hard, cwd=folder, env=env, check=True)
        capture_hard(terminals, out, chromium)
        capture_page(chromium, address.replace("#", "?run=2#"), out, "page-hard", opens)
        web.terminate()
        report = out / "report.html"
        subprocess.run([*verb, "report", "r1", "-o", str(report)], cwd=folder, env=env, check=True)
        capture_page(chromium, report.as_uri(), out, "report", opens)
    finally:
        subprocess.run([*verb, "stop", "--now"], cwd=folder, env=env, check=False, capture_output=True)
        terminals.close()
        box.close()


if __name__ == "__main__":
    main()
