"""What `lbagent doctor` says of source addresses: those of --snat-address that the node lacks, and those that would help a backend.

Reads the kernel's network and the pinned maps; nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from lbagent.bpf.run.probe import Finding, Level
from lbagent.errors import LbError
from lbagent.maps import backend_codec
from lbagent.maps.backend_codec import PathRecord
from lbagent.maps.consistency import live_paths
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import PATH, PathFlag
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr, L4Type, format_ip, parse_ip
from lbagent.model.family import Family
from lbagent.model.further_sources import MAX_FURTHER, SHORT_OF_PORTS, further_stride
from lbagent.net.netlink import NetworkWatcher
from lbagent.net.snapshot import NodeNetwork

MAX_NAMED = 20


class ShortBackend(Struct):
    """A remote backend whose SNAT ports are nearly all held."""

    path: PathRecord  # with its first source address
    flows: int
    sources: tuple[bytes, ...]  # the first one and the further ones

    @property
    def name(self) -> str:
        """Its address, port and protocol."""
        protocol = L4Type[self.path.protocol.name]
        return L3n4Addr(self.path.address, self.path.port, protocol).with_protocol()


def source_findings(addresses: Sequence[str], ports: int, bpffs: str) -> Iterator[Finding]:
    """Yield what is to be said; `addresses` are those of --snat-address, `ports` is how many each has."""
    try:
        network = asyncio.run(_network())
    except LbError:
        return
    yield from _named(addresses, network)
    try:
        with KernelMaps.open(bpffs, create=False) as maps:
            short = list(short_backends(maps, ports, network.has))
    except (LbError, OSError):
        return  # no agent has run here, or this user may not look
    for backend in sorted(short, key=lambda item: -item.flows)[:MAX_NAMED]:
        yield _short(backend, ports, network)


async def _network() -> NodeNetwork:
    watcher = NetworkWatcher()
    try:
        return await watcher.start()
    finally:
        watcher.close()


def _named(addresses: Sequence[str], network: NodeNetwork) -> Iterator[Finding]:
    for address in map(parse_ip, addresses):
        text = format_ip(address)
        indexes = [a.ifindex for a in network.addresses if a.address == address and a.ifindex in network.links]
        if indexes:
            yield Finding(Level.OK, f"--snat-address {text}: device {network.links[indexes[0]].name} has it")
        else:
            yield Finding(
                Level.WARNING,
                f"no device of this node has {text} (--snat-address): it is not used",
                "add it to the device that backends are reached by (`ip address add`), or take it out of --snat-address",
            )


def short_backends(maps: LBMaps, ports: int, has: Callable[[bytes], bool]) -> Iterator[ShortBackend]:
    """Yield each remote backend whose ports are nearly all held, by the last sweeps' counts. Raises KernelError.

    `has` says whether the node has an address: the ports of one that it lacks are of no use.
    """
    flows, stride = _live_flows(maps), further_stride(maps.sizes.backends)
    for family in Family:
        found = live_paths(maps, family.map("path"), PATH[family].size)
        records = {ident: backend_codec.path_of(raw) for ident, raw in found}
        for ident, first in records.items():
            if first.further or first.flags & PathFlag.LOCAL:
                continue
            others = {ident + number * stride: number for number in range(1, MAX_FURTHER + 1)}
            mine = [ident, *(i for i, number in others.items() if i in records and records[i].further == number)]
            held, sources = sum(flows[i] for i in mine), [records[i].snat for i in mine[1:] if has(records[i].snat)]
            if held >= SHORT_OF_PORTS * ports * (1 + len(sources)):
                yield ShortBackend(first, held, (first.snat, *sources))


def _live_flows(maps: LBMaps) -> list[int]:
    """Return the live flows of each backend id: of the two halves, one of which a sweep may be filling just now, the larger."""
    size = maps.sizes.backends * 4
    with maps.window("lb_live", 0, 2 * size) as view:
        numbers = memoryview(bytes(view)).cast("I")
    return list(map(max, numbers[: maps.sizes.backends], numbers[maps.sizes.backends :]))


def _short(backend: ShortBackend, ports: int, network: NodeNetwork) -> Finding:
    number, route = len(backend.sources), network.route(backend.path.address)
    each = f" with each of {number} source addresses" if number > 1 else ""
    what = f"backend {backend.name} is short of SNAT ports: {backend.flows} flows, {ports} ports{each}"
    advice = "raise --snat-ports, or give the service more backends"
    link = network.links.get(route.ifindex) if route else None
    if link is not None and number <= MAX_FURTHER:
        width = len(backend.path.address)
        others = [
            format_ip(a.address)
            for a in network.addresses
            if a.ifindex == link.index and len(a.address) == width and a.address not in backend.sources
            if a.source or a.deprecated
        ]
        if others:
            advice = (
                f"--snat-address {others[0]} gives it {ports} more: device {link.name} has that address; or {advice}"
            )
        else:
            advice = f"add an address to device {link.name} and name it with --snat-address, {advice}"
    return Finding(Level.WARNING, what, advice)
