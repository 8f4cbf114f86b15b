"""IPv4 addresses in fields of 16 bytes."""

from __future__ import annotations

from ipaddress import IPv6Address

from lbagent.mapped_address import mapped, unmapped


def test_both_families_have_16_bytes_and_come_back() -> None:
    four, six = bytes((192, 0, 2, 1)), IPv6Address("2001:db8::1").packed
    assert mapped(four) == IPv6Address("::ffff:192.0.2.1").packed
    assert mapped(six) == six
    assert (unmapped(mapped(four)), unmapped(mapped(six)), unmapped(four)) == (four, six, four)
