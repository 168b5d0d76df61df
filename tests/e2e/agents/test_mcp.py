"""`scheduler mcp` with the client of the package mcp: sweeps, pages, refusals, and a read-only server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.runtime.users import user_name
from tests.e2e.sharing.test_two_users import User, common, users  # noqa: F401 - fixtures
from tests.support.killing import Home
from tests.support.waiting import wait_until

mcp = pytest.importorskip("mcp")

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, sys
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
loss = abs(float(said["--lr"]) - 0.03) + int(said["--bs"]) / 1000
print("loss", loss)
with open(os.environ["SCHEDULER_RESULT"], "w") as file:
    json.dump({"val_loss": loss}, file)
"""
COMMAND = f"{sys.executable} train.py --lr {{lr}} --bs {{bs}}"
SWEEP = {"lr": [0.01, 0.03, 0.1], "bs": [8, 16]}
VIEWS = {"list", "why", "logs", "results", "forecast", "doctor"}


class Agent:
    """A client in one session, which counts its calls and writes them down."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.transcript: list[tuple[str, dict[str, Any], Any]] = []

    async def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in (await self._client.list_tools()).tools}

    async def answer(self, tool: str, **words: Any) -> Any:
        """Call a tool and return its answer, which must be no refusal."""
        result = await self._client.call_tool(tool, words)
        assert not result.is_error, result.content[0].text
        self.transcript.append((tool, words, result.structured_content))
        return result.structured_content

    async def refusal(self, tool: str, **words: Any) -> str:
        """Call a tool that must refuse, and return its sentence."""
        result = await self._client.call_tool(tool, words)
        assert result.is_error, result.structured_content
        assert "Traceback" not in result.content[0].text
        return str(result.content[0].text)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    yield made
    made.end()


def session(home: Home, talk: Callable[[Agent], Awaitable[Any]], *flags: str) -> Any:
    """Start a server, talk to it, and return what the talk returned."""
    from mcp import Client, StdioServerParameters

    async def whole() -> Any:
        words = [*home.command, "mcp", *flags]
        server = StdioServerParameters(command=words[0], args=words[1:], env=home.env, cwd=home.root)
        async with Client(server) as client:
            return await asyncio.wait_for(talk(Agent(client)), 100)

    return asyncio.run(whole())


def test_a_sweep_is_submitted_watched_and_its_best_reported_in_few_calls(home: Home) -> None:
    async def talk(agent: Agent) -> None:
        submitted = await agent.answer("submit", command=COMMAND, parameters=SWEEP, gpus=0)
        listed = await agent.answer("list", run=submitted["run"], wait_s=30)
        while not listed["all_ended"]:
            listed = await agent.answer("list", run=submitted["run"], wait_s=30)
        best = await agent.answer("results", run=submitted["run"], best="val_loss", limit=1)
        (one,) = best["best"]
        log = await agent.answer("logs", task=str(one["id"]))
        grouped = await agent.answer("results", run=submitted["run"], best="val_loss", group_by="lr")
        assert (submitted["count"], listed["states"]) == (6, {"succeeded": 6})
        assert (one["lr"], one["bs"], one["started_by"]) == ("0.03", "8", "agent")
        assert one["best"] == pytest.approx(0.008)
        assert log["text"].startswith("loss 0.00")
        assert [group["lr"] for group in grouped["groups"]] == ["0.03", "0.01", "0.1"]
        assert len(agent.transcript) < 25

    session(home, talk)


def test_tools_have_schemas_that_the_client_checks_and_say_whether_they_change_anything(home: Home) -> None:
    from jsonschema import Draft202012Validator

    async def talk(agent: Agent) -> None:
        tools = await agent.tools()
        assert set(tools) == {"submit", "cancel", *VIEWS}
        for name, tool in tools.items():
            Draft202012Validator.check_schema(tool.input_schema)
            assert tool.description
            assert tool.annotations.read_only_hint == (name in VIEWS)
            assert all("description" in one for one in tool.input_schema["properties"].values())
        assert tools["cancel"].annotations.destructive_hint

    session(home, talk)


def test_a_read_only_server_offers_nothing_that_changes_anything(home: Home) -> None:
    async def talk(agent: Agent) -> None:
        assert set(await agent.tools()) == VIEWS
        assert "submit" in await agent.refusal("submit", command="true")

    session(home, talk, "--read-only")
    assert not (home.state / "runs").exists()


def test_tasks_of_agents_are_marked_and_cancelled_together_and_other_tasks_are_left_alone(home: Home) -> None:
    mine = int(home.call("submit", "--gpus", "0", "--", "sleep", "60", code=0).stdout)

    async def talk(agent: Agent) -> None:
        await agent.answer("submit", command="sleep {s}", parameters={"s": [61, 62, 63]}, gpus=0)
        runs = (await agent.answer("list"))["runs"]
        assert [run.get("started_by") for run in runs] == ["agent", None]
        assert "which no agent submitted" in await agent.refusal("cancel", tasks=str(mine))
        assert "name tasks" in await agent.refusal("cancel")
        assert await agent.refusal("why", who="1", limit=0) == "why: task: Field required"
        assert (await agent.answer("cancel", everything=True))["count"] == 3
        assert (await agent.answer("list", run="agent", wait_s=50))["states"] == {"cancelled": 3}
        assert (await agent.answer("cancel", everything=True))["count"] == 0

    session(home, talk)
    listed = json.loads(home.call("list", "agent", "--json", code=0).stdout)["tasks"]
    assert [task["started_by"] for task in listed] == ["agent"] * 3
    (other,) = json.loads(home.call("list", "queue", "--json", code=0).stdout)["tasks"]
    assert other["state"] in ("running", "waiting")


def test_tasks_go_on_when_the_agent_leaves_and_the_next_session_finds_them(home: Home) -> None:
    async def first(agent: Agent) -> None:
        parent = await agent.answer("submit", command="until [ -e go ]; do sleep 0.05; done", gpus=0)
        fields = {
            "gpus": 0,
            "after": parent["tasks"],
            "priority": -1,
            "timeout": "1h",
            "cpus": 0.5,
            "host_memory": "64MiB",
        }
        await agent.answer("submit", command="pwd; echo {a}", parameters={"a": ["x y"]}, directory="sub", **fields)

    async def second(agent: Agent) -> None:
        listed = await agent.answer("list", run="agent", state="blocked,waiting")
        (task,) = listed["tasks"]
        assert listed["states"] == {"running": 1, "blocked": 1}
        assert "task" in (await agent.answer("why", task=str(task["id"])))["says"][0]
        (home.root / "go").touch()
        assert (await agent.answer("list", run="agent", wait_s=50))["all_ended"]
        log = await agent.answer("logs", task=str(task["id"]))
        assert log["text"] == f"{home.root}/sub\nx y\n"

    (home.root / "sub").mkdir()
    session(home, first)
    session(home, second)


def test_a_list_of_ten_thousand_tasks_is_a_short_page_with_a_cursor(home: Home) -> None:
    home.write("jobs.csv", "Command,Hold", *[["true", "yes"]] * 10_000)
    with home.start("run", "jobs.csv", "--gpus", "0") as process:
        wait_until(lambda: home.call("list", "last", "--json").stdout.count('"held"') >= 1, 30.0, pause=0.5)

        async def talk(agent: Agent) -> None:
            first = await agent.answer("list", run="last", limit=20)
            second = await agent.answer("list", run="last", limit=20, cursor=first["next_cursor"])
            assert (first["matching"], first["states"]) == (10_000, {"held": 10_000})
            assert len(json.dumps(first)) < 6000
            ids = [task["id"] for task in [*first["tasks"], *second["tasks"]]]
            assert ids == list(range(ids[0], ids[0] + 40))
            runs = await agent.answer("list")
            assert runs["next_cursor"] is None

        session(home, talk)
        process.terminate()
        process.terminate()
        process.wait(60)


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("submit", {"command": "  "}, "it is empty"),
    ("submit", {"command": "echo \0"}, "NUL"),
    ("submit", {"command": "x" * 39_000}, "at most 32,768"),
    ("submit", {"command": "x" * 50_000}, "at most 40000"),
    ("submit", {"command": "echo {a}", "parameters": {"a": list(range(2000))}}, "2,000 tasks"),
    ("submit", {"command": "echo {a.__class__}", "parameters": {"a": [1]}}, "is no parameter"),
    ("submit", {"command": "echo {a:>9999999999}", "parameters": {"a": [1]}}, "is no parameter"),
    ("submit", {"command": "echo {a", "parameters": {"a": [1]}}, "literal braces"),
    ("submit", {"command": "{a}" * 9000, "parameters": {"a": ["x" * 4000]}}, "more than 32,768"),
    ("submit", {"command": "echo {b}", "parameters": {"a": [1]}}, "'b' in braces is no parameter"),
    ("submit", {"command": "echo {a}", "parameters": {"a": []}}, "has no value"),
    ("submit", {"command": "echo", "parameters": {"started_by": ["me"]}}, "cannot be the name"),
    ("submit", {"command": "echo", "parameters": {f"p{n}": list(range(100)) for n in range(20)}}, "combinations"),
    ("submit", {"command": "echo", "directory": "/no/such"}, "no such directory"),
    ("submit", {"command": "echo", "memory": "lots"}, "lots"),
    ("submit", {"command": "echo", "gpus": -1}, "greater than or equal to 0"),
    ("submit", {"command": ["echo"]}, "valid string"),
    ("submit", {}, "command"),
    ("logs", {"task": "../../etc/passwd"}, "is not a task"),
    ("logs", {"task": "1\n2"}, "name a task"),
    ("logs", {"task": "1", "lines": 10**9}, "less than or equal to 500"),
    ("logs", {"task": "99999999999999999999"}, "no task has so high an id"),
    ("list", {"run": "r999"}, "no run 999"),
    ("list", {"run": "last", "cursor": "-1"}, "next_cursor"),
    ("list", {"run": "last", "state": "flying"}, "the states are"),
    ("results", {"best": "none"}, "no metric"),
    ("cancel", {"tasks": "1-99999999999"}, "there are no tasks 1-99999999999"),
    ("nothing", {}, "nothing"),
]


def test_hostile_input_is_refused_with_a_sentence_and_the_server_goes_on(home: Home) -> None:
    home.call("exec", "--gpus", "0", "--", "true", code=0)

    async def talk(agent: Agent) -> None:
        for tool, words, said in HOSTILE:
            try:
                refusal = await agent.refusal(tool, **words)
            except mcp.MCPError as exc:  # the protocol's own refusal
                refusal = str(exc)
            assert said in refusal, (tool, words, refusal)
        assert len((await agent.answer("list"))["runs"]) == 1

    session(home, talk)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_the_log_of_another_users_task_is_refused_with_the_owners_name(
    home: Home,
    users: list[User],  # noqa: F811 - the fixture
) -> None:
    ben = users[0]
    ben.root.mkdir()
    ben.write("jobs.csv", "Command", ["sleep 60"])
    for path in (ben.root, ben.root / "jobs.csv"):
        os.chown(path, ben.uid, ben.uid)
    ben.call("run", "-d", "jobs.csv", "--devices", "host", code=0)
    wait_until(lambda: ben.states() == ["running"], 30)
    home.env["SCHEDULER_LEASES"] = str(ben.leases)

    async def talk(agent: Agent) -> None:
        for tool, name in (("logs", "task"), ("why", "task"), ("cancel", "tasks")):
            said = await agent.refusal(tool, **{name: "0"})
            assert f"task 0 belongs to {user_name(ben.uid)}: only {user_name(ben.uid)} or root can read" in said

    session(home, talk)
    assert ben.states() == ["running"]


def test_logs_are_cut_and_contain_no_control_sequences(home: Home) -> None:
    program = "import sys; sys.stdout.write('x' * 100000 + '\\n' + '\\x1b[31mred\\x1b[0m\\x07\\n')"
    task = int(home.call("submit", "--gpus", "0", "--", sys.executable, "-c", program, code=0).stdout)
    home.call("wait", str(task), code=0)

    async def talk(agent: Agent) -> None:
        log = await agent.answer("logs", task=str(task))
        assert log["is_cut"]
        assert len(log["text"]) <= 16 * 1024
        assert log["text"].endswith("red\n")
        assert "\x1b" not in log["text"]

    session(home, talk)


def test_the_server_ends_when_its_client_closes_its_input(home: Home) -> None:
    began = time.monotonic()
    with home.start("mcp", stdin=-3) as process:  # /dev/null: at its end at once
        assert process.wait(30) == 0
    assert time.monotonic() - began < 30


def test_a_missing_package_is_named_with_the_command_that_installs_it(home: Home) -> None:
    (home.root / "mcp").mkdir()
    (home.root / "mcp/__init__.py").write_text("raise ImportError('no mcp here')")
    home.env["PYTHONPATH"] = f"{home.root}:{home.env['PYTHONPATH']}"
    said = home.call("mcp", code=1).stderr
    assert "the Python package mcp, version 2, is missing" in said
    assert "pip install 'gpu-batch-scheduler[mcp]'" in said
