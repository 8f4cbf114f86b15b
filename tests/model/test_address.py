"""Addresses: texts, bytes, keys. Expected values: cilium address forms, RFC 4291, IANA protocol numbers."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr, L4Addr, L4Type, Scope, format_ip, parse_ip, parse_port

MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
ips = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).filter(lambda ip: ip not in MAPPED))
addresses = st.builds(
    L3n4Addr,
    address=ips.map(lambda ip: ip.packed),
    port=st.integers(0, 65535),
    protocol=st.sampled_from(L4Type),
    scope=st.sampled_from(Scope),
    cluster_id=st.integers(0, 255),
)


def test_protocol_numbers_are_ianas() -> None:
    """TCP 6, UDP 17, SCTP 132; anything else is NONE."""
    assert [kind.number for kind in (L4Type.NONE, L4Type.TCP, L4Type.UDP, L4Type.SCTP)] == [0, 6, 17, 132]
    assert L4Type.from_number(132) is L4Type.SCTP
    assert L4Type.from_number(1) is L4Type.NONE


def test_protocol_words() -> None:
    """The dump writes ANY for the model's NONE; both are read, in any case."""
    assert L4Type.NONE.map_text == "ANY"
    assert L4Type.UDP.map_text == "UDP"
    assert L3n4Addr.parse("10.96.0.1:0/ANY/i").map_text() == "10.96.0.1:0/ANY/i"
    assert L3n4Addr.parse("[fd00::1]:53/UDP").map_text() == "[fd00::1]:53/UDP"
    assert L4Type.parse("any") is L4Type.parse("NONE") is L4Type.NONE
    assert L4Type.parse("udp") is L4Type.UDP
    with pytest.raises(ValueError, match="ICMP"):
        L4Type.parse("ICMP")


def test_l4addr_text() -> None:
    """`80/TCP`."""
    assert str(L4Addr(L4Type.TCP, 80)) == "80/TCP"


@pytest.mark.parametrize(
    ("address", "text", "with_protocol"),
    [
        (L3n4Addr(bytes([1, 1, 1, 1]), 80), "1.1.1.1:80", "1.1.1.1:80/TCP"),
        (L3n4Addr(bytes([1, 1, 1, 1]), 53, L4Type.UDP, Scope.INTERNAL), "1.1.1.1:53/i", "1.1.1.1:53/UDP/i"),
        (L3n4Addr(bytes.fromhex("fd00" + "0" * 27 + "1"), 443), "[fd00::1]:443", "[fd00::1]:443/TCP"),
        (L3n4Addr(bytes(16), 9, L4Type.SCTP, Scope.INTERNAL), "[::]:9/i", "[::]:9/SCTP/i"),
        (L3n4Addr(bytes([1, 1, 1, 1]), 80, cluster_id=3), "1.1.1.1@3:80", "1.1.1.1@3:80/TCP"),
    ],
)
def test_texts(address: L3n4Addr, text: str, with_protocol: str) -> None:
    """Both text forms, both families, scope and cluster."""
    assert str(address) == text
    assert address.with_protocol() == with_protocol
    assert L3n4Addr.parse(with_protocol) == address


def test_parse_without_protocol_is_tcp() -> None:
    """The short text has no protocol."""
    assert L3n4Addr.parse("10.0.0.1:80").protocol is L4Type.TCP
    assert L3n4Addr.parse("10.0.0.1:80/i") == L3n4Addr(bytes([10, 0, 0, 1]), 80, L4Type.TCP, Scope.INTERNAL)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:65536",
        "10.0.0.1:-1",
        "10.0.0.256:1",
        "10.0.1:1",
        "fd00::1:80",
        "[10.0.0.1]:80",
        "[fd00::1]",
        "10.0.0.1:80/ICMP",
        "10.0.0.1:80/TCP/x",
        "10.0.0.1:80/TCP/i/i",
        "10.0.0.1:8 0",
        "10.0.0.1@x:80",
        "a.b.c.d:1",
        "[fe80::1%eth0]:80",
        "10.0.0.1:٣",
        "1_0.0.0.1:80",
        "[]:80",
        ":80",
        "10.0.0.1@4294967296:80",
        "10.0.0.1@+3:80",
        "10.0.0.1@\u0663:80",
        "fd00::1]:80",
        "[fd00::1:80",
    ],
)
def test_parse_refuses(text: str) -> None:
    """A text that is no address raises ValueError with the text."""
    with pytest.raises(ValueError) as caught:
        L3n4Addr.parse(text)
    assert repr(text) in str(caught.value)


def test_a_missing_port_is_called_so() -> None:
    """Not "is no address": the message has the missing part."""
    with pytest.raises(ValueError, match="the port is missing"):
        L3n4Addr.parse("10.0.0.1")


@pytest.mark.parametrize(
    "text", ["10.0.1", "1.2.3.4.5", "1.2.3.\u0664", "1.2.3.+4", "1.2.3. 4", "1.2.3.256", "", "..."]
)
def test_what_is_no_ip(text: str) -> None:
    """Four decimal bytes, in ASCII digits and nothing else."""
    with pytest.raises(ValueError, match="is not an IP address"):
        parse_ip(text)


@pytest.mark.parametrize("text", ["", "65536", "000080", "+80", "-80", " 80", "80 ", "8_0", "\u0668\u0660", "http"])
def test_what_is_no_port(text: str) -> None:
    """At most five ASCII digits, up to 65535."""
    with pytest.raises(ValueError, match="is not a port of 0-65535"):
        parse_port(text)
    assert [parse_port(each) for each in ("0", "00080", "65535")] == [0, 80, 65535]


@given(addresses)
def test_text_round_trip(address: L3n4Addr) -> None:
    """The text with protocol has every field."""
    assert L3n4Addr.parse(address.with_protocol()) == address


@given(addresses, addresses)
def test_hash_key_differs_where_addresses_do(one: L3n4Addr, two: L3n4Addr) -> None:
    """hash_key is as good as the address itself, and equal addresses are one dict key."""
    assert (one.hash_key() == two.hash_key()) == (one == two)
    assert len({one, two}) == len({one.hash_key(), two.hash_key()})


def test_hash_key_sees_each_field() -> None:
    """Era A's hash omitted the protocol and truncated the cluster id; this one does neither."""
    base = L3n4Addr(bytes([10, 0, 0, 1]), 80)
    others = [
        base,
        L3n4Addr(bytes([10, 0, 0, 2]), 80),
        L3n4Addr(bytes([10, 0, 0, 1]), 81),
        L3n4Addr(bytes([10, 0, 0, 1]), 80, L4Type.UDP),
        base.with_scope(Scope.INTERNAL),
        L3n4Addr(bytes([10, 0, 0, 1]), 80, cluster_id=1),
        L3n4Addr(bytes([10, 0, 0, 1]), 80, cluster_id=1 << 24),
        L3n4Addr(bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1]), 80),
    ]
    assert len({address.hash_key() for address in others}) == len(others)


@given(ips)
def test_ip_texts_agree_with_ipaddress(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """parse_ip and format_ip do what the standard library does."""
    assert parse_ip(str(ip)) == ip.packed
    assert format_ip(ip.packed) == str(ip)


def test_sloppy_addresses_of_stored_objects() -> None:
    """KEP-4858: leading zeros are decimal, an IPv4-mapped address is IPv4."""
    assert parse_ip("010.000.00.001") == bytes([10, 0, 0, 1])
    assert parse_ip("::ffff:10.0.0.1") == bytes([10, 0, 0, 1])


@given(st.text(max_size=40))
def test_parsers_never_fail_otherwise(text: str) -> None:
    """Any text either parses or is a ValueError."""
    for parser in (parse_ip, parse_port, L3n4Addr.parse, L4Type.parse):
        try:
            parser(text)
        except ValueError:
            continue


def test_family_and_order() -> None:
    """Slots are ordered by numeric address, then port: 10.0.0.9 before 10.0.0.10."""
    texts = ["10.0.0.10:80", "10.0.0.9:81", "10.0.0.9:80", "[fd00::1]:1"]
    parsed = sorted(map(L3n4Addr.parse, texts), key=lambda address: address.sort_key)
    assert [str(address) for address in parsed] == ["10.0.0.9:80", "10.0.0.9:81", "10.0.0.10:80", "[fd00::1]:1"]
    assert [address.is_ipv6 for address in parsed] == [False, False, False, True]
    assert [address.family for address in parsed] == [4, 4, 4, 6]
    assert parsed[0].ip == "10.0.0.9"
    assert parsed[0].l4 == L4Addr(L4Type.TCP, 80)
