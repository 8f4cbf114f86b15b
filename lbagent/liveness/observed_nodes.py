"""Which of the observed nodes this node misses, by when they answered last. Pure: times are seconds of one steady clock.

A node is missed when it has not answered for MISSED_S, and each kind of attempt went unanswered: the echo of its agent, and by
its kernel ICMP echo and a TCP connection (a RST is an answer, too). It is suspected when this node also reaches a majority of the
other nodes that it observes: one that is cut off itself suspects no node. Both end when the node has answered for RETURN_S.

A node counts from its first answer on. One that this agent suspected before its restart is missed until it answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum

from msgspec import Struct

MISSED_S = 2.0
RETURN_S = 2.0
DOUBT_S = 0.9  # without an answer for so long, its kernel is asked, too
SILENT_S = 1.2  # longer than a live kernel takes to answer
WAIT_S = 0.5  # an attempt without an answer for so long has failed
GAP_S = 1.2  # between two answers of a node that answers again
STALL_S = 1.0  # between two looks: this agent was stopped, or got no processor, and may have missed answers


class Attempt(Enum):
    """What a node is asked by."""

    ECHO = "echo"  # its agent
    ICMP = "icmp"  # its kernel
    TCP = "tcp"  # the same


class _Node(Struct):
    agent_silent_from: float  # when its agent's silence began to count; its kernel may answer
    answered_at: float | None = None
    silent_from: float = 0.0  # when its silence began to count
    asked: dict[Attempt, float] = {}  # since then: when each attempt was made first
    is_missed: bool = False
    is_suspected: bool = False
    answers_since: float | None = None  # of a missed node


class ObservedNodes:
    """The nodes that this one observes."""

    def __init__(self, now: float) -> None:
        self._nodes: dict[str, _Node] = {}
        self._looked_at = now  # by the last look()

    def use(self, nodes: Collection[str], suspected: Collection[str] = ()) -> None:
        """Observe these nodes from now on. Those that are new and `suspected` are missed until they answer."""
        for name in self._nodes.keys() - set(nodes):
            del self._nodes[name]
        for name in nodes:
            if name not in self._nodes:
                is_suspected = name in suspected
                self._nodes[name] = _Node(self._looked_at, is_missed=is_suspected, is_suspected=is_suspected)

    @property
    def names(self) -> Collection[str]:
        """The observed nodes."""
        return self._nodes.keys()

    def asked(self, name: str, attempt: Attempt, now: float) -> None:
        """Record an attempt to reach a node."""
        node = self._nodes.get(name)
        if node is not None:
            node.asked.setdefault(attempt, now)

    def answered(self, name: str, attempt: Attempt, now: float) -> None:
        """Record an answer of a node."""
        node = self._nodes.get(name)
        if node is None:
            return
        if attempt is Attempt.ECHO:
            node.agent_silent_from = now
        if node.is_missed and (node.answers_since is None or now - (node.answered_at or now) > GAP_S):
            node.answers_since = now
        node.answered_at = node.silent_from = now
        node.asked = {}

    def look(self, now: float) -> None:
        """Decide which nodes are missed, and suspected. Answers that have arrived must be recorded before."""
        is_stalled, self._looked_at = now - self._looked_at > STALL_S, now
        for name, node in self._nodes.items():
            if is_stalled:
                node.silent_from = node.agent_silent_from = now
                node.asked = {}
                node.answers_since = None
            elif node.is_missed:
                self._end(node, now)
            elif node.answered_at is not None and now - node.silent_from >= MISSED_S:
                node.is_missed = all(now - node.asked.get(each, now) >= WAIT_S for each in Attempt)
            if node.is_missed and not node.is_suspected:
                node.is_suspected = self._reaches_majority(name, now)

    def _end(self, node: _Node, now: float) -> None:
        if node.answers_since is None or node.answered_at is None:
            return
        if now - node.answered_at > GAP_S:
            node.answers_since = None
        elif now - node.answers_since >= RETURN_S:
            node.is_missed = node.is_suspected = False
            node.answers_since = None

    def _reaches_majority(self, besides: str, now: float) -> bool:
        others = [node for name, node in self._nodes.items() if name != besides and node.answered_at is not None]
        return not others or 2 * sum(self._answers(node, now) for node in others) > len(others)

    def _answers(self, node: _Node, now: float) -> bool:
        return not node.is_missed and now - node.silent_from < MISSED_S

    def is_doubtful(self, name: str, now: float) -> bool:
        """Return whether the kernel of a node must be asked, too: its agent does not answer."""
        node = self._nodes[name]
        return now - node.silent_from >= DOUBT_S

    def silent(self, now: float) -> frozenset[str]:
        """Return the nodes that have not answered for SILENT_S: some of them may soon be missed."""
        return frozenset(name for name, node in self._nodes.items() if node.is_missed or self._is_silent(node, now))

    def _is_silent(self, node: _Node, now: float) -> bool:
        return node.answered_at is not None and now - node.silent_from >= SILENT_S

    def without_agent(self, now: float) -> frozenset[str]:
        """Return the nodes whose agents have not answered for MISSED_S: these observe no node."""
        return frozenset(name for name, node in self._nodes.items() if now - node.agent_silent_from >= MISSED_S)

    def missed(self) -> Iterator[str]:
        """Iterate over the missed nodes, also those that are not suspected as this node may be cut off."""
        return (name for name, node in self._nodes.items() if node.is_missed)

    def suspected(self) -> frozenset[str]:
        """Return the nodes whose suspicion this node publishes."""
        return frozenset(name for name, node in self._nodes.items() if node.is_suspected)

    @property
    def is_cut_off(self) -> bool:
        """Whether this node misses nodes, and does not reach a majority: it may be cut off itself."""
        return any(node.is_missed and not node.is_suspected for node in self._nodes.values())

    def has_others(self, name: str) -> bool:
        """Return whether this node observes other nodes, by which it can tell that it is not cut off itself."""
        return any(other != name and node.answered_at is not None for other, node in self._nodes.items())
