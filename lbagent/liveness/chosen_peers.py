"""Which nodes this one observes: each node has so many observers, the first ones by rendezvous hashing. Pure.

Of 1,000 nodes the first choice takes a tenth of a second. A node that joins or leaves concerns few of the others.
"""

from __future__ import annotations

from lbagent.model.rendezvous import comes_before, is_among_first


class ChosenPeers:
    """The nodes that a node observes."""

    def __init__(self, own: str, observers: int) -> None:
        """`observers`: how many each node has where there are enough nodes."""
        self._own, self._observers = own, observers
        self._nodes: frozenset[str] = frozenset()
        self.peers: frozenset[str] = frozenset()

    def update(self, nodes: frozenset[str]) -> None:
        """Take the present nodes."""
        joined, left = nodes - self._nodes, self._nodes - nodes
        self._nodes = nodes
        in_doubt = (self.peers | joined if joined else set()) - left
        if left:
            rest = nodes - self.peers - joined - {self._own}
            in_doubt |= {node for node in rest if any(comes_before(node.encode(), gone, self._own) for gone in left)}
        chosen = {node for node in in_doubt if node != self._own and self._observes(node)}
        self.peers = frozenset((self.peers - left - in_doubt) | chosen)

    def _observes(self, node: str) -> bool:
        others = (each for each in self._nodes if each != node)
        return is_among_first(node.encode(), self._own, others, self._observers)
