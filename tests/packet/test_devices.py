"""Device records: MAC addresses and pods behind a device, also if several records have the same position."""

from __future__ import annotations

import pytest

from lbagent.maps.layout import DEVICE_PROBES, DEVICES, DeviceFlag
from tests.packet import craft, expect
from tests.packet.craft import NODE_MAC, POD_MAC, ROUTER_MAC, Family
from tests.packet.world import ROUTABLE, TCP, TWO_SCOPES, TYPE_LOAD_BALANCER, XDP, World

OTHER_MAC = "02:00:00:00:77:77"


def serve(world: World, fam: Family) -> bytes:
    """Enter a service, and return a request for it."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    return craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))


def to_mac(frame: bytes, mac: bytes) -> bytes:
    """Return the frame with another destination."""
    return mac + frame[6:]


def crowd(world: World, ifindex: int, before: int, flags: int = 0) -> None:
    """Enter so many other devices whose records begin where this one's does."""
    for n in range(1, before + 1):
        world.device(ifindex + n * DEVICES, flags, OTHER_MAC)


@pytest.mark.parametrize("before", range(DEVICE_PROBES))
def test_a_frame_for_another_station(world: World, fam: Family, before: int) -> None:
    """XDP sees what a promiscuous device receives: only frames for the device's own address are ours, whatever byte differs."""
    frame = serve(world, fam)
    world.clear("lb_device")
    crowd(world, world.net.lb0, before)
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, NODE_MAC)
    for at in range(6):
        for bit in (1, 0x10):
            mac = bytearray(frame[:6])
            mac[at] ^= bit
            other = to_mac(frame, bytes(mac))
            expect.untouched(world.run(XDP, other), other)
    assert world.run(XDP, frame).forwarded
    for vlans in ((5,), (5, 6)):  # the other parser checks it, too
        packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80)
        tagged = craft.frame(packet, vlans=vlans)
        other = to_mac(tagged, bytes((2, 0, 0, 0, 0x99, 0x99)))
        expect.untouched(world.run(XDP, other), other)
        assert world.run(XDP, tagged).forwarded


def test_a_device_without_a_record(world: World, fam: Family) -> None:
    """Its address is not known (the agent has just been attached): any station's frame is ours, but not a group's."""
    frame = serve(world, fam)
    world.clear("lb_device")
    crowd(world, world.net.lb0, 2)
    for mac in ("01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01"):
        group = to_mac(frame, bytes.fromhex(mac.replace(":", "")))
        expect.untouched(world.run(XDP, group), group)
    for mac in (NODE_MAC, ROUTER_MAC, "fe:00:00:00:00:00"):
        assert world.run(XDP, to_mac(frame, bytes.fromhex(mac.replace(":", "")))).forwarded


@pytest.mark.parametrize("before", range(DEVICE_PROBES))
def test_a_pods_device_wherever_its_record_is(world: World, fam: Family, hook: str, before: int) -> None:
    """What comes from a pod is of the inside, what comes from another device is not; neither by the record of another device."""
    inside, outside = world.backend(fam, fam.remote(1), 8080), world.backend(fam, fam.remote(2), 8080)
    flags = TYPE_LOAD_BALANCER | ROUTABLE | TWO_SCOPES
    world.service(fam, fam.vip, 80, TCP, [outside], flags=flags)
    world.service(fam, fam.vip, 80, TCP, [inside], flags=flags, scope=1)
    world.clear("lb_device")
    crowd(world, world.net.pod0, before)
    crowd(world, world.net.lb0, before, DeviceFlag.POD)
    world.device(world.net.pod0, DeviceFlag.POD, POD_MAC)
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, NODE_MAC)
    frame = craft.frame(craft.tcp(fam, fam.local(9), 40000, fam.vip, 80), src=craft.LOCAL_MAC, dst=POD_MAC)
    assert expect.destination(world.run(hook, frame, world.net.pod0)) == inside.endpoint
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    assert expect.destination(world.run(hook, frame)) == outside.endpoint
