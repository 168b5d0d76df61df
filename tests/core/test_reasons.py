"""Why a task waits: the exact paragraph for each kind of refusal, from the decision that makes it."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core import reasons
from scheduler.core.brain import Brain
from scheduler.core.events import Limited
from scheduler.core.explain import waits
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence
from scheduler.core.model import Budget, Foreign
from tests.builders import asked, brain, gpu, hold, host, machine, place, slots, tasks, tell
from tests.core.test_gpus import *  # noqa: F403
