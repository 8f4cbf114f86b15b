"""`lbagent map dump`: one sorted line an entry. The format is a contract (docs/maps.md): kinds, words and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.layout import (
    LB_SERVICE,
    TARGET_ALGORITHM_SHIFT,
    TARGET_SECONDS_MASK,
    U32,
)
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import Algorithm

Line = tuple[tuple[object, ...], str]  # sort key, text


def dump(maps: LBMaps) -> list[str]:
    """Return the lines of everything in the maps: SVC, BE, REV, AFF, MAGLEV, SRCRANGE, each kind by number."""
    kinds = (_services, _backends, _reverse, _affinity, _maglev, _ranges)
    return [text for kind in kinds for _, text in sorted(kind(maps))]


def _services(maps: LBMaps) -> Iterator[Line]:
    for key, value in chain(maps.items("lb4_service"), maps.items("lb6_service")):
        name, slot = frontend_codec.split_service_key(key)
        frontend = frontend_codec.frontend_of(name)
        ident = frontend_codec.service_id_of(value)
        order = (ident, int(frontend.scope), slot, len(frontend.address), frontend.address, frontend.port)
        yield order, f"SVC: ID={ident} ADDR={_service_address(frontend)} SLOT={slot} {_service_value(slot, value)}"


def _service_address(frontend: L3n4Addr) -> str:
    text = frontend.with_protocol()
    return text.replace("/NONE", "/ANY")


def _service_value(slot: int, value: bytes) -> str:
    target, count, _, low, high, qcount = LB_SERVICE.unpack(value)
    flags = ServiceFlags(int(low) | int(high) << 8)
    tail = f"COUNT={int(count)} QCOUNT={int(qcount)} FLAGS={flags.dump_text}"
    return f"BEID={int(target)} {tail}" if slot else f"{_master_target(int(target), flags)} {tail}"


def _master_target(target: int, flags: ServiceFlags) -> str:
    algorithm = Algorithm.from_number(target >> TARGET_ALGORITHM_SHIFT)
    low = target & TARGET_SECONDS_MASK
    return f"LBALG={algorithm.value} " + (f"L7Proxy={low}" if flags.is_l7lb() else f"AFFTimeout={low}")


def _backends(maps: LBMaps) -> Iterator[Line]:
    for key, value in chain(maps.items("lb4_backend"), maps.items("lb6_backend")):
        ident = U32.unpack(key)[0]
        address, state = backend_codec.backend_of(value)
        yield (ident,), f"BE: ID={ident} ADDR={_service_address(address)} STATE={state.text}"


def _reverse(maps: LBMaps) -> Iterator[Line]:
    for key, value in chain(maps.items("lb4_reverse_nat"), maps.items("lb6_reverse_nat")):
        ident = U32.unpack(key)[0]
        frontend = frontend_codec.reverse_nat_frontend(value)
        host = f"[{frontend.ip}]" if frontend.is_ipv6 else frontend.ip
        yield (ident, len(value)), f"REV: ID={ident} ADDR={host}:{frontend.port}"


def _affinity(maps: LBMaps) -> Iterator[Line]:
    for key, _ in maps.items("lb_affinity_match"):
        service, backend = frontend_codec.affinity_match_ids(key)
        yield (service, backend), f"AFF: ID={service} BEID={backend}"


def _maglev(maps: LBMaps) -> Iterator[Line]:
    for name in ("lb4_maglev", "lb6_maglev"):
        tables = maps.maglev(name)
        counted: dict[int, str] = {}  # by identity: shared tables are one object, which lives as long as `tables`
        for ident, table in tables.items():
            text = counted.get(id(table))
            if text is None:
                entries = Counter(memoryview(table).cast("I"))
                text = counted[id(table)] = ", ".join(f"{backend}({entries[backend]})" for backend in sorted(entries))
            yield (ident, name), f"MAGLEV: ID={ident} INNER=[{text}]"


def _ranges(maps: LBMaps) -> Iterator[Line]:
    for key, _ in chain(maps.items("lb4_source_range"), maps.items("lb6_source_range")):
        service, cidr = frontend_codec.source_range_of(key)
        yield (service, *cidr.sort_key), f"SRCRANGE: ID={service} CIDR={cidr}"
