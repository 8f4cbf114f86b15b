"""Which nodes are dead, by the suspicions that observers have published. Pure: times are seconds of one steady clock.

A node is dead when three of its observers suspect it, or all where it has fewer. An agent that does not answer observes no node,
and is not waited for as long as there are two others. The suspicion of an observer that is suspected so itself does not count: it
may be cut off with a part of the nodes. Where the API server takes no suspicions, a node leaves out those that it suspects itself.
A node that is cut off itself declares no further node dead.

Panic rule: if a third or more of the nodes, and at least three, would be dead, none is; more probably the network between them is
cut. Where not all nodes observe each other, most observers of some nodes are behind the cut with them: so those that any observer
suspects count as well, if half of them would be dead.

Suspicions arrive one by one, and end one by one. So a node is declared dead only when there was no new one for SETTLE_S, the
missing and the silent nodes together are no panic, and there was none for PANIC_HOLD_S.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from msgspec import Struct

MIN_OBSERVERS = 3  # that suspect a node
MIN_WITH_AGENT = 2  # the same where agents do not answer: a single observer may be wrong about them, too
MIN_PANIC = 3  # nodes
SETTLE_S = 0.4
PANIC_HOLD_S = 6.0  # longer than the nodes of a part that is connected again take to return


class Suspicions(Struct, frozen=True, gc=False):
    """The nodes with agents, and which observers suspect which of them, as published.

    `observers`: how many each node has where there are enough nodes. `own`: the nodes that this one suspects and cannot publish.
    `silent`: those that may soon be missing, as they do not answer this node. `without_agent`: those whose agents do not.
    `is_cut_off`: this node may be cut off itself.
    """

    nodes: Set[str]
    published: Mapping[str, Collection[str]]
    observers: int
    own: Collection[str] = ()
    silent: Collection[str] = ()
    without_agent: Collection[str] = ()
    is_cut_off: bool = False

    def missing(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the nodes that enough observers suspect, and those that any suspects."""
        mute = self.nodes & set(self.without_agent)

        def needed(node: str) -> int:
            """Return how many observers must suspect a node."""
            observing = len(self.nodes) - len(mute) - (node not in mute)
            return min(MIN_OBSERVERS, self.observers, len(self.nodes) - 1, max(MIN_WITH_AGENT, observing))

        by = {node: (self.nodes & set(by)) - {node} for node, by in self.published.items() if node in self.nodes}
        unreliable = {node for node, observers in by.items() if len(observers) >= needed(node)}
        reliable = {node: observers - unreliable for node, observers in by.items()}
        own = self.nodes & set(self.own)
        found = {node for node, observers in reliable.items() if observers and len(observers) >= needed(node)}
        return frozenset(found | own), frozenset({node for node, observers in reliable.items() if observers} | own)


def is_panic(missing: int, nodes: int) -> bool:
    """Return whether so many of the nodes are missing that none may be declared dead."""
    return missing >= MIN_PANIC and 3 * missing >= nodes


class DeadNodes:
    """The dead nodes, never this one. `missing` are those that would be dead without the panic rule, while `is_panic`."""

    def __init__(self, here: str) -> None:
        self._here = here
        self.dead: frozenset[str] = frozenset()
        self.missing: frozenset[str] = frozenset()
        self.is_panic = False
        self._published: frozenset[tuple[str, str]] = frozenset()
        self._wait_until = float("-inf")
        self.is_waiting = False  # a node that is missing is not declared dead yet

    def decide(self, suspicions: Suspicions, now: float) -> None:
        """Take the present suspicions."""
        missing, suspected = suspicions.missing()
        published = frozenset((node, by) for node, observers in suspicions.published.items() for by in observers)
        published |= {(node, self._here) for node in suspicions.own}
        if published - self._published:
            self._wait_until = max(self._wait_until, now + SETTLE_S)
        self._published, self.missing, nodes = published, missing, len(suspicions.nodes)
        hides = nodes - 1 > suspicions.observers and 2 * len(missing) >= len(suspected)
        self.is_panic = is_panic(len(suspected if hides else missing), nodes)
        if self.is_panic:
            self._wait_until = now + PANIC_HOLD_S
            self.dead = frozenset()
        elif suspicions.is_cut_off or now < self._wait_until or self._panic_may_follow(suspicions):
            self.dead &= missing
        else:
            self.dead = missing - {self._here}
        self.is_waiting = not (self.is_panic or self.dead == missing - {self._here})

    def _panic_may_follow(self, suspicions: Suspicions) -> bool:
        return is_panic(len(self.missing | (suspicions.nodes & set(suspicions.silent))), len(suspicions.nodes))
