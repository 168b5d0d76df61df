"""The shape of every verb's --json output: one table for the documentation, the schemas and the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.reporting.columns import COLUMNS

Shape = Any
"""A word (`text`, `integer`, `number`, `boolean`, `any`; with `?` where it may be null), a list of one shape, a mapping
of names to shapes, or a tuple of shapes of which one holds. A name that ends with `?` may be missing, `*` stands for
every other name."""

SPAN = {"likely": "number", "early": "number", "late": "number"}
EXPECTED = ({"at": "number", "end": (SPAN, "null"), "why": "text", "held": "integer", "too_long": "integer"}, "null")
TASK_EXPECTED = ({"start": (SPAN, "null"), "end": SPAN, "devices": ["text"]}, "null")
STATES = {"*": "integer"}
BYTES = {"*": "integer"}

_RUN = {
    "number": "integer", "name": "text", "file": "text", "alive": "boolean", "accepted": "number", "directory": "text",
    "host": "text", "devices": {"*": "text"}, "states": STATES,
}  # fmt: skip
_TEXTS = frozenset({
    "key", "name", "state", "reason", "device", "source", "submitted", "started", "ended", "command",
    "directory", "log", "mps", "node",
})  # fmt: skip
_ALWAYS = {
    "id": "integer", "key": "text", "row": "integer", "name": "text", "state": "text", "priority": "integer",
    "batch": "integer", "attempts": "integer", "ooms": "integer", "command": "text", "directory": "text",
}  # fmt: skip
_TASK = {name: _ALWAYS.get(name, "text?" if name in _TEXTS else "number?") for name in COLUMNS} | {
    "fenced": "boolean?",
    "*": "any",
}
_RESULTS = {"format": "integer", "run": _RUN, "tasks": [_TASK]}
_RUN_OF_MANY = {
    **_RUN,
    "over": "boolean",
    "paused": "boolean",
    "paused_until": "number?",
    "elsewhere": "text",
    "ended": "number",
    "expected": EXPECTED,
    "state?": "text",
}
_TROUBLED = {"number": "integer", "trouble": "text", "*": "any"}
_ANSWERED = {
    "format": "integer",
    "runs": [
        {
            "run": "integer",
            "file": "text",
            "applied": "text",
            "answers": [{"tasks": ["integer"], "done": "boolean", "says": "text"}],
        }
    ],
}
_STARTED = {
    "format": "integer",
    "run": "integer",
    "pid": "integer",
    "tasks": "integer",
    "log": "text",
    "hints?": ["text"],
}
_TAKEN_OVER = {"number": "integer", "trouble": "text", "exit_code": "integer", "*": "any"}
_WAITED = {"priority": "integer", "tasks": "integer", "median_s": "number", "p95_s": "number", "max_s": "number"}
_LISTED = {**_RESULTS, "run": {**_RUN, "expected": EXPECTED}, "tasks": [{**_TASK, "expected": TASK_EXPECTED}]}
_SIMULATED = {
    "policy": "text", "tasks": "integer", "states": STATES, "makespan": "number", "lower_bound": "number",
    "ratio": "number?", "reasons": [{"seconds": "number", "why": "text"}], "mean_completion": "number",
    "mean_completion_bound": "number", "p95_completion": "number", "p95_completion_bound": "number",
    "waits": {"*": {"tasks": "integer", "mean": "number", "max": "number", "*": "any"}}, "ooms": "integer",
    "unknown_ooms": "integer", "bypassed_max": "integer", "stretched": "integer", "memory_use": "number",
    "load_use": "number", "energy_wh": "number", "*": "any",
}  # fmt: skip
_MEMORY = {"total": "integer", "free": "integer", "reserved": "integer"}
_MACHINE = {
    "format": "integer",
    "hostname": "text",
    "host": {"total": "integer", "available": "integer"},
    "leases": [
        {
            "user": "text", "run": "text", "task": "integer", "pid": "integer", "shim": "integer", "since": "number",
            "reserved": BYTES, "used": BYTES, "alone": "boolean", "ends": "number?", "*": "any",
        }
    ],
    "waiting": [
        {
            "user": "text", "run": "text", "task": "integer", "devices": ["text"], "gpus": "integer",
            "bytes": "integer?", "waited": "number", "keeps_devices": "boolean",
        }
    ],
    "gpus": [
        {
            "device": "text", "total": "integer", "free": "integer", "reserved": "integer",
            "unmanaged": [{"user": "text", "pid": "integer", "bytes": "integer"}], "tasks": "integer",
            "drained": "text", "busy": "number?", "celsius": "integer?", "watts": "number?",
        }
    ],
    "gpus_trouble": "text",
    "disabled": {"*": "text"},
    "runs": [(_RUN_OF_MANY, _TROUBLED)],
    "nodes?": [
        {
            "run": "integer", "node": "text", "away": "text", "gpus": "integer", "gpu_memory": _MEMORY, "ram": _MEMORY,
            "cores": "number", "tasks": ["integer"],
        }
    ],
    "*": "any",
}  # fmt: skip
_TOP = {
    "format": "integer",
    "run": "integer",
    "what": "text",
    "now": "number",
    "seconds": "number",
    "states": STATES,
    "retried": "integer",
    "ooms": "integer",
    "bars": [
        {
            "label": "text", "total": "integer", "ours": "integer", "others": "integer", "reserved": "integer",
            "buffer": "integer", "free": "integer", "tasks": "integer", "load": "number?", "capacity": "number",
            "celsius": "integer?",
            "watts": "number?",
            "drained": "text",
            "node": "text",
        }
    ],
    "living": [
        {
            "task": "integer", "attempt": "integer", "name": "text", "devices": ["text"], "probe": "boolean",
            "asked": "text", "seconds": "number", "epochs": "number?", "of_epochs": "integer?", "used": "integer?",
            "peak": "integer", "reserved": "integer", "left": "number?", "metrics": {"*": ["number?"]},
        }
    ],
    "queue": {
        "first": [{"batch": "integer", "tasks": "integer", "priorities": {"*": "integer"}}],
        "batches": "integer",
        "tasks": "integer",
    },
    "end": (SPAN, "null"),
    "unknown": "text",
    "draining": "boolean",
    "paused": "boolean",
    "paused_until": ("number", "null"),
    "tasks": "integer",
    "over": "integer",
    "*": "any",
}  # fmt: skip
_WHY = {
    "format": "integer",
    "runs": [
        (
            {
                "run": "integer",
                "alive": "boolean",
                "tasks": [
                    {
                        "id": "integer", "state": "text", "says": "text", "attempts": "integer", "outcome": "text?",
                        "reason": "text?", "log": "text?",
                        "waits": (
                            {
                                "refusal": {"task": "integer", "reason": "text", "*": "any"},
                                "wants": {"bytes": "integer?", "source": "text", "*": "any"},
                                "devices": [{"device": "text", "room": "integer", "total": "integer", "held": ["any"]}],
                                "bypassed": "integer", "at_most": "integer", "room_in": "number?", "after": "integer",
                            },
                            "null",
                        ),
                        "expected": TASK_EXPECTED,
                    }
                ],
            },
            {
                "run": "integer", "alive": "boolean", "states": STATES, "reasons": {"*": "integer"}, "says": ["text"],
                "expected": EXPECTED,
            },
        )
    ],
}  # fmt: skip
_PLAN = {
    "format": "integer", "file": "text", "tasks": "integer", "batches": "integer",
    "starts": [{"row": "integer", "name": "text", "reserved": BYTES, "source": "text"}],
    "waits": [{"row": "integer", "name": "text", "why": "text"}], "over_in_s": (SPAN, "null"), "why": "text",
    "timeline": [{"row": "integer", "name": "text", "device": "text", "start_s": "number", "end_s": "number"}],
    "guessed": "integer", "hints": ["text"],
}  # fmt: skip
_PROFILES = {
    "format": "integer",
    "profiles": [
        {
            "key": "text", "what": "text", "device": "text", "updated": "text", "version": "text",
            "peak_bytes": "integer", "runs": "integer", "parts": {"*": {"peak_bytes": "integer", "*": "any"}},
            "epoch_seconds": "number",
            "whole_seconds": "number", "cores": "number", "busy": "number", "*": "any",
        }
    ],
    "scripts": ["any"],
}  # fmt: skip
_PROFILE_FILE = {
    "format": "integer",
    "profiles": [
        {
            "key": "text", "what": "text", "device": "text", "updated": "number",
            "parts": {"*": {"full": ["integer"], "lower": "integer", "lower_by": "text", "above": "integer"}},
            "epoch_seconds": "number", "whole_seconds": "number", "cores": "number", "busy": "number",
            "family": "text", "slots": ["any"], "relations": ["text"],
        }
    ],
}  # fmt: skip
_REPORT = {
    "format": "integer",
    "runs": [
        {
            "number": "integer", "name": "text", "file": "text", "host": "text", "alive": "boolean", "began": "text",
            "begin": "number", "seconds": "number", "states": STATES, "summary": {"*": "number?"},
            "waits": [_WAITED],
            "devices": [
                {
                    "key": "text", "label": "text", "capacity": "integer", "bar_columns": ["text"],
                    "load_columns": ["text"], "load": [["number?"]], "*": "any",
                }
            ],
            "arrows": [["integer"]],
            "task_columns": ["text"], "tasks": [["any"]], "parameters": ["text"], "settings": [["text"]],
            "metrics": [{"name": "text", "goal": "text", "curve_columns": ["text"], "curves": [["any"]]}], "*": "any",
        }
    ],
    "*": "any",
}  # fmt: skip
_EXPERIMENT = {
    "format": "integer",
    "folder": "text",
    "terms": {"*": "any"},
    "context": {"simulated": "boolean", "mps_speed": "number?", "notes": ["text"]},
    "machine": {"*": "any"},
    "verdict": "text",
    "unfinished_run": "integer?",
    "readings": [
        {
            "arm": "text", "repeat": "integer", "run": "integer?", "tasks": "integer", "succeeded": "integer",
            "epochs": "integer", "makespan_s": "number", "task_mean_s": "number", "ooms": "integer",
            "residents_max": "integer", "under_mps": "integer", "mps_clients": "integer", "energy_j": "number?",
            "waits": [
                {
                    "batch": "integer", "priority": "integer", "tasks": "integer", "wait_mean_s": "number",
                    "wait_max_s": "number",
                }
            ],
            "machine_state": {"*": "any"},
        }
    ],
}  # fmt: skip
_DOCTOR = {
    "format": "integer",
    "hostname": "text",
    "ok": "boolean",
    "summary": "text",
    "lines": [
        {
            "group": "text", "mark": "text", "what": "text", "says": "text", "cure": "text", "note": "text",
            "broken": "boolean", "stops": "boolean",
        }
    ],
    "gpus": [
        {
            "index": "integer", "instance": "integer?", "uuid": "text", "model": "text", "total_bytes": "integer",
            "free_bytes": "integer?", "allowed": "boolean", "usable": "boolean", "reserved_used_bytes": "integer",
            "unmanaged_bytes": "integer", "kept_bytes": "integer",
        }
    ],
    "settings": [{"name": "text", "value": "any", "unit": "text", "source": "text"}],
    "failed": [{"check": "text", "traceback": "text"}],
}  # fmt: skip
_DEVICES = {
    "format": "integer",
    "devices": [
        {
            "device": "text", "key": "text", "model": "text", "total_bytes": "integer", "free_bytes": "integer",
            "reserved_bytes": "integer", "unmanaged": [{"user": "text", "pid": "integer", "bytes": "integer"}],
            "drained": "text", "disabled_for": ["integer"], "*": "any",
        }
    ],
    "disabled": {"*": "text"},
    "*": "any",
}  # fmt: skip
_SUBMITTED = {"format": "integer", "run": "integer", "queue": "text", "tasks": ["integer"]}
_RESERVED = {"device": "text", "user": "text", "by": "text", "until": "number", "why": "text", "sentence": "text"}

PRINTS: Mapping[str, Sequence[tuple[str, Shape]]] = {
    "run": (("at the end", _RESULTS), ("--dry-run", _PLAN), ("-d", _STARTED)),
    "exec": (("-d", _SUBMITTED),),
    "submit": (("", _SUBMITTED),),
    "lease": (("on standard error, once it is granted", {**_SUBMITTED, "gpus": ["integer"]}),),
    "grid": (("one line for each combination", {"Command": "text", "*": "any"}), ("--submit", _SUBMITTED)),
    "resume": (
        ("at the end", _RESULTS),
        ("-d", _STARTED),
        ("--all", {"format": "integer", "runs": [_TAKEN_OVER]}),
    ),
    "retry": (("", _ANSWERED),),
    "stop": (("", {"format": "integer", "run": "integer", "asked": "text", "says": "text"}),),
    "cancel": (("", _ANSWERED),),
    "set": (("", _ANSWERED),),
    "hold": (("", _ANSWERED),),
    "release": (("", _ANSWERED),),
    "pause": (("", _ANSWERED),),
    "unpause": (("", _ANSWERED),),
    "wait": (
        (
            "",
            {
                "format": "integer",
                "exit_code": "integer",
                "runs": [
                    {
                        "run": "integer",
                        "exit_code": "integer",
                        "unfinished": "integer",
                        "states": {"*": "integer"},
                        "tasks": [{"id": "integer", "state": "text"}],
                    }
                ],
            },
        ),
    ),
    "logs": (
        (
            "",
            {
                "format": "integer", "run": "integer", "task": "integer", "attempt": "integer", "log": "text",
                "text": "text", "*": "any",
            },
        ),
        (
            "several tasks, RUN",
            {
                "format": "integer",
                "tasks": [
                    {
                        "run": "integer", "task": "integer", "name": "text", "state": "text", "attempt": "integer",
                        "log": "text", "text": "text",
                    }
                ],
            },
        ),
    ),
    "list": (
        ("RUN", _LISTED),
        ("", {"format": "integer", "runs": [{"run": _LISTED["run"], "tasks": _LISTED["tasks"]}]}),
    ),
    "why": (("", _WHY),),
    "status": (("", _MACHINE),),
    "top": (("", _TOP), ("--all", _MACHINE)),
    "devices": (
        ("", _DEVICES),
        ("disable, enable", _ANSWERED),
        ("disable, enable --all-users", {"format": "integer", "disabled": {"*": "text"}}),
        ("reserve", {"format": "integer", "reserved": [_RESERVED]}),
        ("init", {"format": "integer", "done": ["text"]}),
    ),
    "doctor": (("", _DOCTOR),),
    "runs": (
        ("", {"format": "integer", "runs": [(_RUN_OF_MANY, _TROUBLED)]}),
        ("rm", {"format": "integer", "removed": [{"number": "integer", "file": "text", "freed_bytes": "integer"}]}),
    ),
    "profiles": (
        ("", _PROFILES),
        ("forget", {"format": "integer", "forgot": "integer"}),
        ("export", _PROFILE_FILE),
        ("import", {"format": "integer", "imported": "integer", "known": "integer"}),
    ),
    "simulate": (("", _SIMULATED), ("--compare", [_SIMULATED])),
    "experiment": (("", _EXPERIMENT),),
    "results": (
        ("", _RESULTS),
        ("several RUNs, --since", {"format": "integer", "runs": [{"run": _RUN, "tasks": [_TASK]}]}),
    ),
    "report": (("", _REPORT),),
    "mcp": (
        (
            "",
            {
                "format": "integer",
                "queue": "text",
                "tools": [{"name": "text", "description": "text", "read_only": "boolean", "arguments": {"*": "any"}}],
            },
        ),
    ),
    "completion": (
        ("bash, zsh, fish", {"format": "integer", "shell": "text", "script": "text"}),
        ("words", {"format": "integer", "words": ["text"]}),
    ),
}  # fmt: skip
"""The shapes of each verb, by case. Sizes are bytes; times are seconds, moments seconds since the epoch."""

_WORDS = {"text": "string", "integer": "integer", "number": "number", "boolean": "boolean", "null": "null"}


def schema(shape: Shape) -> dict[str, Any]:
    """Convert a shape to JSON Schema (2020-12)."""
    if isinstance(shape, str):
        word = shape.removesuffix("?")
        if word == "any":
            return {}
        return {"type": [_WORDS[word], "null"] if shape.endswith("?") else _WORDS[word]}
    if isinstance(shape, tuple):
        return {"anyOf": [schema(one) for one in shape]}
    if isinstance(shape, list):
        return {"type": "array", "items": schema(shape[0])}
    named = {name.removesuffix("?"): schema(one) for name, one in shape.items() if name != "*"}
    required = [name for name in shape if name != "*" and not name.endswith("?")]
    others = schema(shape["*"]) if "*" in shape else False
    return {"type": "object", "properties": named, "required": required, "additionalProperties": others}


def described(shape: Shape, indent: int = 0) -> str:
    """Return a shape as text for the documentation."""
    if isinstance(shape, str):
        return shape
    if isinstance(shape, tuple):
        return " or ".join(described(one, indent) for one in shape)
    if isinstance(shape, list):
        return f"[{described(shape[0], indent)}, ...]"
    if all(isinstance(one, str) for one in shape.values()) and len(shape) <= 4:
        return "{" + ", ".join(f"{name}: {one}" for name, one in shape.items()) + "}"
    inner = " " * (indent + 2)
    lines = [f"{inner}{name}: {described(one, indent + 2)}" for name, one in shape.items()]
    return "{\n" + "\n".join(lines) + "\n" + " " * indent + "}"
