"""Whether every backend can be reached: there is a route, its device is up, its next hop answers."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from lbagent.agent.conditions.condition import Condition, ConditionName, Severity
from lbagent.model.address import format_ip
from lbagent.net.paths import gateways
from lbagent.targets.bpf.backends import each_backend

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.net.paths import Hop

# Until a neighbour that was just asked for has answered, and the endpoint of a pod has followed its device: seen at two looks.
GRACE_S = 2.5
MOST_NAMED = 20  # conditions of one name; the rest is counted
T = TypeVar("T", bound=Hashable)


class Lasting(Generic[T]):
    """Remembers since when each of some things is so."""

    def __init__(self) -> None:
        self._since: dict[T, float] = {}

    def of(self, found: Collection[T]) -> list[T]:
        """Return those that are so for GRACE_S already, in the order in which they are given."""
        now = time.monotonic()
        self._since = {each: self._since.get(each, now) for each in found}
        return [each for each, since in self._since.items() if now - since >= GRACE_S]


class NextHopsCheck:
    """Remembers since when each next hop of a backend is not resolved."""

    def __init__(self) -> None:
        self._lasting: Lasting[Hop] = Lasting()

    def __call__(self, components: AgentComponents) -> Iterator[Condition]:
        """Name each next hop that backends need and that has no neighbour entry with a MAC address.

        A gateway is the node's; any other next hop is an endpoint that a Service names.
        """
        network = components.network.network
        late = self._lasting.of(sorted(components.network.finder.hops - network.neighbours.keys()))
        behind = frozenset(gateways(network)) if late else frozenset()
        late.sort(key=lambda hop: hop not in behind)  # a gateway is always among those that are named
        for hop in late[:MOST_NAMED]:
            index, address = hop
            link = network.links.get(index)
            name, text = link.name if link else f"device {index}", format_ip(address)
            yield Condition(
                ConditionName.NEXT_HOP_UNRESOLVED,
                f"{text} {name}",
                f"next hop {text} on {name} does not answer: backends behind it get no packets",
                f"is that host up, and the link to it? `ip neigh show {text}`",
                own_severity=Severity.FAULT if hop in behind else None,
            )
        if len(late) > MOST_NAMED:
            text = f"{len(late) - MOST_NAMED} more next hops do not answer"
            yield Condition(ConditionName.NEXT_HOP_UNRESOLVED, "more", text)


class PathsCheck:
    """Remembers since when each backend has no usable route."""

    def __init__(self) -> None:
        self._lasting: Lasting[tuple[bytes, str]] = Lasting()

    def __call__(self, components: AgentComponents) -> Iterator[Condition]:
        """Name each backend to which this node has no usable route. A device that is down is the node's."""
        unusable = components.network.finder.unusable
        # the finder remembers what it was asked; not all of it need still be a backend
        backends = {b.address.address for b in each_backend(components.bpf.state)} if unusable else set()
        found = self._lasting.of(sorted((address, why) for address, why in unusable.items() if address in backends))
        for address, why in found[:MOST_NAMED]:
            text, route = format_ip(address), components.network.network.route(address)
            link = components.network.network.links.get(route.ifindex) if route else None
            is_down = link is not None and not link.up
            yield Condition(
                ConditionName.PATH_UNUSABLE,
                text,
                f"backend {text} cannot be reached: {why}",
                f"see `ip route get {text}`; add the route, or take the backend out of its slice",
                own_severity=Severity.FAULT if is_down else None,
            )
        if len(found) > MOST_NAMED:
            more = f"{len(found) - MOST_NAMED} more backends cannot be reached"
            yield Condition(ConditionName.PATH_UNUSABLE, "more", more)
