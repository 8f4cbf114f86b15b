"""Which nodes are alive, by when changes of their Leases were seen; and whether the view is as on the server. Pure.

Clocks of nodes are not compared: a Lease expires when it has not changed for its own duration, by the clock of the reader (as
in client-go's leaderelection). A node sees no change while the server does not answer. So it watches its own Lease too: while no
change of that one arrives, the state of the others is unknown; when one arrives again, they get a full duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct


class _Life(Struct):
    renewed: str  # the Lease's renewTime, only compared for equality
    duration_s: float
    seen_at: float


class NodeLives:
    """When the last change of each node's Lease was seen. `now` is seconds of one steady clock."""

    def __init__(self, own: str, duration_s: float) -> None:
        self._own, self._duration_s = own, duration_s
        self._lives: dict[str, _Life] = {}
        self._fresh_since = float("inf")
        self.dead: frozenset[str] = frozenset()  # by the observers of nodes: their Leases need not expire

    def see(self, node: str, renewed: str, duration_s: float, now: float) -> None:
        """Record the current Lease of a node."""
        life = self._lives.get(node)
        if life is not None and life.renewed == renewed:
            return
        if node == self._own and not self.is_fresh(now):
            self._fresh_since = now
        self._lives[node] = _Life(renewed, duration_s, now)

    def forget(self, node: str) -> None:
        """Record that a node has no Lease any more."""
        self._lives.pop(node, None)

    def is_fresh(self, now: float) -> bool:
        """Return whether changes of this node's Lease arrive: the server answers and sends changes."""
        own = self._lives.get(self._own)
        return own is not None and now - own.seen_at < own.duration_s

    def dead_s(self, node: str, now: float) -> float:
        """Return how long ago the Lease of a node expired, negative while it is valid; 0 at least for a dead node.

        A node without one counts from the start.
        """
        life = self._lives.get(node)
        seen_at = max(life.seen_at, self._fresh_since) if life else self._fresh_since
        expired_s = now - seen_at - (life.duration_s if life else self._duration_s)
        return max(0.0, expired_s) if node in self.dead else expired_s

    def next_end(self, now: float, before_s: float) -> float:
        """Return when the next Lease expires, or is `before_s` from that, if no change arrives; inf for none."""
        ends = (now - self.dead_s(node, now) for node in self._lives if node != self._own)
        return min((at for end in ends for at in (end - before_s, end) if at > now), default=float("inf"))

    def state(self, now: float, is_overdue: Callable[[float], bool]) -> frozenset[tuple[str, bool]]:
        """Return the live nodes, each with whether its Lease is overdue."""
        dead_s = ((node, self.dead_s(node, now)) for node in self._lives)
        return frozenset((node, is_overdue(since)) for node, since in dead_s if since < 0)

    def alive(self, now: float) -> Iterator[str]:
        """Iterate over the nodes whose Leases have not expired."""
        return (node for node in self._lives if self.dead_s(node, now) < 0)
