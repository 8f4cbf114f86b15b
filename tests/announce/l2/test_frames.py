"""Frames about addresses, compared with scapy's parser."""

from __future__ import annotations

import socket

import pytest
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether

from lbagent.announce.l2 import frames

MAC, OTHER = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
V4, V6 = socket.inet_aton("10.77.0.100"), socket.inet_pton(socket.AF_INET6, "fd77::1:2345")
TEXT = MAC.hex(":")


def test_an_arp_probe_names_no_sender() -> None:
    frame = Ether(frames.probe(V4, MAC))
    assert (frame.dst, frame.src, frame[ARP].op) == ("ff:ff:ff:ff:ff:ff", TEXT, 1)
    assert (frame[ARP].psrc, frame[ARP].pdst, frame[ARP].hwsrc) == ("0.0.0.0", "10.77.0.100", TEXT)


def test_gratuitous_arp_has_both_forms() -> None:
    first, second = (Ether(frame)[ARP] for frame in frames.announcements(V4, MAC))
    assert [first.op, second.op] == [1, 2]
    assert {first.psrc, first.pdst, second.psrc, second.pdst} == {"10.77.0.100"}


def test_a_solicitation_is_one_of_duplicate_address_detection() -> None:
    raw = frames.probe(V6, MAC)
    frame = Ether(raw)
    assert (frame.dst, frame[IPv6].src, frame[IPv6].dst) == ("33:33:ff:01:23:45", "::", "ff02::1:ff01:2345")
    assert (frame[IPv6].hlim, frame[ICMPv6ND_NS].tgt) == (255, "fd77::1:2345")
    assert _with_own_checksum(raw) == raw


def test_an_advertisement_goes_to_all_nodes_and_overrides() -> None:
    (raw,) = frames.announcements(V6, MAC)
    frame = Ether(raw)
    assert (frame.dst, frame[IPv6].dst, frame[IPv6].src) == ("33:33:00:00:00:01", "ff02::1", "fd77::1:2345")
    found = frame[ICMPv6ND_NA]
    assert (found.R, found.S, found.O, found.tgt, found[ICMPv6NDOptDstLLAddr].lladdr) == (0, 0, 1, "fd77::1:2345", TEXT)
    assert _with_own_checksum(raw) == raw


def _with_own_checksum(raw: bytes) -> bytes:
    frame = Ether(raw)
    del frame[IPv6].payload.cksum
    return bytes(frame)


@pytest.mark.parametrize("op", [1, 2])
def test_who_tells_of_itself_claims_the_address(op: int) -> None:
    raw = bytes(
        Ether(src=OTHER.hex(":"), dst="ff:ff:ff:ff:ff:ff")
        / ARP(op=op, hwsrc=OTHER.hex(":"), psrc="10.77.0.100", pdst="10.77.0.100")
    )
    assert frames.parse_arp(raw) == frames.AddressSighting(V4, OTHER)


def test_a_question_and_a_probe_claim_nothing() -> None:
    assert (
        frames.parse_arp(
            bytes(Ether(src=OTHER.hex(":"), dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, psrc="10.77.0.2", pdst="10.77.0.100"))
        )
        is None
    )
    assert frames.parse_arp(frames.probe(V4, MAC)) is None
    assert (
        frames.parse_arp(
            bytes(Ether(src=OTHER.hex(":"), dst="ff:ff:ff:ff:ff:ff") / ARP(op=2, psrc="0.0.0.0", pdst="10.77.0.100"))
        )
        is None
    )
    assert frames.parse_arp(frames.announcements(V4, MAC)[0][:41]) is None


@pytest.mark.parametrize(
    ("mac", "found"),
    [("020000000001", True), ("00163e000001", True), ("ffffffffffff", False), ("000000000000", False),
     ("01005e000064", False), ("3333ff000001", False)],
)  # fmt: skip
def test_which_mac_addresses_a_host_can_have(mac: str, found: bool) -> None:
    assert frames.is_of_a_host(bytes.fromhex(mac)) is found


def test_an_advertisement_claims_its_target() -> None:
    (raw,) = frames.announcements(V6, MAC)
    assert frames.parse_advertisement(raw[54:]) == frames.AddressSighting(V6, MAC)
    assert frames.parse_advertisement(raw[54:-1]) is None
    assert frames.parse_advertisement(frames.probe(V6, MAC)[54:] + bytes(8)) is None
    assert frames.parse_advertisement(raw[54:78] + bytes(8)) is None  # an option of length 0
