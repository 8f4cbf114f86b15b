"""Rules: each statement as nft's text, as libnftables' JSON and as the expressions that the kernel runs. Pure.

Keys are loaded into registers word by word, as nft numbers them: a value that begins at a multiple of 16 bytes is in one of the
registers 1-4, any other one in register 8 and up. Source: include/uapi/linux/netfilter/nf_tables.h; libnftables-json(5).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lbagent.kernel.netlink_attributes import attribute, nested, text, u32, u64
from lbagent.model.address import L4Type, format_ip
from lbagent.model.family import Family
from lbagent.model.service import CIDR

NFT_REG_VERDICT = 0
_CMP_EQ, _CMP_NEQ = 0, 1
NETWORK, TRANSPORT = 1, 2
META_IIFNAME, META_OIFNAME, META_NFPROTO, META_L4PROTO = 6, 7, 15, 16
CT_STATUS, CT_PROTO_DST, CT_SRC_IP, CT_DST_IP, CT_SRC_IP6, CT_DST_IP6 = 2, 12, 19, 20, 21, 22
IPS_DST_NAT = 0x20
TCP_FLAGS_OFFSET, SYN, FIN_SYN_RST_ACK = 13, b"\x02", b"\x17"  # RFC 9293 §3.1
VERDICTS = {"drop": 0, "accept": 1, "return": -5}
CHAIN_VERDICTS = {"jump": -3, "goto": -4}
FULLY_RANDOM = 1 << 4  # NF_NAT_RANGE_PROTO_RANDOM_FULLY
PORTS_GIVEN = 1 << 1  # NF_NAT_RANGE_PROTO_SPECIFIED
_SADDR = {Family.IPV4: 12, Family.IPV6: 8}  # in the IP header
_DADDR = {Family.IPV4: 16, Family.IPV6: 24}
_NFPROTO = {Family.IPV4: 2, Family.IPV6: 10}
_RANDOM = 1
_REGISTER_WORDS = 16


class Statement(NamedTuple):
    """A statement of a rule, or its match."""

    text: str
    json: Any
    expressions: tuple[bytes, ...]


class Rule(NamedTuple):
    """Statements, in order."""

    statements: tuple[Statement, ...]

    @property
    def text(self) -> str:
        """The rule as nft writes it."""
        return " ".join(statement.text for statement in self.statements)

    @property
    def expressions(self) -> bytes:
        """The value of NFTA_RULE_EXPRESSIONS."""
        return b"".join(part for statement in self.statements for part in statement.expressions)


class Chain(NamedTuple):
    """A chain. `hook` is empty for one that is reached by others; `priority` counts as nft does."""

    rules: tuple[Rule, ...]
    hook: str = ""
    priority: int = 0


class Load(NamedTuple):
    """A part of a key: how many words it has, and the expression that loads it into the registers from a word on."""

    text: str
    json: Any
    words: int
    load: Callable[[int], bytes]
    family: Family | None = None  # it is in packets of this family only


def rule(*statements: Statement) -> Rule:
    """Return a rule."""
    return Rule(statements)


def _register(word: int) -> int:
    return 1 + word // 4 if word % 4 == 0 else 8 + word


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *attributes))


# --- what is loaded ---


def _payload(base: int, offset: int, size: int) -> Callable[[int], bytes]:
    def load(word: int) -> bytes:
        return _expression("payload", u32(1, _register(word)), u32(2, base), u32(3, offset), u32(4, size))

    return load


def _meta(key: int) -> Callable[[int], bytes]:
    return lambda word: _expression("meta", u32(1, _register(word)), u32(2, key))


def _ct(key: int) -> Callable[[int], bytes]:
    return lambda word: _expression("ct", u32(1, _register(word)), u32(2, key), attribute(3, b"\0"))


def _protocol(family: Family) -> str:
    return "ip" if family is Family.IPV4 else "ip6"


def _header(protocol: str, field: str) -> Any:
    return {"payload": {"protocol": protocol, "field": field}}


def source(family: Family) -> Load:
    """Return the packet's source address."""
    name, size = _protocol(family), family.address_bytes
    return Load(f"{name} saddr", _header(name, "saddr"), size // 4, _payload(NETWORK, _SADDR[family], size), family)


def destination(family: Family) -> Load:
    """Return the packet's destination address."""
    name, size = _protocol(family), family.address_bytes
    return Load(f"{name} daddr", _header(name, "daddr"), size // 4, _payload(NETWORK, _DADDR[family], size), family)


def source_port() -> Load:
    """Return the source port."""
    return Load("th sport", _header("th", "sport"), 1, _payload(TRANSPORT, 0, 2))


def destination_port(word: str = "th") -> Load:
    """Return the destination port; `word`: nft's name of the header, where it has one for this protocol."""
    return Load(f"{word} dport", _header(word, "dport"), 1, _payload(TRANSPORT, 2, 2))


def protocol() -> Load:
    """Return the transport protocol."""
    return Load("meta l4proto", {"meta": {"key": "l4proto"}}, 1, _meta(META_L4PROTO))


def original_source(family: Family) -> Load:
    """Return the client of the packet's connection."""
    return _original(family, "saddr", CT_SRC_IP if family is Family.IPV4 else CT_SRC_IP6)


def original_destination(family: Family) -> Load:
    """Return the address that the client of the packet's connection sent to."""
    return _original(family, "daddr", CT_DST_IP if family is Family.IPV4 else CT_DST_IP6)


def _original(family: Family, field: str, key: int) -> Load:
    name = f"{_protocol(family)} {field}"
    shown = {"ct": {"key": name, "dir": "original"}}
    return Load(f"ct original {name}", shown, family.address_bytes // 4, _ct(key))


def original_port() -> Load:
    """Return the port that the client of the packet's connection sent to."""
    return Load("ct original proto-dst", {"ct": {"key": "proto-dst", "dir": "original"}}, 1, _ct(CT_PROTO_DST))


def random_slot(slots: int, offset: int) -> Load:
    """Return a number of `offset` and up, any of them as likely."""
    name, shown = f"numgen random mod {slots}", {"mode": "random", "mod": slots, "offset": offset}

    def load(word: int) -> bytes:
        return _expression("numgen", u32(1, _register(word)), u32(2, slots), u32(3, _RANDOM), u32(4, offset))

    return Load(name + (f" offset {offset}" if offset else ""), {"numgen": shown}, 1, load)


def hashed_slot(key: Sequence[Load], slots: int, seed: int, offset: int) -> Load:
    """Return a number of `offset` and up by a hash: the same on every node. `key` is of one family."""
    name = f"jhash {' . '.join(part.text for part in key)} mod {slots} seed {seed:#x}"
    shown: dict[str, Any] = {"mod": slots, "seed": seed, "offset": offset}
    shown["expr"] = {"concat": [part.json for part in key]} if len(key) > 1 else key[0].json
    words = sum(part.words for part in key)

    def load(word: int) -> bytes:
        at, loads = _REGISTER_WORDS - words, b""  # the last registers
        what = (u32(1, _register(at)), u32(2, _register(word)), u32(3, _bytes(key)), u32(4, slots), u32(5, seed))
        for part in key:
            loads += part.load(at)
            at += part.words
        return loads + _expression("hash", *what, u32(6, offset), u32(7, 0))

    return Load(name + (f" offset {offset}" if offset else ""), {"jhash": shown}, 1, load, key[0].family)


def _bytes(key: Sequence[Load]) -> int:
    return 4 * sum(part.words for part in key)


def frontend(family: Family) -> tuple[Load, ...]:
    """Return the key of a frontend, of the packet as it is."""
    return destination(family), protocol(), destination_port()


def original_frontend(family: Family) -> tuple[Load, ...]:
    """Return the key of a frontend, of the packet as the client sent it. nft wants the protocol to be matched before."""
    return original_destination(family), protocol(), original_port()


class _Key(NamedTuple):
    text: str
    json: Any
    expressions: tuple[bytes, ...]
    words: int


def _key(parts: Sequence[Load]) -> _Key:
    """Return the expressions that load a key, behind the one that matches its family."""
    family = next((part.family for part in parts if part.family is not None), None)
    expressions = [*_is_family(family)] if family is not None else []
    word = 0
    for part in parts:
        expressions.append(part.load(word))
        word += part.words
    shown = parts[0].json if len(parts) == 1 else {"concat": [part.json for part in parts]}
    return _Key(" . ".join(part.text for part in parts), shown, tuple(expressions), word)


def _is_family(family: Family) -> tuple[bytes, bytes]:
    return _meta(META_NFPROTO)(0), _equals(bytes((_NFPROTO[family],)))


def _equals(value: bytes) -> bytes:
    return _expression("cmp", u32(1, 1), u32(2, _CMP_EQ), nested(3, attribute(1, value)))


def _masked(mask: bytes) -> bytes:
    """Keep these bits of register 1."""
    size, zero = len(mask), bytes(len(mask))
    parts = (u32(1, 1), u32(2, 1), u32(3, size), nested(4, attribute(1, mask)), nested(5, attribute(1, zero)))
    return _expression("bitwise", *parts)


# --- statements ---


def verdict_data(verdict: str) -> bytes:
    """Return the attribute of a verdict: `drop`, `return`, `goto CHAIN`, `jump CHAIN`."""
    word, _, chain = verdict.partition(" ")
    if not chain:
        return nested(2, u32(1, VERDICTS[word]))
    return nested(2, u32(1, CHAIN_VERDICTS[word]), text(2, chain))


def verdict(words: str) -> Statement:
    """Return a statement that ends the rule with a verdict."""
    word, _, chain = words.partition(" ")
    shown: Any = {word: {"target": chain} if chain else None}
    found = _expression("immediate", u32(1, NFT_REG_VERDICT), nested(2, verdict_data(words)))
    return Statement(words, shown, (found,))


def goto(chain: str) -> Statement:
    """Go on in a chain, and do not come back."""
    return verdict(f"goto {chain}")


def jump(chain: str) -> Statement:
    """Go on in a chain, and come back after it."""
    return verdict(f"jump {chain}")


def _match(left: Any, right: Any, operator: str = "==") -> Any:
    return {"match": {"op": operator, "left": left, "right": right}}


def is_in(key: Sequence[Load], name: str, *, inverted: bool = False) -> Statement:
    """Match packets whose key is in a set; `inverted`: whose key is not."""
    found = _key(key)
    look_up = [text(1, name), u32(2, 1), *([u32(5, 1)] if inverted else [])]
    operator = "!=" if inverted else "=="
    return Statement(
        f"{found.text} {'!= ' if inverted else ''}@{name}",
        _match(found.json, f"@{name}", operator),
        (*found.expressions, _expression("lookup", *look_up)),
    )


def verdict_of(key: Sequence[Load], name: str) -> Statement:
    """Give the verdict of a map, where it has one."""
    found = _key(key)
    look_up = _expression("lookup", text(1, name), u32(2, 1), u32(3, NFT_REG_VERDICT))
    shown = {"vmap": {"key": found.json, "data": f"@{name}"}}
    return Statement(f"{found.text} vmap @{name}", shown, (*found.expressions, look_up))


def dnat(family: Family, key: Sequence[Load], name: str) -> Statement:
    """Translate the destination to the backend of a map, where it has one."""
    found, ip = _key(key), _protocol(family)
    look_up = _expression("lookup", text(1, name), u32(2, 1), u32(3, 1))
    port = _register(family.address_bytes // 4)
    nat = _expression("nat", u32(1, 1), u32(2, _NFPROTO[family]), u32(3, 1), u32(5, port))
    shown = {"dnat": {"family": ip, "addr": {"map": {"key": found.json, "data": f"@{name}"}}}}
    return Statement(f"dnat {ip} to {found.text} map @{name}", shown, (*found.expressions, look_up, nat))


def is_to(network: CIDR) -> Statement:
    """Match packets to the addresses of a range."""
    family, size = Family.of(network.network), len(network.network)
    mask = ((1 << 8 * size) - (1 << 8 * size - network.bits)).to_bytes(size, "big")
    compared = _expression("cmp", u32(1, 1), u32(2, _CMP_EQ), nested(3, attribute(1, network.network)))
    test = (*_is_family(family), _payload(NETWORK, _DADDR[family], size)(0), _masked(mask), compared)
    shown = {"prefix": {"addr": format_ip(network.network), "len": network.bits}}
    return Statement(f"{_protocol(family)} daddr {network}", _match(destination(family).json, shown), test)


def is_udp_port(port: int) -> Statement:
    """Match datagrams to a port."""
    test = (*is_protocol(L4Type.UDP).expressions, _payload(TRANSPORT, 2, 2)(0), _equals(port.to_bytes(2, "big")))
    return Statement(f"udp dport {port}", _match({"payload": {"protocol": "udp", "field": "dport"}}, port), test)


def is_protocol(kind: L4Type) -> Statement:
    """Match a transport protocol."""
    word = kind.value.lower()
    test = (_meta(META_L4PROTO)(0), _equals(bytes((kind.number,))))
    return Statement(f"meta l4proto {word}", _match({"meta": {"key": "l4proto"}}, word), test)


def is_family(family: Family) -> Statement:
    """Match a family."""
    word = "ipv4" if family is Family.IPV4 else "ipv6"
    return Statement(f"meta nfproto {word}", _match({"meta": {"key": "nfproto"}}, word), _is_family(family))


def came_in_by(name: str) -> Statement:
    """Match the device by which a packet came in; `name*`: all whose names begin so."""
    value = name[:-1].encode() if name.endswith("*") else name.encode().ljust(16, b"\0")
    test = (_meta(META_IIFNAME)(0), _equals(value))
    return Statement(f'iifname "{name}"', _match({"meta": {"key": "iifname"}}, name), test)


def from_this_node() -> Statement:
    """Match packets that came in by no device: of this node's processes."""
    return came_in_by("")


def input_device() -> Load:
    """Return the name of the device by which a packet came in."""
    return Load("iifname", {"meta": {"key": "iifname"}}, 4, _meta(META_IIFNAME))


def is_translated() -> Statement:
    """Match packets whose destination was translated, by whichever program."""
    mask = struct.pack("=I", IPS_DST_NAT)
    test = (
        _expression("ct", u32(1, 1), u32(2, CT_STATUS)),
        _masked(mask),
        _expression("cmp", u32(1, 1), u32(2, 1), nested(3, attribute(1, bytes(4)))),
    )
    return Statement("ct status dnat", _match({"ct": {"key": "status"}}, "dnat", "in"), test)


def masquerade(ports: tuple[int, int] | None = None) -> Statement:
    """Translate the source to the address of the device by which the packet leaves; `ports`: the first and the last one."""
    if ports is None:
        return Statement(
            "masquerade fully-random",
            {"masquerade": {"flags": "fully-random"}},
            (_expression("masq", u32(1, FULLY_RANDOM)),),
        )
    first, last = ports
    loads = tuple(
        _expression("immediate", u32(1, number), nested(2, attribute(1, port.to_bytes(2, "big"))))
        for number, port in enumerate(ports, 1)
    )
    return Statement(
        f"masquerade to :{first}-{last} fully-random",
        {"masquerade": {"port": {"range": [first, last]}, "flags": "fully-random"}},
        (*loads, _expression("masq", u32(1, FULLY_RANDOM | PORTS_GIVEN), u32(2, 1), u32(3, 2))),
    )


def begins_no_connection() -> Statement:
    """Match segments of TCP that are no SYN of a client."""
    test = (
        *is_protocol(L4Type.TCP).expressions,
        _payload(TRANSPORT, TCP_FLAGS_OFFSET, 1)(0),
        _masked(FIN_SYN_RST_ACK),
        _expression("cmp", u32(1, 1), u32(2, _CMP_NEQ), nested(3, attribute(1, SYN))),
    )
    flags = {"&": [_header("tcp", "flags"), {"|": [{"|": [{"|": ["fin", "syn"]}, "rst"]}, "ack"]}]}
    return Statement("tcp flags != syn / fin,syn,rst,ack", _match(flags, "syn", "!="), test)


def limit_over(rate: int) -> Statement:
    """Match what is more than `rate` packets a second."""
    words = f"limit rate over {rate}/second burst {rate} packets"
    shown = {"limit": {"rate": rate, "burst": rate, "per": "second", "inv": True}}
    return Statement(words, shown, (_expression("limit", u64(1, rate), u64(2, 1), u32(3, rate), u32(4, 0), u32(5, 1)),))


def reset() -> Statement:
    """Answer with RST."""
    return Statement("reject with tcp reset", {"reject": {"type": "tcp reset"}}, (_expression("reject", u32(1, 1)),))


def unreachable() -> Statement:
    """Answer with ICMP port unreachable."""
    shown = {"reject": {"type": "icmpx", "expr": "port-unreachable"}}
    return Statement("reject", shown, (_expression("reject", u32(1, 2), attribute(2, b"\x01")),))


def note(family: Family, name: str, timeout_s: int, header: str) -> Statement:
    """Note the backend of a client and a frontend for some time; `header`: tcp, udp or sctp, as the rule matched it."""
    key = (original_source(family), *original_frontend(family))
    value = (destination(family), destination_port(header))
    found, words = _key(key), 2 * (family.address_bytes // 4) + 2
    at = words + -words % 4 if words + -words % 4 + words // 2 <= _REGISTER_WORDS else words
    loads = (value[0].load(at), value[1].load(at + value[0].words))
    update = _expression("dynset", text(1, name), u32(3, 1), u32(4, 1), u32(5, _register(at)), u64(6, timeout_s * 1000))
    shown = f"{{ {found.text} timeout {duration(timeout_s)} : {' . '.join(part.text for part in value)} }}"
    return Statement(
        f"update @{name} {shown}",
        f"update @{name} {shown}",
        (*_is_family(family), *found.expressions, *loads, update),
    )


def duration(seconds: int) -> str:
    """Return a time as nft writes it: `3h`, `1d2m5s`."""
    words = ""
    for name, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size:
            words += f"{seconds // size}{name}"
            seconds %= size
    return words or "0s"
