"""`--exclude CIDR[:PORT[/PROTO]]`: which frontends it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr
from lbagent.model.exclusion import Exclusion


@pytest.mark.parametrize(
    ("text", "excluded", "served"),
    [
        ("10.96.0.0/16", ["10.96.0.1:80", "10.96.255.255:1/UDP"], ["10.97.0.1:80", "[fd00::1]:80"]),
        ("10.96.0.10/32:53", ["10.96.0.10:53", "10.96.0.10:53/UDP"], ["10.96.0.10:54", "10.96.0.11:53"]),
        ("10.96.0.10/32:53/udp", ["10.96.0.10:53/UDP"], ["10.96.0.10:53"]),
        ("fd00::/64", ["[fd00::1]:80", "[fd00::ffff]:9/UDP"], ["[fd00:0:0:1::1]:80", "10.0.0.1:80"]),
        ("[fd00::/64]:53/TCP", ["[fd00::1]:53"], ["[fd00::1]:53/UDP", "[fd00::1]:80"]),
        ("[fd00::1/128]", ["[fd00::1]:53"], ["[fd00::2]:53"]),
    ],
)
def test_what_it_has(text: str, excluded: list[str], served: list[str]) -> None:
    found = Exclusion.parse(text)
    assert all(found.has(L3n4Addr.parse(each)) for each in excluded)
    assert not any(found.has(L3n4Addr.parse(each)) for each in served)
    assert Exclusion.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("10.96.0.10", "not a range"),
        ("10.96.0.0/33", "prefix length"),
        ("10.96.0.0/16:0", "not a port"),
        ("10.96.0.0/16:65536", "not a port"),
        ("10.96.0.0/16:", "not a port"),
        ("10.96.0.0/16:53/ICMP", "'ICMP'"),
        ("10.96.0.0/16:53/", "''"),
        ("[fd00::/64]53", r"not \[CIDR\]:PORT"),
        ("[fd00::/64", r"not \[CIDR\]:PORT"),
        ("fd00::/64:53", "range"),
        ("", "not an IP address"),
    ],
)
def test_what_is_none(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Exclusion.parse(text)


@given(st.text(alphabet="0123456789abcdf.:/[]TCPUD", max_size=24))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = Exclusion.parse(text)
    except ValueError:
        return
    assert Exclusion.parse(str(found)) == found
