"""A recording of the live view as an animated SVG: `python scripts/recording.py docs/recording.svg`.

It really runs a sweep of 24 tasks on two stand-in GPUs (tests/support/standin), in tmux, asks for the best one, and
takes a picture of the terminal every second. Needs tmux and a C compiler.
"""

from __future__ import annotations

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

from scripts.demo import colour_name, write_sweep
from tests.support.standin.box import Box

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 100, 27
WIDTH, HEIGHT = 8.4, 18
FRAMES, PAUSE = 50, 1.0
PYTHON = "/home/ann/train/.venv/bin/python"
"""The interpreter that the recording shows instead of this one."""
VALUES = {"lr": ("0.3", "0.1", "0.03", "0.01", "0.003", "0.001"), "bs": ("32", "64", "128", "256")}
COLOURS = {
    "black": "#45475a", "red": "#f38ba8", "green": "#a6e3a1", "yellow": "#f9e2af", "blue": "#89b4fa",
    "magenta": "#cba6f7", "cyan": "#94e2d5", "white": "#cdd6f4", "default": "#cdd6f4",
}  # fmt: skip
BACKGROUND, DIM = "#1e1e2e", "#7f849c"


def record(folder: Path) -> list[str]:
    """Run the list in tmux and return what the terminal showed, frame by frame, with its colours."""
    box = Box(folder / "gpus", gpus=2)
    write_sweep(folder, VALUES)
    environ = {**os.environ, **box.env, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "TASK_SECONDS": "8"}
    environ |= {"SCHEDULER_STATE": str(folder / "state"), "SCHEDULER_LEASES": str(folder / "leases")}
    environ.pop("TMUX", None)
    tmux = ["tmux", "-L", f"recording-{os.getpid()}"]
    scheduler = f"{sys.executable} -m scheduler"
    training = "python train.py --lr {lr} --bs {bs}"
    run, asked = f"{scheduler} run sweep.csv --settle 1s --cpus 0.1 -- {training}", "results --best val_loss"
    command = f"{run}; echo; echo '$ scheduler {asked}'; {scheduler} {asked}; sleep 60"
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    subprocess.run([*tmux, "new-session", "-d", *size, command], cwd=folder, env=environ, check=True)
    frames = []
    try:
        for _ in range(FRAMES):
            time.sleep(PAUSE)
            shown = subprocess.run([*tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True, check=True)
            frames.append(shown.stdout.replace(sys.executable, PYTHON))
    finally:
        stop = [sys.executable, "-m", "scheduler", "stop", "--now"]
        subprocess.run(stop, cwd=folder, env=environ, check=False, capture_output=True)
        subprocess.run([*tmux, "kill-server"], check=False)
    return frames


def drawn(frame: str) -> str:
    """Return one frame as SVG text, a line for each row and a tspan for each colour."""
    console = Console(width=COLUMNS, color_system="truecolor", legacy_windows=False)
    rows = []
    for number, line in enumerate(Text.from_ansi(frame).split()[:ROWS]):  # colours may last longer than a line
        spans, column = [], 0
        for segment in line.render(console):
            words, style = segment.text.rstrip("\n"), segment.style
            if words.strip():
                name = colour_name(style)
                colour = DIM if style and style.dim and name == "default" else COLOURS[name]
                weight = ' font-weight="bold"' if style and style.bold else ""
                x = 12 + column * WIDTH
                length = len(words) * WIDTH
                spans.append(
                    f'<tspan x="{x:.1f}" textLength="{length:.1f}" fill="{colour}"{weight}>{html.escape(words)}</tspan>'
                )
            column += len(words)
        if spans:
            rows.append(f'<text y="{24 + number * HEIGHT}">{"".join(spans)}</text>')
    return "".join(rows)


def animated(frames: list[str]) -> str:
    """Return the frames as one SVG that shows them one after another, for ever."""
    unique = [frame for number, frame in enumerate(frames) if number == 0 or frame != frames[number - 1]]
    seconds, share = len(unique) * PAUSE, 100 / len(unique)
    width, height = COLUMNS * WIDTH + 24, ROWS * HEIGHT + 24
    shown = "".join(
        f'<g class="f" style="animation-delay:{number * PAUSE:.1f}s">{drawn(frame)}</g>'
        for number, frame in enumerate(unique)
    )
    style = (
        "text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
        f".f{{visibility:hidden;animation:s {seconds:.1f}s infinite step-end}}"
        f"@keyframes s{{0%{{visibility:visible}}{share:.3f}%{{visibility:hidden}}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        "<title>A sweep of 24 tasks, packed on two GPUs</title>"
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>{shown}</svg>\n'
    )


def main(target: Path) -> None:
    """Record the run and write the picture."""
    with tempfile.TemporaryDirectory(prefix="recording-", ignore_cleanup_errors=True) as name:
        target.write_text(animated(record(Path(name))), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
