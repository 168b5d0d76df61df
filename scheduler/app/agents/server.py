"""The server of the Model Context Protocol over standard input and output; the only module that imports `mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import Field, ValidationError

from scheduler import __version__
from scheduler.app.agents.short_answers import MOST_LINES, MOST_ROWS
from scheduler.app.agents.tools import LONGEST_WAIT, MOST_TASKS, AgentTools, Answer
from scheduler.errors import SchedulerError

INSTRUCTIONS = (
    "Submits GPU jobs to the scheduler of this machine, which packs several on each GPU by the memory that it has "
    "learned, and reads their states, logs and results. Submit a sweep with one call (parameters), wait with list and "
    "wait_s, then ask results for the best. A number is a task, r3 is a run. Lists are short: give "
    "next_cursor as cursor to get the rest. Only tasks that were submitted here can be cancelled here."
)
Text = Annotated[str, Field(max_length=40_000)]
Word = Annotated[str, Field(max_length=200)]
Run = Annotated[str, Field(description="a run: r3, its name, or last; empty: the latest", max_length=200)]
Cursor = Annotated[str | None, Field(description="next_cursor of the previous answer", max_length=20)]
Limit = Annotated[int, Field(description="rows in the answer", ge=1, le=MOST_ROWS)]
Parameters = Annotated[
    dict[str, list[str | int | float]] | None,
    Field(description=f"names and their values: one task for each combination, at most {MOST_TASKS}"),
]
Samples = Annotated[int | None, Field(description="the size of a random sample of the combinations", ge=1)]
Wait = Annotated[
    float,
    Field(
        description="first wait until all tasks of the run have ended, at most this many seconds", ge=0, le=LONGEST_WAIT
    ),
]


def made_server(tools: AgentTools, *, read_only: bool = False) -> MCPServer:
    """Return the server with its tools; with `read_only`, leave out the tools that change anything."""
    server = PlainServer("scheduler", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")
    offered = OfferedTools(tools)
    views = (offered.list, offered.why, offered.logs, offered.results, offered.forecast, offered.doctor)
    for tool in views if read_only else (offered.submit, offered.cancel, *views):
        about = ToolAnnotations(
            read_only_hint=tool in views,
            destructive_hint=tool == offered.cancel,
            idempotent_hint=tool != offered.submit,
            open_world_hint=False,
        )
        server.add_tool(_translated(tool), description=tool.__doc__, annotations=about)
    return server


def described(server: MCPServer) -> list[dict[str, Any]]:
    """Return the tools of a server as JSON values: what each does, and the schema of its arguments."""
    tools = asyncio.run(server.list_tools())
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "read_only": tool.annotations.read_only_hint,
            "arguments": tool.input_schema,
        }
        for tool in tools
    ]


class PlainServer(MCPServer):  # type: ignore[misc]  # mypy follows no import of the extra
    """A server that tells in one sentence which arguments are wrong."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Any = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool; if its arguments are wrong, raise ToolError with one sentence about them."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as exc:
            if not isinstance(exc.__cause__, ValidationError):
                raise
            wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in exc.__cause__.errors()]
            raise ToolError(f"{name}: {'; '.join(wrong)}") from exc


def _translated(tool: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return a tool whose refusals reach the agent as one sentence."""

    @wraps(tool)
    def translated(**words: Any) -> Answer:
        try:
            return tool(**words)
        except SchedulerError as exc:
            raise ToolError(str(exc)) from exc

    return translated


class OfferedTools:
    """The tools as agents see them: their schemas are made from the signatures, their descriptions from the first
    lines.
    """

    def __init__(self, tools: AgentTools) -> None:
        self._tools = tools

    def submit(  # noqa: PLR0913 - each is an argument of the tool
        self,
        command: Annotated[Text, Field(description="a shell command; {lr} is the value of the parameter lr")],
        parameters: Parameters = None,
        samples: Samples = None,
        seed: Annotated[int, Field(description="seed of the sample")] = 0,
        directory: Annotated[Word, Field(description="directory of the tasks; empty: that of this server")] = "",
        gpus: Annotated[int | None, Field(description="GPUs of each task; 0: host only; default 1", ge=0)] = None,
        memory: Annotated[Word, Field(description="GPU memory of each task, as 8GiB; empty: it is learned")] = "",
        host_memory: Annotated[Word, Field(description="RAM of each task, as 4GiB; empty: it is learned")] = "",
        cpus: Annotated[float | None, Field(description="cores of each task; default: learned", gt=0)] = None,
        priority: Annotated[int, Field(description="a task with a smaller number starts first")] = 0,
        timeout: Annotated[Word, Field(description="time limit of each task, as 2h")] = "",
        after: Annotated[Word, Field(description="start after these tasks have succeeded, as 17-20,25")] = "",
    ) -> Answer:
        """Submit a command as a task, or one for each combination of parameters, and return the ids at once."""
        fields = {
            "GPUs": "" if gpus is None else str(gpus),
            "Memory": memory,
            "HostMemory": host_memory,
            "CPUs": "" if cpus is None else f"{cpus:g}",
            "Priority": str(priority) if priority else "",
            "Timeout": timeout,
            "After": after,
        }
        return self._tools.submit(command, parameters, samples, seed, directory, fields)

    def cancel(
        self,
        tasks: Annotated[Word, Field(description="tasks that agents submitted, as 17-40,52")] = "",
        everything: Annotated[bool, Field(description="all unfinished tasks that agents submitted")] = False,
    ) -> Answer:
        """Cancel tasks for good: running ones are stopped, waiting ones never start. Only what agents submitted."""
        return self._tools.cancel(tasks, everything=everything)

    def list(
        self,
        run: Annotated[Word, Field(description="a run: r3, its name, or last; empty: all runs")] = "",
        state: Annotated[Word, Field(description="only tasks in these states, as running,waiting")] = "",
        cursor: Cursor = None,
        limit: Limit = 20,
        wait_s: Wait = 0.0,
    ) -> Answer:
        """List the runs of this user, or the tasks of one run with states, memory, metrics and ETA."""
        return self._tools.list(run, state, cursor, limit, wait_s)

    def why(self, task: Annotated[Word, Field(description="a task, as 17, or a run, as r3")]) -> Answer:
        """Explain why a task waits, with the numbers, or why it ended as it did; for a run, what its tasks wait for."""
        return self._tools.why(task)

    def logs(
        self,
        task: Annotated[Word, Field(description="a task, as 17")],
        lines: Annotated[int, Field(description="the last lines", ge=1, le=MOST_LINES)] = 50,
    ) -> Answer:
        """Return the last lines of the output of a task's last attempt."""
        return self._tools.logs(task, lines)

    def results(
        self,
        run: Run = "",
        best: Annotated[Word, Field(description="a metric: only the tasks with the best values")] = "",
        goal: Annotated[Word, Field(description="min or max; empty: by the name of the metric")] = "",
        group_by: Annotated[Word, Field(description="a parameter: one line for each of its values")] = "",
        cursor: Cursor = None,
        limit: Limit = 10,
    ) -> Answer:
        """Return the results of a run with metrics: the best tasks by a metric, groups of them, or all by pages."""
        return self._tools.results(run, best, goal, group_by, cursor, limit)

    def forecast(self, run: Run = "") -> Answer:
        """Return when a run is expected to end."""
        return self._tools.forecast(run)

    def doctor(self) -> Answer:
        """Return what does not work on this machine, and how to mend it; that takes some seconds."""
        return self._tools.doctor()
