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

from scheduler.ui.text import columns
from scripts.demo import TRAINING, VALUES, colour_name, write_sweep
from tests.support.chromium import Browser, browser
from tests.support.standin.box import Box

ROOT = Path(__file__).resolve().parents[1]
SIZES = ((80, 24), (120, 40), (200, 50))
BAD_USAGE = 2
MAKERS = ("run", "report", "experiment")
"""The verbs without whose work there is nothing to take a picture of."""
OPENS = "#tasks tbody tr:last-of-type td"
"""The cell that opens the last task of the table."""
WIDTHS = (360, 1280, 1920)
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


FAILS = """
def batches(path, size):
    if size < 1:
        raise ValueError(f"batch size {size} of {path} is not a positive number")
print("epoch 1/12 loss 0.9", flush=True)
batches("/data/train", 0)
"""
DIVERGES = """
import time
for epoch in range(1, 13):
    loss = 2.0 / epoch if epoch < 5 else float("nan")
    print(f"epoch {epoch}/12 loss {loss} val_acc {0.5 + epoch / 40}", flush=True)
    time.sleep(0.5)
"""
"""Scripts that fail with a traceback, and whose loss becomes NaN."""


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
            name = colour_name(style)
            colour = colours.get("dim" if style and style.dim and name == "default" else name, colours["default"])
            css = f"color:{colour}" + (";font-weight:bold" if style and style.bold else "")
            if style and style.reverse:
                ink = colours["dim"] if style.bgcolor else colours["background"]
                css = f"background:{colour};color:{ink}"
            spans.append(f'<span style="{css}">{cells(segment.text.rstrip(chr(10)))}</span>')
        rows.append("".join(spans))
    body = f"margin:0;padding:12px;background:{colours['background']};color:{colours['default']}"
    font = "font:14px/18px 'DejaVu Sans Mono',monospace;margin:0"
    fixed = "<style>i{display:inline-block;width:1ch;height:18px;vertical-align:top;font-style:normal}</style>"
    return f'<meta charset="utf-8">{fixed}<body style="{body}"><pre style="{font}">{chr(10).join(rows)}</pre>'


def cells(text: str) -> str:
    """Return a text in which every character that is not ASCII has the width of its columns."""
    return "".join(html.escape(c) if c.isascii() else f'<i style="width:{columns(c)}ch">{c}</i>' for c in text)


def write_hard(folder: Path) -> None:
    """Write a list with long names, failures, nothing to measure, and names that are not for terminals and pages."""
    names = (
        "a-very-long-experiment-name-with-no-blank-in-it-" + "x" * 60, "模型 训练 batch=32", "<b>bold</b> & \"quoted\"",
        "\x1b[31mred\x1b[0m", "killed", "fails later", "short", "another task of the usual length",
    )  # fmt: skip
    (folder / "fails.py").write_text(FAILS, encoding="utf-8")
    (folder / "diverges.py").write_text(DIVERGES, encoding="utf-8")
    ends = {"fails later": "sleep 5; echo Killed by me; exit 1", "killed": "sleep 3; kill -9 $$"}
    rows = [(name, f"sh -c '{ends.get(name, 'echo working; sleep 60')}'") for name in names]
    rows += [("fails at once", f"{sys.executable} fails.py"), ("diverges", f"{sys.executable} diverges.py")]
    with (folder / "hard.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("Name", "Command"), *rows])


def write_commands(folder: Path) -> None:
    """Write the sweep with its command in each row, as an experiment takes it."""
    header, *rows = (folder / "sweep.csv").read_text(encoding="utf-8").splitlines()
    lines = [f"Command,{header}", *(f"{TRAINING},{row}" for row in rows)]
    (folder / "commands.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


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
        name = f"hard-{size[0]}"
        save(chromium, terminals.shown(name), size[0], out / f"live-{size[0]}x{size[1]}-hard")
        for what, keys in (("failed", "/fails"), ("nan", "/diverges")):
            terminals.press(name, *keys, "Enter", "Down", "Enter")
            time.sleep(1.5)
            save(chromium, terminals.shown(name), size[0], out / f"live-{size[0]}x{size[1]}-hard-{what}")
            terminals.press(name, "Escape", "Escape")


def capture_page(chromium: Browser, address: str, out: Path, what: str) -> None:
    """Take pictures of a page at all widths, and with a task that is open."""
    for dark in (True, False):
        for width in WIDTHS:
            chromium.open(address, (width, 900), dark=dark)
            time.sleep(3)
            end = "dark" if dark else "light"
            chromium.driver.save_screenshot(str(out / f"{what}-{width}-{end}-top.png"))
            chromium.shot(out / f"{what}-{width}-{end}.png")
            chromium.resize(width, 900)
            if not chromium.tells("document.querySelector(arguments[0])?.click() ?? true", OPENS):
                continue
            time.sleep(1.5)
            chromium.driver.execute_script("document.querySelector('tr.open')?.scrollIntoView({block: 'center'})")
            chromium.driver.save_screenshot(str(out / f"{what}-{width}-{end}-open.png"))


def capture_reports(verb: Verb, out: Path, chromium: Browser) -> None:
    """Take pictures of the report of the sweep, and of an experiment with its tasks."""
    verb("report", "r2", "-o", str(out / "report-hard.html"))
    capture_page(chromium, (out / "report-hard.html").as_uri(), out, "report-hard")
    verb("report", "r1", "-o", str(out / "report.html"))
    capture_page(chromium, (out / "report.html").as_uri(), out, "report")
    simulated = ("--simulate", "2x24GiB", "--assume", "10min,6GiB", "--mps-speed", "1.3")
    verb("experiment", "mps", "commands.csv", *simulated, "-o", str(out / "experiment"))
    capture_page(chromium, (out / "experiment/report.html").as_uri(), out, "experiment")


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
    write_sweep(folder, VALUES)
    write_hard(folder)
    write_commands(folder)
    env = {**os.environ, **box.env, "PYTHONPATH": str(ROOT), "TASK_SECONDS": str(seconds)}
    env |= {"SCHEDULER_STATE": str(folder / "state"), "SCHEDULER_LEASES": str(folder / "leases")}
    terminals = Terminals(folder, env)
    verb = Verb(folder, env)
    web = None
    try:
        verb("run", "sweep.csv", "-d", "--settle", "1s", "--cpus", "0.05", "--", *TRAINING.split())
        time.sleep(20)
        capture_terminals(terminals, out, chromium)
        web, address = verb.serve()
        capture_page(chromium, address, out, "page-running")
        verb("wait", "r1")
        capture_page(chromium, address, out, "page-ended")
        verb("run", "hard.csv", "-d", "--devices", "host", "-j", "5", "--cpus", "0.1")
        capture_hard(terminals, out, chromium)
        capture_page(chromium, address.replace("#", "?run=2#"), out, "page-hard")
        capture_reports(verb, out, chromium)
    finally:
        if web is not None:
            web.terminate()
        verb("stop", "--now")
        terminals.close()
        box.close()


class Verb:
    """The verbs of the product in a folder of their own."""

    argv = (sys.executable, "-m", "scheduler")

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env = folder, env

    def serve(self) -> tuple[subprocess.Popen[str], str]:
        """Serve the page of the latest run; return its process and its address."""
        argv = [*self.argv, "top", "--web"]
        web = subprocess.Popen(argv, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, text=True)
        assert web.stdout is not None
        return web, next(line.split()[1] for line in web.stdout if line.startswith("open"))

    def __call__(self, *arguments: str) -> None:
        """Run a verb to its end; a run may have failed tasks, but bad usage would be a picture of nothing."""
        done = subprocess.run([*self.argv, *arguments], cwd=self._folder, env=self._env, check=False)
        if done.returncode == BAD_USAGE and arguments[0] in MAKERS:
            raise SystemExit(f"screens: scheduler {arguments[0]} was refused")


if __name__ == "__main__":
    main()
