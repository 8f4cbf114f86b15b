"""Whether every backend can be reached: there is a route, its device is up, its next hop answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.model.address import format_ip
from lbagent.sync.target.backends import each_backend

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.net.paths import Hop

GRACE_S = 2.5  # a neighbour that was just asked for answers in less: it must be away at two looks
MOST_NAMED = 20  # conditions of one name; the rest is counted


class NextHopsCheck:
    """Remembers since when each next hop of a backend is not resolved."""

    def __init__(self) -> None:
        self._since: dict[Hop, float] = {}

    def __call__(self, components: AgentComponents) -> Iterator[Condition]:
        """Name each next hop that backends need and that has no neighbour entry with a MAC address."""
        network, now = components.network.network, time.monotonic()
        missing = components.network.finder.hops - network.neighbours.keys()
        self._since = {hop: self._since.get(hop, now) for hop in missing}
        late = sorted(hop for hop, since in self._since.items() if now - since >= GRACE_S)
        for index, address in late[:MOST_NAMED]:
            link = network.links.get(index)
            name, text = link.name if link else f"device {index}", format_ip(address)
            yield Condition(
                ConditionName.NEXT_HOP_UNRESOLVED,
                f"{text} {name}",
                f"next hop {text} on {name} does not answer: backends behind it get no packets",
                f"is that host up, and the link to it? `ip neigh show {text}`",
            )
        if len(late) > MOST_NAMED:
            text = f"{len(late) - MOST_NAMED} more next hops do not answer"
            yield Condition(ConditionName.NEXT_HOP_UNRESOLVED, "more", text)


def check_paths(components: AgentComponents) -> Iterator[Condition]:
    """Name each backend to which this node has no usable route."""
    unusable = components.network.finder.unusable
    if not unusable:
        return
    # the finder remembers what it was asked; not all of it need still be a backend
    backends = {backend.address.address for backend in each_backend(components.bpf.state)}
    found = sorted((address, why) for address, why in unusable.items() if address in backends)
    for address, why in found[:MOST_NAMED]:
        text = format_ip(address)
        yield Condition(
            ConditionName.PATH_UNUSABLE,
            text,
            f"backend {text} cannot be reached: {why}",
            f"see `ip route get {text}`; add the route, or take the backend out of its slice",
        )
    if len(found) > MOST_NAMED:
        yield Condition(
            ConditionName.PATH_UNUSABLE, "more", f"{len(found) - MOST_NAMED} more backends cannot be reached"
        )
