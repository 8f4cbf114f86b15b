"""Remote backends that are short of SNAT ports: by the State and the last sweep (the agent), or by the pinned maps (doctor).

Each backend has the whole range of `--snat-ports` with each source address: ports run short for one backend, not for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lbagent.maps import backend_codec
from lbagent.maps.backend_codec import PathRecord
from lbagent.maps.consistency import live_paths
from lbagent.maps.layout import PATH, PathFlag
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import Backend
from lbagent.model.extra_snat_sources import MAX_EXTRA_SNAT, SHORT_OF_PORTS, extra_snat_stride
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.targets.bpf.checks.node_context import ShortBackend

ONE_SOURCE = (b"",)


def short_in_state(
    state: State,
    flows: Mapping[int, int],
    ports: int,
    sources: Callable[[Backend], Sequence[bytes]] = lambda _: ONE_SOURCE,
) -> Iterator[ShortBackend]:
    """Yield the backends of a State that are short.

    `flows` are live flows by backend id, `ports` the number of each source address, `sources` returns the node's source addresses
    for a backend.
    """
    many = {number: count for number, count in flows.items() if count >= SHORT_OF_PORTS * ports}
    if not many:
        return
    for backend in state.backends.values():
        if backend.id in many and not backend.local:
            addresses = tuple(sources(backend))
            if many[backend.id] >= SHORT_OF_PORTS * ports * len(addresses):
                services = tuple(_services(state, backend.id))
                name = backend.address.with_protocol()
                yield ShortBackend(name, backend.address.address, many[backend.id], addresses, services)


def _services(state: State, backend_id: int) -> list[str]:
    """Return the Services of a backend, each once, sorted."""
    return sorted({str(svc.name) for svc in state.services for item in svc.backends if item.id == backend_id})


def short_in_maps(maps: LBMaps, ports: int, has: Callable[[bytes], bool]) -> Iterator[ShortBackend]:
    """Yield the backends in the maps that are short, by the last sweeps' counts. Raises KernelError.

    `has` returns whether the node has an address: the ports of a missing one are useless.
    """
    flows, stride = _live_flows(maps), extra_snat_stride(maps.sizes.backends)
    for family in Family:
        found = live_paths(maps, family_map(family, "path"), PATH[family].size)
        records = {ident: backend_codec.path_of(raw) for ident, raw in found}
        for ident, first in records.items():
            if first.extra_snat or first.flags & PathFlag.LOCAL:
                continue
            others = {ident + number * stride: number for number in range(1, MAX_EXTRA_SNAT + 1)}
            mine = [ident, *(i for i, number in others.items() if i in records and records[i].extra_snat == number)]
            held, sources = sum(flows[i] for i in mine), [records[i].snat for i in mine[1:] if has(records[i].snat)]
            if held >= SHORT_OF_PORTS * ports * (1 + len(sources)):
                yield ShortBackend(_name(first), first.address, held, (first.snat, *sources))


def _name(path: PathRecord) -> str:
    return L3n4Addr(path.address, path.port, L4Type[path.protocol.name]).with_protocol()


def _live_flows(maps: LBMaps) -> list[int]:
    """Return the live flows of each backend id: the larger of the two halves, as a sweep may just be filling one."""
    size = maps.sizes.backends * 4
    with maps.window("lb_live", 0, 2 * size) as view:
        numbers = memoryview(bytes(view)).cast("I")
    return list(map(max, numbers[: maps.sizes.backends], numbers[maps.sizes.backends :]))
