"""Small values of a service: names, ranges, algorithms, affinity."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.service import CIDR, SVC, Algorithm, ServiceName, mask


def test_names() -> None:
    """`[cluster/]namespace/name`; a name alone is in default; a name may start with a digit (KEP-5311)."""
    assert str(ServiceName("shop", "web")) == "shop/web"
    assert str(ServiceName("shop", "web", "east")) == "east/shop/web"
    assert ServiceName.parse("east/shop/web") == ServiceName("shop", "web", "east")
    assert ServiceName.parse("shop/1web") == ServiceName("shop", "1web")
    assert ServiceName.parse("web") == ServiceName("default", "web")
    for text in ("", "/", "a//b", "a/b/c/d"):
        with pytest.raises(ValueError, match="service name"):
            ServiceName.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.1.2.3/8", "10.0.0.0/8"),
        (" 192.168.7.7/32", "192.168.7.7/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("fd00::1/64", "fd00::/64"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
    ],
)
def test_ranges(text: str, expected: str) -> None:
    """Host bits are masked, blanks do not count, IPv6 has no brackets."""
    assert str(CIDR.parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "fd00::/129", "x/8", "10.0.0.0/", "::ffff:1.2.3.4/8"]
)
def test_bad_ranges(text: str) -> None:
    """A bad range never becomes another one."""
    with pytest.raises(ValueError):
        CIDR.parse(text)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.data())
def test_mask_agrees_with_ipaddress(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, data: st.DataObject) -> None:
    """The standard library masks the same."""
    bits = data.draw(st.integers(0, ip.max_prefixlen))
    assert mask(ip.packed, bits) == ipaddress.ip_network(f"{ip}/{bits}", strict=False).network_address.packed


def test_ranges_are_ordered_by_family_network_and_length() -> None:
    texts = ["fd00::/8", "10.0.0.0/16", "9.0.0.0/8", "::/0", "10.0.0.0/8"]
    found = sorted(map(CIDR.parse, texts), key=lambda cidr: cidr.sort_key)
    assert list(map(str, found)) == ["9.0.0.0/8", "10.0.0.0/8", "10.0.0.0/16", "::/0", "fd00::/8"]
    assert [cidr.is_ipv6 for cidr in found] == [False, False, False, True, True]


def test_algorithms() -> None:
    """LBALG: 1 random, 2 maglev (cilium), 3 least-conn; 0, undefined, is random."""
    assert [Algorithm(word).number for word in ("random", "maglev", "least-conn")] == [1, 2, 3]
    assert [Algorithm.from_number(number) for number in (0, 1, 2, 3)] == ["random", "random", "maglev", "least-conn"]
    with pytest.raises(ValueError, match="128"):
        Algorithm.from_number(0x80)


def test_affinity_timeout() -> None:
    """10800 s when none is given (Kubernetes' default), 0 without affinity whatever is left over."""
    frontend = L3n4Addr.parse("10.96.0.1:80")
    assert SVC(frontend, session_affinity=True).affinity_timeout_s == 10800
    assert SVC(frontend, session_affinity=True, session_affinity_timeout_s=60).affinity_timeout_s == 60
    assert SVC(frontend, session_affinity_timeout_s=60).affinity_timeout_s == 0


def test_backends_in_slot_order() -> None:
    """Selectable backends first, then those with a slot behind COUNT, then those without a slot."""
    one, two, three = (Backend(address=L3n4Addr.parse(f"10.0.0.{i}:80")) for i in (1, 2, 3))
    svc = SVC(L3n4Addr.parse("10.96.0.1:80"), selectable=(three,), unselectable=(one,), slotless=(two,))
    assert svc.backends == (three, one, two)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/ 8",
        "10.0.0.0/+8",
        "10.0.0.0/0008",
        "10.0.0.0/\u0668",
        "10.0.0.0/33",
        "::/129",
        "::ffff:0:0/95",
    ],
)
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="10|::|range"):
        CIDR.parse(text)
