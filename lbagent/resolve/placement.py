"""Which node each address lives on, as all slices and HostPort Pods together say. Pure.

Whether a backend is local decides how it is reached, and an address has one way there, however many objects name it. So its node
is what all of them say who name one; where they contradict each other, none is believed: address and route decide then
(net/paths.py), and a warning names the contradiction. Which endpoints a Local policy takes is decided by each slice alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbagent.model.address import format_ip
from lbagent.model.message import Message
from lbagent.objects.records import EndpointSlice

AddressOnNode = tuple[bytes, str]  # an address, and the node an object places it on, '' = it names none
MAX_MESSAGES = 200  # contradictions that are named one by one


class Placement:
    """Counts the claims. An address of which all claims say the same costs one reference: nearly every one."""

    def __init__(self) -> None:
        self._claims: dict[bytes, tuple[str, int] | dict[str, int]] = {}  # (node, claims), or claims by node
        self._pairs: dict[tuple[str, int], tuple[str, int]] = {}  # one object for equal pairs
        self.decided: dict[
            bytes, str
        ] = {}  # addresses of which not all claims say the same -> their node, '' = contested

    @property
    def contested(self) -> set[bytes]:
        """The addresses that are placed on different nodes."""
        return {address for address, node in self.decided.items() if not node}

    def update(self, old: Iterable[AddressOnNode], new: Iterable[AddressOnNode]) -> set[bytes]:
        """Replace the claims of one object; return the addresses about which `decided` says something else now."""
        before, after = set(old), set(new)
        changed = set()
        for claims, by in ((before - after, -1), (after - before, 1)):  # so a move contradicts nothing
            for address, node in claims:
                was = self.decided.get(address)
                self._count(address, node, by)
                if self.decided.get(address) != was:
                    changed.add(address)
        return changed

    def _count(self, address: bytes, node: str, by: int) -> None:
        known = self._claims.get(address)
        if known is None or (isinstance(known, tuple) and known[0] == node):
            number = (known[1] if known else 0) + by
            if number > 0:
                pair = (node, number)
                self._claims[address] = self._pairs.setdefault(pair, pair)
            else:
                self._claims.pop(address, None)
            return
        nodes = dict((known,)) if isinstance(known, tuple) else known
        nodes[node] = nodes.get(node, 0) + by
        left = {each: number for each, number in nodes.items() if number > 0}
        if len(left) > 1:
            self._claims[address] = left
            named = [each for each in left if each]
            self.decided[address] = named[0] if len(named) == 1 else ""
            return
        ((last, number),) = left.items()
        self._claims[address] = self._pairs.setdefault((last, number), (last, number))
        self.decided.pop(address, None)


def claims_of(piece: EndpointSlice) -> Iterable[AddressOnNode]:
    """Yield what a slice says of its endpoints."""
    return ((endpoint.address, endpoint.node) for endpoint in piece.endpoints)


def contradiction_messages(contested: set[bytes], slices: Iterable[EndpointSlice]) -> list[Message]:
    """Return a warning for each contested address: the last slice that names a node, against the first that names another."""
    claims: dict[bytes, list[tuple[EndpointSlice, str]]] = {}
    for piece in slices:
        for endpoint in piece.endpoints:
            if endpoint.node and endpoint.address in contested:
                claims.setdefault(endpoint.address, []).append((piece, endpoint.node))
    out = []
    for address in sorted(claims, key=lambda each: (len(each), each))[:MAX_MESSAGES]:
        found = sorted(claims[address], key=lambda claim: (claim[0].origin, claim[0].key, claim[1]))
        first, node = found[0]
        last, other = next((claim for claim in reversed(found) if claim[1] != node), found[0])
        if other != node:
            out.append(_message(address, (first, node), (last, other)))
    return out


def _message(address: bytes, first: tuple[EndpointSlice, str], last: tuple[EndpointSlice, str]) -> Message:
    (piece, node), (other, other_node) = first, last
    elsewhere = f"{_kind(piece)} {piece.key} ({piece.origin.place})"
    problem = f"{format_ip(address)} is on node {other_node} here, and on node {node} in {elsewhere}"
    kept = "neither is believed: whether it is reached as local follows from its address and route"
    origin = other.origin
    return Message(problem, kept, "endpoints", _kind(other), other.key, origin.file, origin.line, warning=True)


def _kind(piece: EndpointSlice) -> str:
    return "Endpoints" if piece.legacy else "EndpointSlice"
