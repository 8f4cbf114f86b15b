"""Whether backends have SNAT ports left, and whether the node has the addresses of --snat-address."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.model.address import format_ip
from lbagent.model.check import MAX_RESULTS, Check, Level, Result, Severity, When
from lbagent.model.extra_snat_sources import MAX_EXTRA_SNAT
from lbagent.net.snapshot import NodeNetwork
from lbagent.targets.bpf.checks.node_context import NodeContext, ShortBackend


def snat_ports_short(context: NodeContext) -> Iterator[Result]:
    """Report the remote backends that hold nearly all their ports, those with most flows first."""
    first, last = context.config.snat_port_range
    for backend in sorted(context.short_backends(), key=lambda item: -item.flows)[:MAX_RESULTS]:
        yield short_of_ports(backend, last - first + 1, context.network)


def short_of_ports(backend: ShortBackend, ports: int, network: NodeNetwork | None = None) -> Result:
    """Return the values of a backend that is short; with the `network` the remedy has a suitable address."""
    number = len(backend.sources)
    values = {
        "backend": backend.name,
        "services": f" ({', '.join(backend.services)})" if backend.services else "",
        "flows": backend.flows,
        "ports": ports,
        "each": f" with each of {number} source addresses" if number > 1 else "",
    }
    return Result(backend.name, values, remedy=_more_ports(backend, ports, network))


def _more_ports(backend: ShortBackend, ports: int, network: NodeNetwork | None) -> str:
    more_backends = "or give the service more backends"
    if len(backend.sources) > MAX_EXTRA_SNAT:
        return f"raise --snat-ports, {more_backends}"
    route = network.route(backend.address) if network else None
    link = network.links.get(route.ifindex) if network and route else None
    if network is None or link is None:
        return f"raise --snat-ports, add further addresses of this node to --snat-address, {more_backends}"
    width = len(backend.address)
    others = [
        format_ip(a.address)
        for a in network.addresses
        if a.ifindex == link.index and len(a.address) == width and a.address not in backend.sources
        if a.source or a.deprecated
    ]
    if others:
        gives = f"--snat-address {others[0]} gives it {ports} more: device {link.name} has that address"
        return f"{gives}; or raise --snat-ports, {more_backends}"
    return f"add an address to device {link.name} and to --snat-address, raise --snat-ports, {more_backends}"


def snat_address_missing(context: NodeContext) -> Iterator[Result]:
    """Find a device with each address of --snat-address."""
    network = context.network
    for address in context.snat_addresses if network else ():
        text = format_ip(address)
        indexes = [a.ifindex for a in network.addresses if a.address == address] if network else []
        if not indexes:
            yield Result(text, {"address": text})
        elif network and indexes[0] in network.links:
            values = {"address": text, "device": network.links[indexes[0]].name}
            yield Result(text, values, level=Level.OK)


CHECKS = (
    Check(
        "snat-ports-short",
        "the SNAT ports of each remote backend",
        snat_ports_short,
        "backend {backend}{services} is short of SNAT ports: {flows} flows, {ports} ports{each}",
        when=When.BOTH,
        severity=Severity.DEGRADED,
    ),
    Check(
        "snat-address-missing",
        "whether a device has each `--snat-address`",
        snat_address_missing,
        "no device of this node has {address} (--snat-address): it is not used",
        "add it to the device that backends are reached by (`ip address add`), or take it out of --snat-address; it is used as soon"
        " as it is there",
        good="--snat-address {address}: device {device} has it",
        when=When.BOTH,
    ),
)
