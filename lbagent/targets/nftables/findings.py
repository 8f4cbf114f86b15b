"""In what the table differs from what was written: one for each element, which names the Service and the frontend. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.render.renderer_types import Difference
from lbagent.targets.nftables.map_specs import MAPS, PORT, PROTOCOL, Element, MapSpec
from lbagent.targets.nftables.rule_set import Elements

Kind = Literal["missing", "stale", "differs"]


def findings(found: Elements, wanted: Elements) -> Iterator[Difference]:
    """Yield what differs between the elements that are there and those that are wanted."""
    for name, spec in MAPS.items():
        if not spec.dynamic:
            yield from _of_map(spec, found.get(name, {}), wanted.get(name, {}), _Owners(found, wanted))


def _of_map(
    spec: MapSpec, found: Mapping[bytes, Element], wanted: Mapping[bytes, Element], owners: _Owners
) -> Iterator[Difference]:
    for key, element in wanted.items():
        there = found.get(key)
        if there == element:
            continue
        words = spec.element_text(key, element)
        if there is None:
            yield owners.finding("missing", f"{spec.name}: {words}", spec, key)
        else:
            yield owners.finding("differs", f"{spec.name}: {spec.element_text(key, there)}, wanted {words}", spec, key)
    for key, there in found.items():
        if key not in wanted:
            yield owners.finding("stale", f"{spec.name}: {spec.element_text(key, there)}", spec, key)


class _Owners:
    """The Services of frontends, by the comments of the maps of frontends."""

    def __init__(self, found: Elements, wanted: Elements) -> None:
        self._maps = (wanted, found)

    def finding(self, kind: Kind, detail: str, spec: MapSpec, key: bytes) -> Difference:
        if PROTOCOL not in spec.key or PORT not in spec.key:
            return Difference(kind, detail)
        parts = dict(spec.split(key))
        width = spec.family.address_bytes + 8
        protocol = L4Type.from_number(parts[PROTOCOL][0])
        frontend = L3n4Addr(key[: spec.family.address_bytes], int.from_bytes(parts[PORT], "big"), protocol)
        comment = self._comment(spec.family.digit, key[:width])
        return Difference(kind, detail, comment.split(" ")[0] or None, frontend.with_protocol())

    def _comment(self, digit: str, key: bytes) -> str:
        for maps in self._maps:
            for name in (f"frontends{digit}", f"internal{digit}"):
                element = maps.get(name, {}).get(key)
                if element is not None:
                    return element.comment
        return ""
