"""Ranges of addresses: their addresses, allocatable ones, and rejected texts."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from lbagent.model.address import parse_ip
from lbagent.pools.address_range import parse_range


def given(text: str, *, avoid_buggy: bool) -> list[str]:
    return [str(ip_address(each)) for each in parse_range(text).addresses(avoid_buggy=avoid_buggy)]


@pytest.mark.parametrize(
    ("text", "all_of_them", "without_buggy"),
    [
        ("10.0.0.8/30", "10.0.0.8 10.0.0.9 10.0.0.10 10.0.0.11", "10.0.0.9 10.0.0.10"),
        ("10.0.0.8/31", "10.0.0.8 10.0.0.9", "10.0.0.8 10.0.0.9"),
        ("10.0.0.8/32", "10.0.0.8", "10.0.0.8"),
        ("10.0.0.254-10.0.1.1", "10.0.0.254 10.0.0.255 10.0.1.0 10.0.1.1", "10.0.0.254 10.0.1.1"),
        (" 10.0.0.7 - 10.0.0.8 ", "10.0.0.7 10.0.0.8", "10.0.0.7 10.0.0.8"),
        ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("10.0.1.0", "10.0.1.0", ""),
        ("fd00::4/126", "fd00::4 fd00::5 fd00::6 fd00::7", "fd00::5 fd00::6 fd00::7"),
        ("fd00::4/127", "fd00::4 fd00::5", "fd00::4 fd00::5"),
        ("fd00::fe-fd00::100", "fd00::fe fd00::ff fd00::100", "fd00::fe fd00::ff fd00::100"),
    ],
)
def test_what_it_gives_out(text: str, all_of_them: str, without_buggy: str) -> None:
    assert given(text, avoid_buggy=False) == all_of_them.split()
    assert given(text, avoid_buggy=True) == without_buggy.split()
    assert parse_range(text).count(avoid_buggy=False) == len(all_of_them.split())
    assert parse_range(text).count(avoid_buggy=True) == len(without_buggy.split())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10.0.0.0/8", 2**24 - 2 * 2**16),
        ("fd00::/64", 2**64 - 1),
        ("10.0.0.0/23", 508),
        ("fd00::-fd00:ffff::", 0xFFFF * 2**96 + 1),
    ],
)
def test_large_ones_are_counted_and_not_written_out(text: str, count: int) -> None:
    found = parse_range(text)
    assert found.count(avoid_buggy=True) == count
    assert next(found.addresses(avoid_buggy=True))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("10.0.0.9-10.0.0.1", "end is below start"),
        ("10.0.0.1-fd00::1", "two IP families"),
        ("0.0.0.0/0", "covers the whole address space"),
        ("::/0", "covers the whole address space"),
        ("10.0.0.1/24", "the network is 10.0.0.0/24"),
        ("224.0.0.0/24", "multicast"),
        ("223.255.255.0-224.0.0.1", "multicast"),
        ("126.0.0.0-128.0.0.0", "loopback"),
        ("::1", "loopback"),
        ("fe80::1-fe80::9", "link-local"),
        ("255.255.255.255", "broadcast"),
        ("0.0.0.0", "unspecified"),
        ("10.0.0", "not an address, range or network"),
        ("10.0.0.0/33", "not an address, range or network"),
        ("10.0.0.1-", "not an address, range or network"),
        ("", "not an address, range or network"),
        ("office", "not an address, range or network"),
        ("10.0.0.1-10.0.0.2-10.0.0.3", "not an address, range or network"),
    ],
)
def test_what_it_refuses(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="'") as refused:
        parse_range(text)
    assert problem in str(refused.value)


def test_what_it_holds() -> None:
    found = parse_range("10.0.0.8/30")
    assert parse_ip("10.0.0.8") in found
    assert parse_ip("10.0.0.11") in found
    assert parse_ip("10.0.0.12") not in found
    assert parse_ip("::ffff:0:a00:8") not in parse_range("10.0.0.8/30")
    assert parse_ip("a00:8::") not in found  # the same first bytes
