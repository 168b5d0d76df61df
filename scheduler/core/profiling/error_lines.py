"""The error lines of an output, without colours, frames and source code, and the search for its last error.

A failed program may have printed anything before it failed. Only its last error explains why it failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduler.patterns import lazy_pattern

_CONTROL = lazy_pattern(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x08\x0e-\x1f]"
)
LONGEST = 2000
"""The number of characters that are examined at each end of a line."""
_FRAME = lazy_pattern(r"^\s*[│┃║]\s?(.*?)\s*[│┃║]?\s*$")
_BORDER = lazy_pattern(r"^\s*[╭╰┌└┏┗╔╚+][─━═\-].*$")
_FRAMED_CODE = lazy_pattern(r"^\s*(?:❱\s*)?\d+\s+│")
_STACK = lazy_pattern(r'^(?P<before>.{0,200}?)(?P<indent> *)File "[^"]{1,500}", line \d+')
_ARROW = lazy_pattern(r"^-+> *(\d+)\s")
_NUMBERED = lazy_pattern(r"^ +(\d+)(?:\s|$)")
"""A numbered source line in a traceback as IPython prints it."""
AROUND = 5
"""The number of source lines that IPython prints before and after the line that failed."""

MESSAGE = 3
"""The number of lines of an exception's message that are examined."""
EXCEPTION = lazy_pattern(
    r"(?:^|[\s|\]]|(?<!:):)(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt)|Exception))"
    r"(?::(?!:)|\s*$)"
)
"""The last line of a traceback, which names the exception."""
_IGNORED = lazy_pattern(r"^\s*File .*, in __del__\s*$|\bException ignored in\b")
"""The beginning of an exception that Python prints but does not raise, because it happens during clean-up."""
_CHAINED = lazy_pattern(r"During handling of the above exception|The above exception was the direct cause")
_REPORTS = lazy_pattern(
    r"(?:Called|Child|Remote|Raised|Exited|Fork|Launch|Process|Worker|Actor|Task|Job|Rule|Engine|Dist|Broken|EOF|Pipe"
    r"|Connect|Socket|Rpc|Channel|Keyboard|Timeout|Closed|Cancel|Abort|Interrupted|Execution|Shutdown|Subprocess)"
    r"\w*(?:Error|Exception|Interrupt)$"
)
"""Names of exceptions that only report that another process failed, or that follow from such a failure."""
_REPORTED = lazy_pattern(
    r"\b(?:process(?:es)?|workers?|subprocess(?:es)?|child(?:ren)?|engine|actors?|ranks?|jobs?|server|backend)\b"
    r".{0,80}\b(?:fail(?:ed|ure)?|died|dead|exit(?:ed)?|terminated|killed|crash(?:ed)?|abort(?:ed)?|lost|did not)\b"
    r"|\b(?:(?:fail(?:ed|ure)?|unable) to|could not|cannot) (?:start|create|initiali[sz]e|launch|load|build)\b"
    r"|\binitiali[sz]ation failed\b|\bnon-zero exit\b",
    re.IGNORECASE,
)
"""Words in the message of any other exception that report the failure of another process."""


_SAYS_ERROR = lazy_pattern(
    r"^(?:[\w./-]{1,80}: ){0,2}(?:fatal )?(?:error|fatal)(?:\[\w+\])?: |^panic: |\bpanicked at "
    r"|^terminate called after throwing|^Segmentation fault\b",
    re.IGNORECASE,
)
"""The beginning of a line in which a program that is not written in Python says why it fails."""
NEAR = 60
"""The last error is searched for in this many lines at the end of an output. It may be followed by other lines, because
trackers and launchers print their summaries after it."""
SAID = 300
"""The most characters that are kept of an error."""


def last_error(output: str) -> str:
    """Return the line of a failed program's output that says why it failed, at most SAID characters: its last exception
    with its message, else another line that begins as an error, else the last line that is not blank.

    A progress bar that overwrites its line counts as one line, with its last state. Frames, source code and reports of
    other processes' failures are left out.
    """
    lines = without_code(clean("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in output.split("\n"))))
    lines = [line.rstrip() for line in lines if line.strip()]
    near, reported = lines[-NEAR:], ""
    for place in range(len(near) - 1, -1, -1):
        found = EXCEPTION.search(near[place])
        if found is None or (place and _IGNORED.search(near[place - 1])):
            continue
        message = " ".join(line.strip() for line in _message(near[place : place + MESSAGE]))
        said = message[found.start("type") :].strip()
        if not _only_reports(found["type"], message):
            return said[:SAID]
        reported = reported or said
    other = next((place for place in range(len(near) - 1, -1, -1) if _SAYS_ERROR.search(near[place])), None)
    if other is not None:
        return " ".join(line.strip() for line in _message(near[other : other + MESSAGE]))[:SAID]
    return (reported or (lines[-1].strip() if lines else ""))[:SAID]


def clean(output: str) -> list[str]:
    """Return the lines of an output without colours, control characters and the frames that rich draws.

    Of a very long line only the beginning and the end are kept.
    """
    return [_unframed(_cut(line)) for line in _CONTROL.sub("", output).splitlines()]


def _cut(line: str) -> str:
    return line if len(line) <= 2 * LONGEST else f"{line[:LONGEST]} … {line[-LONGEST:]}"


def _unframed(line: str) -> str:
    start = line.lstrip()[:1]
    if start and start in "│┃║":
        framed = _FRAME.match(line)
        return framed[1] if framed else line
    return "" if start and start in "╭╰┌└┏┗╔╚+" and _BORDER.match(line) else line


def without_code(lines: Sequence[str]) -> list[str]:
    """Return the lines, with the source code in tracebacks replaced by empty lines: code may contain the name of any
    error.
    """
    kept: list[str] = []
    column = -1  # lines that are indented more are code of the present frame; -1: no frame
    for line in lines:
        stack = _STACK.match(line) if 'File "' in line else None
        if stack:
            column = len(stack["before"]) + len(stack["indent"])
        elif column >= 0 and not line[column:].startswith("  "):
            column = -1
        kept.append("" if (column >= 0 and not _IGNORED.search(line)) or _FRAMED_CODE.match(line) else line)
    for place, line in enumerate(lines):
        if line.startswith("-") and (arrow := _ARROW.match(line)):
            _empty_around(kept, place, int(arrow[1]))
    return kept


def _empty_around(lines: list[str], place: int, number: int) -> None:
    """Empty the line at `place`, which has an arrow and the line number `number`, and the lines around it that are
    numbered in sequence with it.
    """
    lines[place] = ""
    for other in range(max(0, place - AROUND), min(len(lines), place + AROUND + 1)):
        beside = _NUMBERED.match(lines[other])
        if beside and int(beside[1]) - number == other - place:
            lines[other] = ""


def is_another_error(lines: Sequence[str]) -> bool:
    """Tell whether the lines after an error report another, unrelated error.

    An exception is related if it was raised while the first error was handled, if it was ignored, or if it only reports
    the failure of another process.
    """
    belongs = False
    for place, line in enumerate(lines):
        if _CHAINED.search(line) or _IGNORED.search(line):
            belongs = True
            continue
        found = EXCEPTION.search(line)
        if found is None:
            continue
        message = " ".join(_message(lines[place : place + MESSAGE]))
        if not belongs and not _only_reports(found["type"], message):
            return True
        belongs = False
    return False


def _message(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of an exception's message. The message continues after a final colon, and in indented lines."""
    goes_on = lines[0].rstrip().endswith(":")
    more = next((at for at, line in enumerate(lines[1:], 1) if not line.startswith((" ", "\t"))), len(lines))
    return lines[: max(more, 2 if goes_on else 1)]


def _only_reports(exception: str, message: str) -> bool:
    name = exception.rpartition(".")[2]
    others = (word for word in re.findall(r"\b[A-Z]\w+", message) if word != name)
    return any(_REPORTS.search(word) for word in (name, *others)) or _REPORTED.search(message) is not None
