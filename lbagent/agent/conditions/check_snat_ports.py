"""Which backends are nearly out of SNAT ports, by the live flows of the last sweep.

Each backend has the whole range of `--snat-ports`: what runs short, runs short for one backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.model.state import State

NEARLY = (
    0.9  # of a backend's ports held: new flows look at some dozens of ports, and hardly find a free one from here on
)
MAX_NAMED = 20


def check_snat_ports(components: AgentComponents) -> Iterator[Condition]:
    """Name each remote backend whose ports are nearly all held."""
    if components.sweeper and components.sweeper.live:
        first, last = components.config.snat_port_range
        yield from short_of_ports(components.bpf.state, components.sweeper.live, last - first + 1)


def short_of_ports(state: State, flows: Mapping[int, int], ports: int) -> Iterator[Condition]:
    """Yield a condition for each; `flows` are live flows by backend id."""
    many = {number: count for number, count in flows.items() if count >= NEARLY * ports}
    if not many:
        return
    short = [item for item in state.backends.values() if item.id in many and not item.local]
    for backend in sorted(short, key=lambda item: -many[item.id])[:MAX_NAMED]:
        name, services = backend.address.with_protocol(), ", ".join(_services(state, backend.id))
        yield Condition(
            ConditionName.SNAT_PORTS_SHORT,
            name,
            f"backend {name} ({services}) is short of SNAT ports: {many[backend.id]} flows, {ports} ports",
            "raise --snat-ports, or give the service more backends",
        )


def _services(state: State, backend_id: int) -> Iterator[str]:
    """Yield the Services of a backend, each once, sorted."""
    yield from sorted({str(svc.name) for svc in state.services for item in svc.backends if item.id == backend_id})
