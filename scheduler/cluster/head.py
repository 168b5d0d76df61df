"""The nodes of a run at its head: their links, their last reports, and the orders that they were given."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from scheduler.cluster import fence, forms, mirror
from scheduler.cluster.frames import Message
from scheduler.cluster.link import NodeLink
from scheduler.cluster.node import Node, named_budget, take_report
from scheduler.cluster.node_sources import NodeSources
from scheduler.core.attempts.launch_spec import TaskPaths
from scheduler.core.events import Exited, Started
from scheduler.core.leases import HeldLease
from scheduler.core.model import Outcome, Placement
from scheduler.core.ports import Answer, Happening, Key
from scheduler.errors import DeviceError, describe_os_error
from scheduler.units import count, duration
from scheduler.values import replace

CONNECT = 15.0
"""Seconds within which a node must answer before a run starts without it."""
SILENCE = 3.0
"""Seconds without a message from a node after which nothing starts on it."""
COMPARE = 5.0
"""Seconds within which a node that serves a run must say which things it lacks for new tasks."""
ANSWER = 2.0
"""Seconds within which a node must say whether it took reservations."""
AGAIN = 1.0
"""Seconds between two attempts to reach a node."""
ECHO = 1.0
"""Seconds between two signs of life to a node."""
FIRST_REPORTS = 1.0
"""Seconds for which a run waits for the first report of each node."""
GOODBYE = 3.0
"""Seconds within which the agents must end when their run is over."""
REFUSED = 1.0
"""Seconds for which nothing starts on a node that refused a reservation."""


class Nodes:
    """All nodes of a run, as one source of events."""

    def __init__(self, sources: NodeSources, hello: Mapping[str, Any], node_fence: float = 0.0) -> None:
        """Prepare the nodes; `hello` is the first message to each agent, `node_fence` a time in seconds (0: none)."""
        self._sources, self._fence = sources, node_fence
        self.grace_of: Callable[[int], float] = lambda _: 0.0
        """A function that returns the grace period of a task in seconds."""
        self._hello = dict(hello)
        self._join: dict[str, Any] | None = None
        self.nodes: dict[str, Node] = {}
        self.environments: dict[Key, tuple[Mapping[str, str | None], Mapping[str, str | None], Sequence[int]]] = {}
        """The variables that the nodes gave to each attempt with its reservation: for most programs, and for programs
        that read device numbers. The third value contains the numbers of the GPUs inside the task."""
        self._where: dict[Key, Node] = {}
        self.needs: Callable[[], Mapping[str, Any]] | None = None
        """A function that returns what tasks need on a node that first answers during the run; None: nothing is
        compared."""
        self._compared: set[str] = set()
        """The nodes that have checked whether they have what the tasks need."""
        self._places: TaskPaths | None = None
        self._epoll = select.epoll()
        self._by_fd: dict[int, Node] = {}
        """The node of each link, by the descriptor that is waited on."""
        self._news: list[Happening] = []
        self._sentences: list[str] = []
        self._number = 0
        self._echoed = 0.0
        self._hearers: Mapping[str, Callable[[Node, Any], None]] = {
            "report": take_report,
            "event": lambda node, said: self._hear_event(node, forms.event_from_dict(said)),
            "sample": lambda node, said: self._news.append(forms.SAMPLE.from_dict(said)),
            "file": self._write,
            "took": self._hear_took,
            "lacks": self._hear_lacks,
            "trouble": lambda node, said: self._sentences.append(f"{node.name}: {said}"),
            "here": lambda node, said: self._greeted(node, forms.FACTS.from_dict(said)),
            "refused": lambda node, said: self._lose(node, str(said)),
            "replaced": lambda _, said: self._retire(str(said)),
        }

    # ---- before the run ----

    def connect(self) -> None:
        """Connect to all nodes at once. Raise DeviceError if none answers, UsageError if a cluster cannot be used."""
        self._sources.connect()
        self._add_nodes()
        end = time.monotonic() + CONNECT
        for node in self.nodes.values():
            self._dial(node)
        while any(node.facts is None and node.link is not None for node in self.nodes.values()):
            left = end - time.monotonic()
            if left <= 0:
                break
            self._epoll.poll(min(left, 0.2))
            self._read_all()
        for node in self.nodes.values():
            if node.facts is None and node.link is not None:
                self._lose(node, f"it did not answer within {CONNECT:g} s")
        self._refuse_twins()
        if not self.present():
            said = "; ".join(f"{node.name}: {node.why_away}" for node in self.nodes.values())
            raise DeviceError(f"no node can be used: {said}")

    def _add_nodes(self) -> None:
        self._sources.look()
        for named in self._sources.names():
            if named.name not in self.nodes:
                self.nodes[named.name] = Node(named)

    def _refuse_twins(self) -> None:
        """Refuse two names of one machine."""
        seen: dict[tuple[str, str], Node] = {}
        for node in self.present():
            assert node.facts is not None
            other = seen.setdefault(node.facts.identity, node)
            if other is not node:
                both = f"{other.name} and {node.name} are the same machine ({node.facts.host})"
                raise DeviceError(f"{both}: name each machine once")

    def present(self) -> list[Node]:
        """Return the nodes that have sent their facts."""
        return [node for node in self.nodes.values() if node.facts is not None]

    def notes(self) -> list[str]:
        """Return a sentence about each node that did not answer."""
        return [f"{node.name} is away: {node.why_away}" for node in self.nodes.values() if node.facts is None]

    def compare(self, said: Mapping[str, Any]) -> dict[str, list[str]]:
        """Ask each node which of the things that a list needs it lacks; a node that does not answer counts as away."""
        before = self._join is None
        asked = [node for node in self.nodes.values() if (node.is_there if before else node.joined)]
        for node in asked:
            assert node.link is not None
            node.took = None
            node.link.send({"compare": dict(said)})
        self._wait_for(asked, CONNECT if before else COMPARE)
        answered = {node.name: node.took["lacks"] for node in asked if node.took is not None and "lacks" in node.took}
        self._compared.update(answered)
        return answered

    def join(self, places: TaskPaths, said: Mapping[str, Any]) -> None:
        """Make the agents serve a run from now on; `said` contains the facts that the agents need for this."""
        self._places, self._join = places, dict(said)
        for node in self.present():
            if node.link is None:
                continue
            if self._compared and node.name not in self._compared and self.needs is not None:
                node.link.send({"compare": dict(self.needs())})  # the node answered after the others
            else:
                self._enter(node)

    def await_reports(self) -> None:
        """Wait a moment for the first report of each node, so that the first tasks are spread over all of them."""
        end = time.monotonic() + FIRST_REPORTS
        while any(node.joined and not node.view for node in self.nodes.values()) and time.monotonic() < end:
            self._epoll.poll(0.05)
            self._read_all()

    # ---- links ----

    def _dial(self, node: Node) -> None:
        node.heard = time.monotonic()
        try:
            node.link = NodeLink(node.named)
        except OSError as exc:
            self._lose(node, describe_os_error(exc))
            return
        self._epoll.register(node.link, select.EPOLLIN)
        self._by_fd[node.link.fileno()] = node
        node.link.send({"hello": self._hello})

    def _lose(self, node: Node, why: str) -> None:
        """Close the link to a node, and connect again later."""
        if node.link is not None:
            self._epoll.unregister(node.link)
            self._by_fd.pop(node.link.fileno())
            node.link.close()
        if node.joined:
            future = f"must end within {duration(self._fence)}" if self._fence else "run on"
            running = f"; {count(len(node.living), 'task')} there {future}" if node.living else ""
            self._sentences.append(f"{node.name} is away ({why}): nothing starts there until it answers{running}")
        node.link, node.joined, node.is_there, node.why_away = None, False, False, why
        node.carried.drop()
        node.due = time.monotonic() + AGAIN
        node.took = {"leases": [], "why": why}

    def _retire(self, why: str) -> None:
        """Close all links for good, because another scheduler has taken the run over."""
        for node in self.nodes.values():
            self._lose(node, why)
            node.due = inf

    def _enter(self, node: Node) -> None:
        """Make the agent of a new link serve the run, and send it the node's attempts and the orders that waited for
        the link.
        """
        assert node.link is not None
        assert self._places is not None
        node.link.send({"join": self._join})
        node.joined, node.view = True, 0
        for key, placement in node.living.items():
            sizes = mirror.sizes(self._places, key)
            node.link.send({"adopt": {"placement": forms.event_to_dict(placement), "sizes": sizes}})
        for order in node.unsent:
            node.link.send(order)
        node.unsent.clear()
        if node.watched:
            node.link.send({"watch": node.watched})

    def fileno(self) -> int:
        """Return the descriptor that is readable when `collect` may have something to return."""
        return self._epoll.fileno()

    def collect(self) -> list[Happening]:
        """Return what happened on the nodes, and keep the links alive."""
        self._add_nodes()
        self._read_all()
        now = time.monotonic()
        for node in self.nodes.values():
            if node.link is None:
                if now >= node.due:
                    self._dial(node)
            elif node.link.ended:
                self._read(node)
            elif now - node.heard > (SILENCE if node.joined else CONNECT):
                self._lose(node, f"not heard for {now - node.heard:.0f} s")
            if self._fence and not node.joined:
                self._give_up_fenced(node, now)
        if now - self._echoed >= ECHO:
            self._echoed = now
            for node in self.nodes.values():
                node.order({"echo": node.echo})
        news, self._news = self._news, []
        return news

    def _give_up_fenced(self, node: Node, now: float) -> None:
        """Count the attempts that a node's fence has certainly ended as lost. The node cannot have received an echo of
        any report after its last one.
        """
        silent = now - node.reported - self._fence - fence.MARGIN
        over = [key for key in node.living if silent > self.grace_of(key[0])]
        for key in over:
            del node.living[key]
            node.started.discard(key)
            self.environments.pop(key, None)
            self._news.append(Exited(*key, Outcome.LOST, reason=f"{node.name} was not heard any more", node_lost=True))
        if over:
            said = f"{node.name} was not heard for {now - node.reported:.0f} s and has ended its tasks (--node-fence)"
            self._sentences.append(f"{said}: {count(len(over), 'task')} of it start again on the other nodes")

    def sentences(self) -> list[str]:
        """Return what users should know about the nodes, each once."""
        said, self._sentences = self._sentences, []
        return said

    def _read_all(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if (node := self._by_fd.get(fd)) is not None:  # an event of another node may have closed this link
                self._read(node)

    def _read(self, node: Node) -> None:
        link = node.link
        if link is None:
            return
        messages = link.receive()
        if messages:
            node.heard = time.monotonic()
        for message in messages:
            for name, said in message.items():
                self._hearers[name](node, said)
        node.push()
        if link.ended and node.link is link:
            self._lose(node, link.why_ended())

    def _hear_took(self, node: Node, said: Message) -> None:
        if said["number"] == self._number:
            node.took = said

    def _greeted(self, node: Node, facts: forms.NodeFacts) -> None:
        if node.facts is not None and node.facts.identity != facts.identity:
            was = node.facts.host
            self._lose(node, f"another machine ({facts.host}) answers to this name; the run knows it as {was}")
            return
        new = node.facts is None
        node.is_there = True
        if new:
            node.facts, node.reported = facts, time.monotonic()
            node.budgets = tuple(named_budget(budget, node) for budget in facts.budgets)
            node.layout += 1
        if self._join is None:
            return
        if new and self.needs is not None and node.link is not None:
            node.link.send({"compare": dict(self.needs())})
            return
        self._welcome(node)

    def _hear_lacks(self, node: Node, lacks: list[str]) -> None:
        """Handle a node's answer about the things that it lacks. The answer was requested before tasks were accepted,
        or when the node joined a run.
        """
        if self._join is None or node.joined:
            node.took = {"lacks": lacks}
        elif lacks:
            node.facts = None
            self._lose(node, lacks[0])
        else:
            self._welcome(node)

    def _welcome(self, node: Node) -> None:
        self._sentences.append(f"{node.name} has answered {'again' if node.clock else 'and joined the run'}")
        self._enter(node)

    def _hear_event(self, node: Node, event: object) -> None:
        if isinstance(event, Started):
            key = (event.task, event.attempt)
            if key in node.living and key not in node.started:
                node.started.add(key)
                self._news.append(event)
        elif isinstance(event, Exited) and (event.task, event.attempt) in node.living:
            key = (event.task, event.attempt)
            del node.living[key]
            if event.outcome is Outcome.LOST and key not in node.started:
                event = replace(event, outcome=Outcome.UNSTARTED)  # the order was lost with a link
            node.started.discard(key)
            self.environments.pop(key, None)
            self._news.append(event)

    def _write(self, node: Node, said: Sequence[Any]) -> None:
        """Write a piece of an attempt's file that its node has sent, unless the attempt is no longer on that node."""
        assert self._places is not None
        task, attempt, name, at, text = said
        if (task, attempt) not in node.living:
            return
        try:
            mirror.write(self._places, task, attempt, name, at, text)
        except OSError as exc:
            self._sentences.append(f"the output of task {task} cannot be copied from {node.name}: {exc.strerror}")

    # ---- orders ----

    def node_of(self, key: Key) -> Node | None:
        """Return the node of an attempt, which is known until the attempt is forgotten."""
        return self._where.get(key)

    def _expect(self, node: Node, placement: Placement) -> None:
        key = (placement.task, placement.attempt)
        node.living[key] = placement
        self._where[key] = node

    def forget(self, key: Key) -> None:
        """Make the node of an attempt remove the attempt's files there; ask all nodes if the attempt ended before this
        process began.
        """
        node = self._where.pop(key, None)
        for one in self.nodes.values() if node is None else (node,):
            one.order({"forget": [*key]}, lasting=node is not None)

    def take(self, placements: Sequence[Placement]) -> Iterator[tuple[Placement, HeldLease]]:
        """Take reservations, with one message to each node; leave out reservations that a node refuses."""
        self._number += 1
        asked: dict[str, list[Placement]] = {}
        for placement in placements:
            asked.setdefault(placement.node, []).append(placement)
        for name, some in asked.items():
            node = self.nodes[name]
            node.took = None if node.joined else {"leases": [], "why": node.why_away}
            said = [forms.event_to_dict(placement) for placement in some]
            node.order({"take": {"number": self._number, "view": node.view, "placements": said}})
        self._wait_for([self.nodes[name] for name in asked])
        taken = {name: self._taken(self.nodes[name]) for name in asked}
        for placement in placements:
            lease = taken[placement.node].get((placement.task, placement.attempt))
            if lease is not None:
                self._expect(self.nodes[placement.node], placement)
                yield placement, lease

    def _wait_for(self, nodes: Sequence[Node], patience: float = ANSWER) -> None:
        end = time.monotonic() + patience
        while any(node.took is None for node in nodes) and (left := end - time.monotonic()) > 0:
            self._epoll.poll(left)
            self._read_all()
        for node in nodes:
            if node.took is None:
                self._lose(node, f"it did not answer within {patience:g} s")

    def _taken(self, node: Node) -> dict[Key, HeldLease]:
        assert node.took is not None
        if node.took["why"]:
            node.refused = time.monotonic()
        taken = {}
        for task, attempt, path, port, plain, numbered, numbers in node.took["leases"]:
            taken[task, attempt] = HeldLease(path, -1, port)
            self.environments[task, attempt] = plain, numbered, numbers
        return taken

    def adopt(self, placement: Placement) -> None:
        """Order a node to take over an attempt that an earlier scheduler placed there."""
        assert self._places is not None
        key = (placement.task, placement.attempt)
        node = self.nodes[placement.node]
        self._expect(node, placement)
        sizes = mirror.sizes(self._places, key)
        node.order({"adopt": {"placement": forms.event_to_dict(placement), "sizes": sizes}})

    def give_up(self, name: str) -> Answer:
        """Give up a node that is away: its attempts count as lost and start again elsewhere, and it is not connected
        again.
        """
        node = self.nodes.get(name)
        if node is None:
            return Answer((), False, f"this run has no node {name!r}; it has {', '.join(self.nodes)}")
        if node.is_there:
            return Answer((), False, f"{name} answers: its tasks continue (scheduler devices disable starts no more)")
        lost, node.living, node.due = node.living, {}, inf
        node.why_away = "it was given up"
        for key in lost:
            self._news.append(Exited(*key, Outcome.LOST, reason=f"{name} was given up", node_lost=True))
        return Answer((), True, f"{name} is given up: {count(len(lost), 'task')} of it start again on the other nodes")

    @property
    def has_news(self) -> bool:
        """True if there is something that `collect` has not returned yet."""
        return bool(self._news)

    def close(self, *, over: bool) -> None:
        """End the links; if the run is `over`, the agents also remove the files of the run on their nodes."""
        for node in self.nodes.values():
            if over:
                node.order({"end": None})
        for node in self.nodes.values():
            if node.link is not None:
                node.link.close(GOODBYE if over else 0.0)
                node.link = None
        self._sources.close()
        if not self._epoll.closed:
            self._epoll.close()
