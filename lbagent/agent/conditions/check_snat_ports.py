"""Which backends are nearly out of SNAT ports, by the live flows of the last sweep; and which source addresses the node lacks.

Each backend has the whole range of `--snat-ports` with each source address: what runs short, runs short for one backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.model.address import format_ip
from lbagent.model.further_sources import MAX_FURTHER, SHORT_OF_PORTS

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.model.backend import Backend
    from lbagent.model.state import State

MAX_NAMED = 20


def check_snat_ports(components: AgentComponents) -> Iterator[Condition]:
    """Name each remote backend whose ports are nearly all held."""
    if components.sweeper and components.sweeper.live:
        (first, last), has = components.config.snat_port_range, components.network.network.has

        def addresses(backend: Backend) -> int:
            return 1 + sum(map(has, components.bpf.further_addresses(backend)))

        yield from short_of_ports(components.bpf.state, components.sweeper.live, last - first + 1, addresses)


def short_of_ports(
    state: State, flows: Mapping[int, int], ports: int, addresses: Callable[[Backend], int] = lambda _: 1
) -> Iterator[Condition]:
    """Yield a condition for each; `flows` are live flows by backend id, `addresses` tells how many source addresses one has."""
    many = {number: count for number, count in flows.items() if count >= SHORT_OF_PORTS * ports}
    if not many:
        return
    remote = [item for item in state.backends.values() if item.id in many and not item.local]
    short = [item for item in remote if many[item.id] >= SHORT_OF_PORTS * ports * addresses(item)]
    for backend in sorted(short, key=lambda item: -many[item.id])[:MAX_NAMED]:
        name, services = backend.address.with_protocol(), ", ".join(_services(state, backend.id))
        number = addresses(backend)
        each = f" with each of {number} source addresses" if number > 1 else ""
        more = ", name further addresses of this node with --snat-address," if number <= MAX_FURTHER else ","
        yield Condition(
            ConditionName.SNAT_PORTS_SHORT,
            name,
            f"backend {name} ({services}) is short of SNAT ports: {many[backend.id]} flows, {ports} ports{each}",
            f"raise --snat-ports{more} or give the service more backends",
        )


def check_snat_addresses(components: AgentComponents) -> Iterator[Condition]:
    """Name each address of --snat-address that no device of this node has."""
    for address in components.further.addresses():
        if not components.network.network.has(address):
            text = format_ip(address)
            yield Condition(
                ConditionName.SNAT_ADDRESS_MISSING,
                text,
                f"no device of this node has {text} (--snat-address): it is not used",
                "add it to the device that backends are reached by (`ip address add`), or take it out of --snat-address;"
                " it is used as soon as it is there",
            )


def _services(state: State, backend_id: int) -> Iterator[str]:
    """Yield the Services of a backend, each once, sorted."""
    yield from sorted({str(svc.name) for svc in state.services for item in svc.backends if item.id == backend_id})
