"""The kinds of requests to a run, and the words that clients send for them.

This module is light, since every client of a run loads it.
"""

from __future__ import annotations

from enum import StrEnum

from scheduler.core.model import LIVING, UNSUCCESSFUL, State

UNSTARTED = frozenset({State.WAITING, State.BLOCKED, State.HELD, State.INTERRUPTED})
"""The states of tasks that have no living attempt and may still get one."""


NOW = "now"
"""The word with which a request to cancel kills running tasks at once, without a stop signal and a grace period."""


class RunRequest(StrEnum):
    """The requests that concern a whole run; they come as signals or from commands."""

    DRAIN = "drain"
    """Start no more tasks; running ones end by themselves."""
    STOP = "stop"
    """Also stop running tasks: stop signal, grace period, SIGKILL."""
    KILL = "kill"
    LEAVE = "leave"
    """End only the scheduler; its tasks continue under their shims."""
    HANGUP = "hangup"
    """Go on without the terminal."""
    WHY = "why"
    """Say why tasks wait; only a running scheduler can answer."""
    LIMIT = "limit"
    """Change the limits of the run."""
    GIVE_UP = "give-up"
    """Count the tasks of a node that cannot be reached as lost; only a running scheduler can do so."""
    SUBMIT = "submit"
    """Accept new tasks; the client waits for the answer, and sends the request again if the scheduler has ended."""


ENDINGS = frozenset({RunRequest.DRAIN, RunRequest.STOP, RunRequest.KILL, RunRequest.LEAVE})
"""Requests after which the run starts nothing more."""


class Verb(StrEnum):
    """The requests that change tasks."""

    fits: frozenset[State]
    """The states in which a task can be changed by this request."""
    done: str
    """The answer for a changed task that has no living attempt."""
    nothing: str
    """The answer if no task of the run is in one of the states in `fits`."""

    def __new__(cls, word: str, fits: frozenset[State] = UNSTARTED, done: str = "", nothing: str = "") -> Verb:
        """Create a member with its properties; `Verb(word)` returns the member with that word."""
        verb = str.__new__(cls, word)
        verb._value_, verb.fits, verb.done = word, fits, done
        verb.nothing = nothing or "the run has no such task"
        return verb

    CANCEL = "cancel", UNSTARTED | LIVING, "cancelled"
    HOLD = "hold", frozenset({State.WAITING, State.BLOCKED}), "held", "no task of the run waits"
    RELEASE = "release", frozenset({State.HELD}), "released", "no task of the run is held"
    RETRY = (
        "retry", UNSUCCESSFUL, "queued again", "no task of the run failed, ran out of memory or time, or was cancelled",
    )  # fmt: skip
    SET = "set", UNSTARTED | UNSUCCESSFUL, "", "no task of the run waits"


CONTROLS = frozenset({*Verb, RunRequest.LIMIT})
"""Requests that are kept for the run's next scheduler if no scheduler is running."""
