"""What the rules of kube-proxy do with the first packet of a connection. Pure.

Source: kube-proxy's mode nftables, 1.29 to 1.36 (pkg/proxy/nftables/proxier.go): names of maps and chains; each rule is read by its
expressions. include/uapi/linux/netfilter/nf_tables.h: numbers of attributes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct, field

from lbagent.kernel.netlink_attributes import attributes_of, read_attributes, read_text, read_u32
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.family import Family

TABLE = "kube-proxy"
SERVICE_IPS, SERVICE_NODE_PORTS = "service-ips", "service-nodeports"
NO_ENDPOINT_IPS, NO_ENDPOINT_NODE_PORTS = "no-endpoint-services", "no-endpoint-nodeports"
FIREWALL_IPS, NODE_PORT_IPS = "firewall-ips", "nodeport-ips"
_VERDICT_REGISTER = 0
_JUMP, _GOTO, _DROP = -3, -4, 0
_INTERVAL_END = 1  # NFT_SET_ELEM_INTERVAL_END
_MAX_DEPTH = 16  # jumps that the kernel allows
_WORD = 4  # a port takes a whole word of a key
Elements = Sequence[dict[int, bytes]]
Range = tuple[int, int]  # the first and the last address, as numbers


class Source(Enum):
    """Where a client is. The value names it in a difference."""

    OUTSIDE = "clients outside"
    POD = "pods"
    NODE = "processes of the node"


class Verdict(NamedTuple):
    """A verdict of the kernel: a number of NF_* or NFT_*, and the chain of a jump or goto."""

    code: int
    chain: str = ""


class ProxyRule(NamedTuple):
    """A rule: what of it changes where a packet goes."""

    verdict: Verdict | None  # of the rule itself
    verdict_map: str  # the map that has it
    backends: frozenset[tuple[bytes, int]]  # dnat to this address
    backend_map: str  # dnat to an address of this map
    matched_set: str  # a set that the packet must be in, or not
    updates: str  # the set that gets the client
    only: Source | None  # the rule is for these clients; None: for all


class ProxyFrontend(Struct):
    """What kube-proxy does for one frontend."""

    service: str = ""  # NAMESPACE/NAME; '' where no name of a chain or comment has it
    backends: dict[Source, frozenset[tuple[bytes, int]]] = field(default_factory=dict)
    without: str = ""  # what happens to clients without a backend: refused, dropped; '': no rule is for them
    affinity_s: int = 0  # seconds for which a client keeps its backend
    ranges: tuple[Range, ...] | None = None  # source ranges, in order and apart from each other; None: it has none


class ProxyRules:
    """The rules of one family. `elements` and `timeout_s` read a set by its name; each is called once for a name at most."""

    def __init__(
        self,
        family: Family,
        rules: Mapping[str, Sequence[bytes]],
        elements: Callable[[str], Elements],
        timeout_s: Callable[[str], int],
    ) -> None:
        self._family = family
        self._rules = {name: [_parsed(each) for each in found] for name, found in rules.items()}
        self._elements, self._timeout_s = elements, timeout_s
        self._targets: dict[tuple[str, Source], frozenset[tuple[bytes, int]]] = {}
        self._affinity: dict[str, int] = {}

    def frontends(self, local: Collection[bytes] = ()) -> dict[L3n4Addr, ProxyFrontend]:
        """Return what is done for each address, port and protocol. A NodePort is one for each address of `nodeport-ips`.

        Without that set kube-proxy serves NodePorts at every address of the node: `local` has those that count. Raises OSError of
        reading.
        """
        found: dict[L3n4Addr, ProxyFrontend] = {}
        width = self._family.address_bytes
        try:
            node_ips = [each[:width] for each in map(_key, self._elements(NODE_PORT_IPS))]
        except FileNotFoundError:
            node_ips = [each for each in local if len(each) == width]
        for served, empty, addresses in (
            (SERVICE_IPS, NO_ENDPOINT_IPS, None),
            (SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS, node_ips),
        ):
            for element in self._elements(served):
                verdict = _verdict_of(element)
                for frontend in self._frontends_of(_key(element), addresses):
                    row = found.setdefault(frontend, ProxyFrontend())
                    row.service = row.service or service_of_chain(verdict.chain)
                    row.backends = {source: self._reached(verdict, source) for source in Source}
                    row.affinity_s = self._affinity_of(verdict.chain)
            for element in self._elements(empty):
                for frontend in self._frontends_of(_key(element), addresses):
                    row = found.setdefault(frontend, ProxyFrontend())
                    row.service = row.service or _comment(element).rpartition(":")[0]
                    row.without = "dropped" if _verdict_of(element).code == _DROP else "refused"
        for element in self._elements(FIREWALL_IPS):
            for frontend in self._frontends_of(_key(element), None):
                row = found.setdefault(frontend, ProxyFrontend())
                row.ranges = self._allowed(_verdict_of(element).chain)
        return found

    def _frontends_of(self, key: bytes, addresses: Sequence[bytes] | None) -> Iterator[L3n4Addr]:
        width = 0 if addresses is not None else self._family.address_bytes
        protocol = L4Type.from_number(key[width])
        port = int.from_bytes(key[width + _WORD : width + _WORD + 2], "big")
        for address in (key[:width],) if addresses is None else addresses:
            yield L3n4Addr(address, port, protocol)

    # --- chains ---

    def _reached(self, verdict: Verdict, source: Source) -> frozenset[tuple[bytes, int]]:
        if verdict.code not in (_JUMP, _GOTO):
            return frozenset()
        return self._of_chain(verdict.chain, source, _MAX_DEPTH) or frozenset()

    def _of_chain(self, name: str, source: Source, depth: int) -> frozenset[tuple[bytes, int]] | None:
        """Return the backends that a chain may choose; None: a packet leaves it untranslated."""
        known = self._targets.get((name, source))
        if known is not None:
            return known
        for rule in self._rules.get(name, ()) if depth else ():
            if rule.only not in (None, source):
                continue
            found = self._of_rule(rule, source, depth)
            if found is not None:
                self._targets[name, source] = found
                return found
        return None

    def _of_rule(self, rule: ProxyRule, source: Source, depth: int) -> frozenset[tuple[bytes, int]] | None:
        if rule.backends:
            return rule.backends
        if rule.backend_map:
            return frozenset(map(self._backend, self._elements(rule.backend_map)))
        if rule.verdict_map:
            reached = [self._reached(_verdict_of(each), source) for each in self._elements(rule.verdict_map)]
            return frozenset().union(*reached)
        if rule.matched_set or rule.verdict is None:
            return None  # a client that was here before; the backend is one of those below
        if rule.verdict.code == _JUMP:
            return self._of_chain(rule.verdict.chain, source, depth - 1)
        if rule.verdict.code == _GOTO:
            return self._of_chain(rule.verdict.chain, source, depth - 1) or frozenset()
        return None

    def _backend(self, element: dict[int, bytes]) -> tuple[bytes, int]:
        data, width = attributes_of(element[2])[1], self._family.address_bytes
        return data[:width], int.from_bytes(data[width : width + 2], "big")

    def _affinity_of(self, name: str, depth: int = _MAX_DEPTH) -> int:
        """Return the time-out of the first set in which a chain, or one behind it, notes its clients."""
        if name in self._affinity:
            return self._affinity[name]
        found = 0
        for rule in self._rules.get(name, ()) if depth else ():
            if rule.updates:
                found = self._timeout_s(rule.updates)
            elif rule.verdict is not None and rule.verdict.code in (_JUMP, _GOTO) and rule.only is None:
                found = self._affinity_of(rule.verdict.chain, depth - 1)
            if found:
                break
        self._affinity[name] = found
        return found

    def _allowed(self, chain: str) -> tuple[Range, ...] | None:
        """Return the ranges of a chain that drops all other clients; None: it drops none."""
        found: list[Range] = []
        rules = [each for each in self._rules.get(chain, ()) if each.verdict == Verdict(_DROP)]
        for rule in rules:
            if rule.matched_set:
                found += self._ranges(self._elements(rule.matched_set))
        return merged(found) if rules else None

    def _ranges(self, elements: Elements) -> Iterator[Range]:
        """Yield the ranges of a set of intervals: each has an element of its first address, and one behind its last."""
        edges = sorted(
            (int.from_bytes(_key(each), "big"), not _flags(each) & _INTERVAL_END) for each in elements if 1 in each
        )
        first: int | None = None
        for at, begins in edges:
            if first is not None:
                yield first, at - 1
            first = at if begins else None
        if first is not None:
            yield first, (1 << self._family.address_bytes * 8) - 1


def merged(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Return the same addresses as ranges in order, that neither overlap nor touch."""
    out: list[Range] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return tuple(out)


def service_of_chain(name: str) -> str:
    """Return NAMESPACE/NAME of a chain like `external-D2RGPZ6L-shop/web/tcp/http`; '' of another one."""
    _, _, rest = name.partition("-")
    _, _, path = rest.partition("-")
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) >= 3 else ""


# --- expressions ---


class _Reader:
    """Reads the expressions of a rule one by one."""

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.verdict_map = self.data_map = self.matched_set = self.updates = ""
        self.backends: frozenset[tuple[bytes, int]] = frozenset()
        self.translates = self.has_fib = self.compares = False
        self._immediates: dict[int, bytes] = {}

    def immediate(self, parts: dict[int, bytes]) -> None:
        register, data = read_u32(parts[1]), attributes_of(parts[2])
        if register == _VERDICT_REGISTER:
            self.verdict = _verdict(data[2])
        else:
            self._immediates[register] = data.get(1, b"")

    def lookup(self, parts: dict[int, bytes]) -> None:
        name = read_text(parts[1])
        if 3 not in parts:
            self.matched_set = name
        elif read_u32(parts[3]) == _VERDICT_REGISTER:
            self.verdict_map = name
        else:
            self.data_map = name

    def dynset(self, parts: dict[int, bytes]) -> None:
        self.updates = read_text(parts[1])

    def nat(self, parts: dict[int, bytes]) -> None:
        self.translates = True
        if not self.data_map and 3 in parts and 5 in parts:
            port = int.from_bytes(self._immediates[read_u32(parts[5])][:2], "big")
            self.backends = frozenset({(self._immediates[read_u32(parts[3])], port)})

    def fib(self, parts: dict[int, bytes]) -> None:
        del parts
        self.has_fib = True

    def compare(self, parts: dict[int, bytes]) -> None:
        del parts
        self.compares = True

    def rule(self) -> ProxyRule:
        """Return what was read. `fib saddr type local` is the node itself; a rule that compares something else is for pods."""
        only = Source.NODE if self.has_fib else Source.POD if self.compares and not self.translates else None
        to = self.data_map if self.translates else ""
        return ProxyRule(self.verdict, self.verdict_map, self.backends, to, self.matched_set, self.updates, only)


_READERS = {
    "immediate": _Reader.immediate,
    "lookup": _Reader.lookup,
    "dynset": _Reader.dynset,
    "nat": _Reader.nat,
    "fib": _Reader.fib,
    "cmp": _Reader.compare,
    "range": _Reader.compare,
}


def _parsed(expressions: bytes) -> ProxyRule:
    reader = _Reader()
    for _, item in read_attributes(expressions):
        parts = attributes_of(item)
        if read := _READERS.get(read_text(parts[1])):
            read(reader, attributes_of(parts.get(2, b"")))
    return reader.rule()


def _verdict(data: bytes) -> Verdict:
    parts = attributes_of(data)
    return Verdict(struct.unpack("!i", parts[1])[0], read_text(parts.get(2, b"")))


def _verdict_of(element: dict[int, bytes]) -> Verdict:
    return _verdict(attributes_of(element[2])[2])


def _key(element: dict[int, bytes]) -> bytes:
    return attributes_of(element[1])[1]


def _flags(element: dict[int, bytes]) -> int:
    return read_u32(element[3]) if 3 in element else 0


def _comment(element: dict[int, bytes]) -> str:
    """Return the comment that nft keeps with an element: type 0, length, text."""
    data = element.get(6, b"")
    return read_text(data[2 : 2 + data[1]]) if len(data) > 2 and not data[0] else ""
