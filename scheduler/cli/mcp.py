"""`scheduler mcp`: a server by which agents submit tasks and read results, over the Model Context Protocol."""

from __future__ import annotations

import sys

from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.errors import MissingPackage
from scheduler.store.queue.queue_link import checked_name

QUEUE = "agent"
PACKAGE = "'gpu-batch-scheduler[mcp]'"


def main(argv: list[str]) -> int:
    """Answer an agent's requests on standard input and output until it closes them."""
    parser = Parser(
        "mcp",
        "Let an agent (a program that a language model steers) submit tasks, read results and cancel what it has\n"
        "submitted. The agent's program starts this server and talks to it on standard input and output, by the Model\n"
        f"Context Protocol. It needs the Python package mcp: pip install {PACKAGE}",
        "scheduler mcp --read-only",
    ).common()
    parser.add_argument("--read-only", action="store_true", help="the agent can look at everything and change nothing")
    parser.add_argument(
        "--queue", default=QUEUE, metavar="NAME", help=f"name of the queue of what agents submit (default {QUEUE})"
    )
    parser.add_argument("--json", action="store_true", help="print the tools and their arguments as JSON, and end")
    args = parser.parse_args(argv)
    settings, queue = settings_from(args), checked_name(args.queue)
    try:
        from scheduler.app.agents.server import described, made_server
    except ImportError as exc:
        raise MissingPackage(
            f"the Python package mcp, version 2, is missing: {sys.executable} -m pip install {PACKAGE}"
        ) from exc
    from scheduler.app.agents.tools import AgentTools

    server = made_server(AgentTools(settings, queue), read_only=args.read_only)
    if args.json:
        show((), {"queue": queue, "tools": described(server)}, as_json=True)
    else:
        server.run()
    return 0
