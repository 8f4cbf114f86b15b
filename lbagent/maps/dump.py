"""`lbagent map dump`: one sorted line an entry. The format is a contract (docs/maps.md): kinds, words and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.layout import (
    LB_SERVICE,
    TARGET_ALGORITHM_SHIFT,
    TARGET_RULES,
    TARGET_SECONDS_MASK,
    U32,
)
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import Algorithm


class Entry(NamedTuple):
    """One line: its kind, and its words with their values in the order in which they are written. `order` sorts a kind."""

    order: tuple[object, ...]
    kind: str
    words: dict[str, object]

    @property
    def text(self) -> str:
        """`KIND: WORD=VALUE WORD=VALUE ...`."""
        return f"{self.kind}: " + " ".join(f"{word}={_value_text(value)}" for word, value in self.words.items())

    @property
    def document(self) -> dict[str, object]:
        """The same for JSON: the words in lower case, numbers as numbers."""
        return {"kind": self.kind} | {word.lower(): value for word, value in self.words.items()}


def dump(maps: LBMaps) -> list[str]:
    """Return the lines of everything in the maps: SVC, BE, REV, AFF, MAGLEV, SRCRANGE, each kind by number."""
    return [entry.text for entry in entries(maps)]


def entries(maps: LBMaps) -> Iterator[Entry]:
    """Iterate over everything in the maps in the order of `dump`."""
    for kind in (_services, _backends, _reverse, _affinity, _maglev, _ranges):
        yield from sorted(kind(maps), key=_order)


def _order(entry: Entry) -> tuple[object, ...]:
    return entry.order


def _value_text(value: object) -> str:
    if isinstance(value, dict):  # entries of a Maglev table by backend id
        return "[" + ", ".join(f"{backend}({count})" for backend, count in value.items()) + "]"
    return str(value)


def _services(maps: LBMaps) -> Iterator[Entry]:
    for key, value in chain(maps.items("lb4_service"), maps.items("lb6_service")):
        name, slot = frontend_codec.split_service_key(key)
        frontend = frontend_codec.frontend_of(name)
        ident = frontend_codec.service_id_of(value)
        order = (
            ident,
            int(frontend.scope),
            slot,
            len(frontend.address),
            frontend.address,
            frontend.port,
            frontend.last_port,
        )
        words = {"ID": ident, "ADDR": frontend.map_text(), "SLOT": slot, **_service_value(slot, value)}
        yield Entry(order, "SVC", words)


def _service_value(slot: int, value: bytes) -> dict[str, object]:
    target, count, _, low, high, qcount = LB_SERVICE.unpack(value)
    flags = ServiceFlags(int(low) | int(high) << 8)
    head = {"BEID": int(target)} if slot else _master_target(int(target), flags)
    return head | {"COUNT": int(count), "QCOUNT": int(qcount), "FLAGS": flags.dump_text}


def _master_target(target: int, flags: ServiceFlags) -> dict[str, object]:
    algorithm = Algorithm.from_number(target >> TARGET_ALGORITHM_SHIFT & (TARGET_RULES - 1))
    low = target & TARGET_SECONDS_MASK
    return {"LBALG": algorithm.value, "L7Proxy" if flags.is_l7lb() else "AFFTimeout": low}


def _backends(maps: LBMaps) -> Iterator[Entry]:
    for key, value in chain(maps.items("lb4_backend"), maps.items("lb6_backend")):
        ident = int(U32.unpack(key)[0])
        address, state = backend_codec.backend_of(value)
        yield Entry((ident,), "BE", {"ID": ident, "ADDR": address.map_text(), "STATE": state.text})


def _reverse(maps: LBMaps) -> Iterator[Entry]:
    rows = [
        (int(U32.unpack(key)[0]), value, frontend_codec.reverse_nat_frontend(value))
        for key, value in chain(maps.items("lb4_reverse_nat"), maps.items("lb6_reverse_nat"))
    ]
    has_range = not all(frontend.port for _, _, frontend in rows)
    ports = _ranges_of_ports(maps) if has_range else {}
    for ident, value, frontend in rows:
        host = f"[{frontend.ip}]" if frontend.is_ipv6 else frontend.ip
        port = frontend.port or ports.get((ident, len(frontend.address)), 0)
        yield Entry((ident, len(value)), "REV", {"ID": ident, "ADDR": f"{host}:{port}"})


def _ranges_of_ports(maps: LBMaps) -> dict[tuple[int, int], str]:
    """Return FIRST-LAST of each frontend with a range of ports, by service id and bytes of its address."""
    found = {}
    for name in ("lb4_service", "lb6_service"):
        for key, value in maps.items(name):
            if any(key[-2:]):
                frontend = frontend_codec.frontend_of(frontend_codec.split_service_key(key)[0])
                found[frontend_codec.service_id_of(value), len(frontend.address)] = frontend.port_text
    return found


def _affinity(maps: LBMaps) -> Iterator[Entry]:
    for key, _ in maps.items("lb_affinity_match"):
        service, backend = frontend_codec.affinity_match_ids(key)
        yield Entry((service, backend), "AFF", {"ID": service, "BEID": backend})


def _maglev(maps: LBMaps) -> Iterator[Entry]:
    for name in ("lb4_maglev", "lb6_maglev"):
        tables = maps.maglev(name)
        counted: dict[
            int, dict[int, int]
        ] = {}  # by identity: shared tables are one object, which lives as long as `tables`
        for ident, table in tables.items():
            members = counted.get(id(table))
            if members is None:
                found = Counter(memoryview(table).cast("I"))
                members = counted[id(table)] = {backend: found[backend] for backend in sorted(found)}
            yield Entry((ident, name), "MAGLEV", {"ID": ident, "INNER": members})


def _ranges(maps: LBMaps) -> Iterator[Entry]:
    for key, _ in chain(maps.items("lb4_source_range"), maps.items("lb6_source_range")):
        service, cidr = frontend_codec.source_range_of(key)
        yield Entry((service, *cidr.sort_key), "SRCRANGE", {"ID": service, "CIDR": str(cidr)})
