"""Announced addresses: ARP requests (RFC 826, RFC 5227) and neighbor solicitations (RFC 4861) that the programs answer, and all others."""

from __future__ import annotations

import ipaddress
import time

import pytest
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet

from lbagent.maps import layout
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import V4, V6, Family
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, XDP, Outcome, World

ASKER, OTHER = "02:00:00:00:09:01", "02:00:00:00:09:02"
VIP_MAC = "02:00:00:00:0a:01"  # announced with it: not the address of the device
BROADCAST = "ff:ff:ff:ff:ff:ff"
NONE = {4: "0.0.0.0", 6: "::"}
HOOKS = pytest.mark.parametrize("hook", [XDP, TC_INGRESS])


@pytest.fixture
def announcing_world(loaded_announcing_world: World) -> World:
    """Return it with the VIP of each family announced by lb0, and served."""
    world = loaded_announcing_world
    world.reset()
    for fam in (V4, V6):
        announce(world, fam, fam.vip)
        world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    return world


def announce(world: World, fam: Family, address: str, seconds: float = 30.0, device: int = 0) -> None:
    """Let a device announce an address for a while."""
    world.vip("lb_vip", fam, address, VIP_MAC, seconds, device)


def group_of(target: str) -> tuple[str, str]:
    """Return the solicited-node address of an IPv6 address and its MAC address (RFC 4291 §2.7.1, RFC 2464 §7)."""
    last = ipaddress.ip_address(target).packed[-3:]
    return f"ff02::1:ff{last[0]:02x}:{last[1]:02x}{last[2]:02x}", f"33:33:ff:{last[0]:02x}:{last[1]:02x}:{last[2]:02x}"


def request(fam: Family, target: str, sender: str = "", *, to: str = "", mac: str = "", **fields: object) -> Packet:
    """Return a request; `to`, `mac`: it is sent to this address alone."""
    if fam.version == 4:
        arp = ARP(op=1, hwsrc=ASKER, psrc=sender or fam.router, hwdst="00:00:00:00:00:00", pdst=target)
        for name, value in fields.items():
            setattr(arp, name, value)
        return Ether(src=ASKER, dst=mac or BROADCAST) / arp
    group, group_mac = group_of(target)
    source = sender or fam.router
    packet = IPv6(src=source, dst=to or group, hlim=fields.pop("hlim", 255)) / ICMPv6ND_NS(tgt=target, **fields)
    if source != "::":
        packet /= ICMPv6NDOptSrcLLAddr(lladdr=ASKER)
    return Ether(src=ASKER, dst=mac or group_mac) / packet


def assert_answered(out: Outcome, fam: Family, target: str, asker: str = "") -> None:
    """The sender gets the answer that `target` has VIP_MAC."""
    assert out.forwarded
    assert out.counted == {Reason.ANSWER_NEIGHBOR: 1}
    answer = Ether(out.packet)
    assert (answer.src, answer.dst) == (VIP_MAC, ASKER)
    asker = asker or fam.router
    if fam.version == 4:
        arp = answer[ARP]
        assert (arp.hwtype, arp.ptype, arp.hwlen, arp.plen, arp.op) == (1, 0x0800, 6, 4, 2)
        assert (arp.hwsrc, arp.psrc, arp.hwdst, arp.pdst) == (VIP_MAC, target, ASKER, asker)
        return
    assert len(out.packet) == 14 + 40 + 32
    assert (answer[IPv6].src, answer[IPv6].dst, answer[IPv6].hlim, answer[IPv6].plen) == (target, asker, 255, 32)
    advert = answer[ICMPv6ND_NA]
    assert (advert.code, advert.tgt, advert.R, advert.S, advert.O, advert.res) == (0, target, 0, 1, 1, 0)
    assert answer[ICMPv6NDOptDstLLAddr].lladdr == VIP_MAC
    found = advert.cksum
    del advert.cksum
    assert Ether(bytes(answer))[ICMPv6ND_NA].cksum == found


def assert_passed(world: World, hook: str, packet: Packet, device: int = 0) -> None:
    """The frame passes unchanged."""
    frame = bytes(packet)
    out = world.run(hook, frame, device)
    expect.untouched(out, frame)
    assert Reason.ANSWER_NEIGHBOR not in out.counted


@HOOKS
def test_a_question_to_all(announcing_world: World, fam: Family, hook: str) -> None:
    assert_answered(announcing_world.run(hook, bytes(request(fam, fam.vip))), fam, fam.vip)


@HOOKS
def test_a_padded_frame(announcing_world: World, hook: str) -> None:
    """Ethernet fills a short frame up to 60 bytes."""
    assert_answered(announcing_world.run(hook, bytes(request(V4, V4.vip)).ljust(60, b"\0")), V4, V4.vip)


@HOOKS
def test_a_question_to_this_device_alone(announcing_world: World, fam: Family, hook: str) -> None:
    """A host checks in this way whether its entry is still valid; in IPv6 with or without its MAC address."""
    asked = request(fam, fam.vip, to=fam.vip, mac=craft.NODE_MAC)
    assert_answered(announcing_world.run(hook, bytes(asked)), fam, fam.vip)
    if fam.version == 6:
        asked[ICMPv6ND_NS].remove_payload()
        del asked[IPv6].plen, asked[ICMPv6ND_NS].cksum
        assert len(bytes(asked)) == 14 + 40 + 24
        assert_answered(announcing_world.run(hook, bytes(asked)), fam, fam.vip)


@HOOKS
def test_a_question_to_another_host_alone(announcing_world: World, fam: Family, hook: str) -> None:
    """A switch that floods, a device that listens to all."""
    assert_passed(announcing_world, hook, request(fam, fam.vip, to=fam.vip, mac=OTHER))


@HOOKS
def test_an_address_that_is_looked_for_before_it_is_used(announcing_world: World, hook: str) -> None:
    """ARP: an answer to the sender (RFC 5227 §2.1). IPv6: to all, as the sender has no address (RFC 4861 §7.2.4)."""
    out = announcing_world.run(hook, bytes(request(V4, V4.vip, NONE[4])))
    assert_answered(out, V4, V4.vip, NONE[4])
    out = announcing_world.run(hook, bytes(request(V6, V6.vip, "::")))
    assert out.forwarded
    answer = Ether(out.packet)
    assert (answer.src, answer.dst) == (VIP_MAC, "33:33:00:00:00:01")
    assert (answer[IPv6].src, answer[IPv6].dst) == (V6.vip, "ff02::1")
    advert = answer[ICMPv6ND_NA]
    assert (advert.R, advert.S, advert.O) == (0, 0, 1)
    found = advert.cksum
    del advert.cksum
    assert Ether(bytes(answer))[ICMPv6ND_NA].cksum == found


@HOOKS
def test_what_is_not_announced(announcing_world: World, fam: Family, hook: str) -> None:
    """Another address, the node's own, the same address by another device, one whose time is over, one that was withdrawn."""
    world = announcing_world
    assert_passed(world, hook, request(fam, fam.vip2))
    assert_passed(world, hook, request(fam, fam.node))
    announce(world, fam, fam.vip2, device=world.net.lb1)
    assert_passed(world, hook, request(fam, fam.vip2))
    announce(world, fam, fam.vip, seconds=-0.1)
    assert_passed(world, hook, request(fam, fam.vip))
    announce(world, fam, fam.vip)
    assert world.run(hook, bytes(request(fam, fam.vip))).forwarded
    world.maps.delete_many("lb_vip", [key for key, _ in world.maps.items("lb_vip")])
    assert_passed(world, hook, request(fam, fam.vip))


@HOOKS
def test_each_byte_of_the_address_counts(announcing_world: World, fam: Family, hook: str) -> None:
    packed = bytearray(fam.packed(fam.vip))
    for at in range(len(packed)):
        changed = bytes(packed[:at]) + bytes([packed[at] ^ 1]) + bytes(packed[at + 1 :])
        assert_passed(announcing_world, hook, request(fam, fam.text(changed)))


@HOOKS
def test_the_time_ends_by_itself(announcing_world: World, fam: Family, hook: str) -> None:
    announce(announcing_world, fam, fam.vip2, seconds=0.5)
    assert announcing_world.run(hook, bytes(request(fam, fam.vip2))).forwarded
    time.sleep(0.6)
    assert_passed(announcing_world, hook, request(fam, fam.vip2))


@HOOKS
def test_who_asks_for_its_own_address_announces_it(announcing_world: World, fam: Family, hook: str) -> None:
    """Gratuitous ARP, or an address conflict: the agent must receive it."""
    assert_passed(announcing_world, hook, request(fam, fam.vip, fam.vip))


@HOOKS
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hwtype", 2),
        ("ptype", 0x86DD),
        ("hwlen", 7),
        ("plen", 5),
        ("op", 2),
        ("op", 3),
        ("op", 0x0101),
        ("hwsrc", "03:00:00:00:00:01"),
    ],
)
def test_arp_that_is_no_question(announcing_world: World, hook: str, name: str, value: object) -> None:
    """An answer, another kind of address, a group as sender."""
    packet = bytearray(bytes(request(V4, V4.vip)))
    at, size = {
        "hwtype": (14, 2),
        "ptype": (16, 2),
        "hwlen": (18, 1),
        "plen": (19, 1),
        "op": (20, 2),
        "hwsrc": (22, 6),
    }[name]
    packet[at : at + size] = (
        bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else int(str(value)).to_bytes(size, "big")
    )
    assert_passed(announcing_world, hook, Ether(bytes(packet)))


@HOOKS
def test_a_frame_that_a_group_has_sent(announcing_world: World, fam: Family, hook: str) -> None:
    packet = request(fam, fam.vip)
    packet.src = "03:00:00:00:00:01"
    assert_passed(announcing_world, hook, packet)


@HOOKS
@pytest.mark.parametrize(
    "case",
    ["hop limit", "code", "checksum", "echo", "advertisement", "extension", "short", "sender is a group", "too long"],
)
def test_solicitations_that_are_not_valid(announcing_world: World, hook: str, case: str) -> None:
    """RFC 4861 §7.1.1."""
    packet = request(V6, V6.vip)
    if case == "hop limit":
        packet[IPv6].hlim = 254
    elif case == "code":
        packet[ICMPv6ND_NS].code = 1
    elif case == "checksum":
        packet[ICMPv6ND_NS].cksum = 0x1234
    elif case == "echo":
        packet[IPv6].payload = ICMPv6EchoRequest(data=V6.packed(V6.vip))
    elif case == "advertisement":
        packet[IPv6].payload = ICMPv6ND_NA(tgt=V6.vip)
    elif case == "extension":
        packet[IPv6].payload = IPv6ExtHdrDestOpt() / packet[ICMPv6ND_NS]
    elif case == "short":
        packet[IPv6].plen = 23
    elif case == "sender is a group":
        packet[IPv6].src = "ff02::2"
    else:
        packet = packet / bytes(128)
    assert_passed(announcing_world, hook, packet)


@HOOKS
def test_options_count_in_the_checksum_alone(announcing_world: World, hook: str) -> None:
    """A nonce of enhanced DAD (RFC 7527), bytes that are odd in number."""
    nonce = bytes.fromhex("0e01") + bytes(range(6))
    for rest in (nonce, nonce * 4, bytes(96), nonce + b"\x01"):
        packet = request(V6, V6.vip)
        packet[ICMPv6ND_NS].remove_payload()
        packet /= rest
        assert_answered(announcing_world.run(hook, bytes(packet)), V6, V6.vip)


@HOOKS
def test_every_cut_of_a_question(announcing_world: World, fam: Family, hook: str) -> None:
    """A frame that ends early is not answered, and nothing breaks."""
    frame = bytes(request(fam, fam.vip))
    need = 42 if fam.version == 4 else len(frame)
    for size in range(14, need):
        out = announcing_world.run(hook, frame[:size])
        assert out.passed, size


@HOOKS
def test_a_tagged_question(announcing_world: World, fam: Family, hook: str) -> None:
    """A VLAN is another link: nothing is announced there."""
    packet = request(fam, fam.vip)
    tagged = Ether(src=packet.src, dst=packet.dst) / Dot1Q(vlan=5) / packet.payload
    assert_passed(announcing_world, hook, tagged)


def test_what_leaves_is_not_answered(announcing_world: World, fam: Family) -> None:
    """Requests of the node itself."""
    assert_passed(announcing_world, TC_EGRESS, request(fam, fam.vip))
    assert_passed(announcing_world, TC_EGRESS, request(fam, fam.vip, to=fam.vip, mac=craft.NODE_MAC))


@HOOKS
def test_without_the_setting_all_passes(world: World, fam: Family, hook: str) -> None:
    announce(world, fam, fam.vip)
    assert_passed(world, hook, request(fam, fam.vip))
    assert_passed(world, hook, request(fam, fam.vip, to=fam.vip, mac=craft.NODE_MAC))


@HOOKS
def test_traffic_goes_on_beside_it(announcing_world: World, fam: Family, hook: str) -> None:
    """With the setting as without: a connection, a frame for another host, a group's datagram."""
    world = announcing_world
    syn = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, "S"))
    assert world.run(hook, syn).counted == {Reason.FWD_NEW: 1}
    assert_passed(world, hook, Ether(craft.frame(craft.tcp(fam, fam.client, 40001, fam.vip, 80, "S"), dst=OTHER)))
    group, mac = ("224.0.0.251", "01:00:5e:00:00:fb") if fam.version == 4 else ("ff02::fb", "33:33:00:00:00:fb")
    assert_passed(world, hook, Ether(craft.frame(craft.udp(fam, fam.client, 5353, group, 5353), dst=mac)))


def test_layout() -> None:
    """Bytes of lb_vip: the device, the address with IPv4's prefix; the end of life, the MAC address."""
    assert layout.LB_VIP_KEY.offsets() == {"ifindex": 0, "address": 4}
    assert layout.LB_VIP.offsets() == {"until": 0, "mac": 8, "pad": 14}
    assert (layout.LB_VIP_KEY.size, layout.LB_VIP.size) == (20, 16)
