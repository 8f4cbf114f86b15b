"""Frames without addresses of clients: scapy makes them and reads what is left."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption
from scapy.layers.inet6 import HBHOptUnknown, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrRouting
from scapy.layers.l2 import Dot1Q, Ether

from lbagent.model.address import parse_ip as packed
from lbagent.targets.bpf.redacted_frame import redacted_frame
from lbagent.targets.client_addresses import ClientAddresses

CLIENT, OTHER, VIP = "192.0.2.7", "192.0.2.8", "10.96.0.10"
CLIENT6, VIP6 = "fd77::7", "fd00:96::10"
NODE_MAC, CLIENT_MAC = "02:00:00:00:aa:01", "3c:52:82:11:22:33"
LINK = Ether(src=CLIENT_MAC, dst=NODE_MAC)


def clients() -> ClientAddresses:
    return ClientAddresses([packed(VIP), packed(VIP6)])


def redacted(packet: Any, found: ClientAddresses | None = None) -> Any:
    data = redacted_frame(bytes(packet), found or clients())
    assert len(data) == len(bytes(packet))
    for address in (CLIENT, OTHER, CLIENT6):
        assert packed(address) not in data
    assert bytes.fromhex(CLIENT_MAC.replace(":", "")) not in data
    return Ether(data)


@pytest.mark.parametrize("link", [LINK, LINK / Dot1Q(vlan=5)])
def test_a_client_of_each_family(link: Any) -> None:
    four = redacted(
        link / IP(src=CLIENT, dst=VIP, ttl=9) / TCP(sport=4711, dport=80, flags="S", options=[("MSS", 1460)])
    )
    assert (four[IP].src, four[IP].dst, four[IP].ttl) == ("240.0.0.1", VIP, 9)
    assert (four[TCP].sport, four[TCP].dport, four[TCP].flags, four[TCP].options) == (4711, 80, "S", [("MSS", 1460)])
    assert four[TCP].chksum == 0
    back = link.copy()
    back.src, back.dst = NODE_MAC, CLIENT_MAC
    again = IP(bytes(four[IP]))
    del again.chksum
    assert IP(bytes(again)).chksum == four[IP].chksum
    six = redacted(back / IPv6(src=VIP6, dst=CLIENT6) / UDP(sport=53, dport=9))
    assert (six[IPv6].src, six[IPv6].dst, six[UDP].dport, six[UDP].chksum) == (VIP6, "2001:db8::1", 9, 0)


def test_the_same_address_gets_the_same_replacement() -> None:
    found = clients()
    first, second, third, back = (
        redacted(each, found)
        for each in (
            LINK / IP(src=CLIENT, dst=VIP) / UDP(),
            LINK / IP(src=OTHER, dst=VIP) / UDP(),
            LINK / IP(src=CLIENT, dst=VIP) / TCP(),
            Ether(src=NODE_MAC, dst=CLIENT_MAC) / IP(src=VIP, dst=CLIENT) / TCP(),
        )
    )
    assert first[IP].src == third[IP].src == back[IP].dst != second[IP].src
    assert first.src == third.src == back.dst
    assert back.src == NODE_MAC


def test_what_else_has_an_address_is_removed() -> None:
    route = IPOption(b"\x07\x07\x04" + packed(CLIENT))
    packet = redacted(LINK / IP(src=CLIENT, dst=VIP, options=[route]) / ICMP())
    assert bytes(packet[IP])[20:28] == bytes((1,)) * 7 + bytes((1,))
    assert packet[ICMP].chksum == 0
    toa = [("MSS", 1400), (254, b"\x00\x50" + packed(CLIENT)), ("WScale", 7)]
    packet = redacted(LINK / IP(src=OTHER, dst=VIP) / TCP(options=toa))
    assert [each for each in packet[TCP].options if each[0] != "NOP"] == [("MSS", 1400), ("WScale", 7), ("EOL", None)]
    home = IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=0xC9, optdata=packed(CLIENT6))])
    packet = redacted(LINK / IPv6(src=CLIENT6, dst=VIP6) / IPv6ExtHdrFragment(m=1) / home / TCP(dport=80))
    assert packet[TCP].dport == 80
    routed = IPv6ExtHdrRouting(addresses=[CLIENT6])
    redacted(LINK / IPv6(src=CLIENT6, dst=VIP6) / routed / TCP(dport=80))


@pytest.mark.parametrize("cut", range(0, 100, 3))
def test_every_prefix_of_a_frame(cut: int) -> None:
    """A frame that ends anywhere is no error, and its whole addresses are replaced."""
    whole = bytes(LINK / IPv6(src=CLIENT6, dst=VIP6) / IPv6ExtHdrRouting(addresses=[CLIENT6]) / TCP())
    data = redacted_frame(whole[:cut], clients())
    assert len(data) == len(whole[:cut])
    if cut >= 54:
        assert packed(CLIENT6) not in data


def test_texts_have_the_replacements_too() -> None:
    found = ClientAddresses([packed(VIP)])
    redacted(LINK / IP(src=CLIENT, dst=VIP) / TCP(), found)
    redacted(LINK / IPv6(src=CLIENT6, dst=VIP6) / TCP(), found)
    text = f"from {CLIENT}:80, [{CLIENT6}]:443, {CLIENT}/32, {CLIENT}. At 20:48:46 to {VIP} 1{CLIENT} {CLIENT}9 192.0.2.77 {CLIENT_MAC}"
    assert found.in_text(text) == (
        f"from 240.0.0.1:80, [2001:db8::1]:443, 240.0.0.1/32, 240.0.0.1. At 20:48:46 to {VIP} 1{CLIENT} {CLIENT}9 192.0.2.77 {CLIENT_MAC}"
    )


def test_a_replacement_is_no_address_of_a_service() -> None:
    found = ClientAddresses([packed("240.0.0.1"), packed(VIP)])
    assert redacted(LINK / IP(src=CLIENT, dst=VIP) / TCP(), found)[IP].src == "240.0.0.2"
