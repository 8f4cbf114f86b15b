"""The node of each address, by all slices and HostPort Pods together. Pure.

Whether a backend is local decides how it is reached, and an address has one path, however many objects list it. So its node is
the one in all of them that have one; if they contradict each other, all are ignored: address and route decide then
(net/paths.py), and a warning shows the contradiction. Each slice alone decides which endpoints a Local policy selects.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbagent.model.address import format_ip
from lbagent.model.message import Message
from lbagent.objects.records import EndpointSlice

AddressOnNode = tuple[bytes, str]  # an address, and the node of an object, '' = none
MAX_MESSAGES = 200  # contradictions with a warning of their own


class Placement:
    """Counts the claims. An address with equal claims costs one reference: nearly every one."""

    def __init__(self) -> None:
        self._claims: dict[bytes, tuple[str, int] | dict[str, int]] = {}  # (node, claims), or claims by node
        self._pairs: dict[tuple[str, int], tuple[str, int]] = {}  # one object for equal pairs
        self.decided: dict[bytes, str] = {}  # addresses with different claims -> their node, '' = contested

    @property
    def contested(self) -> set[bytes]:
        """The addresses that are placed on different nodes."""
        return {address for address, node in self.decided.items() if not node}

    def update(self, old: Iterable[AddressOnNode], new: Iterable[AddressOnNode]) -> set[bytes]:
        """Replace the claims of one object; return the addresses whose `decided` changes."""
        before, after = set(old), set(new)
        changed = set()
        for claims, by in ((before - after, -1), (after - before, 1)):  # so a move is no contradiction
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
    """Yield the places of a slice's endpoints."""
    return ((endpoint.address, endpoint.node) for endpoint in piece.endpoints)


def contradiction_messages(contested: set[bytes], slices: Iterable[EndpointSlice]) -> list[Message]:
    """Return a warning for each contested address: the last slice with a node, against the first with another."""
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
    kept = "both are ignored: its address and route decide whether it is local"
    origin = other.origin
    return Message(problem, kept, "endpoints", _kind(other), other.key, origin.file, origin.line, warning=True)


def _kind(piece: EndpointSlice) -> str:
    return "Endpoints" if piece.legacy else "EndpointSlice"
