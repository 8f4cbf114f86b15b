"""Answers to real sockets: a local sender leaves its checksum to the device, and the answer must survive that.

A client in a namespace of its own behind lb0, the tc program on lb0. lb0 completes checksums in software (tx off), so what the
client's device captures are the bytes a NIC would have sent.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lbagent.kernel import bpf_link
from lbagent.kernel.features import has_tcx
from lbagent.maps.reasons import Reason
from tests.packet import craft, wire
from tests.packet.craft import Family
from tests.packet.harness import open_world
from tests.packet.net import Net
from tests.packet.world import TC_INGRESS, TCP, UDP, World

SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
IP_MTU, IPV6_MTU, UDP_SEGMENT = 14, 24, 103  # include/uapi/linux/in.h, in6.h, udp.h
DISCOVER = {4: (socket.IPPROTO_IP, 10, 2), 6: (socket.IPPROTO_IPV6, 23, 2)}  # *_MTU_DISCOVER: "do not fragment"
CLIENT_SETUP = """
link set lo up
link set peer0 up
addr add {f.router}/{bits} dev peer0 {nodad}
neigh add {f.node} lladdr {node} dev peer0 nud permanent
route add {f.vip} via {f.node} dev peer0
"""


class ClientNet(Net):
    """The other end of lb0 in a namespace of its own; its address is the router's."""

    def __init__(self, node: Net) -> None:
        """Make the namespace, then take peer0 over."""
        self.node = node
        super().__init__()

    def _fill(self) -> None:
        path = f"/proc/{os.getpid()}/fd/{self.fd}"
        with self.node.inside():
            subprocess.run(["ip", "link", "set", "peer0", "netns", path], check=True)
        for family, bits, nodad in ((craft.V4, 24, ""), (craft.V6, 64, "nodad")):
            batch = CLIENT_SETUP.format(f=family, bits=bits, nodad=nodad, node=craft.NODE_MAC)
            subprocess.run(["ip", f"-{family.version}", "-batch", "-"], input=batch, text=True, check=True)


def complete_in_software(device: str) -> None:
    """Turn transmit checksum offload of a device off."""
    value = ctypes.create_string_buffer(struct.pack("=II", ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCETHTOOL, request)


@pytest.fixture(scope="module")
def wired_world() -> Iterator[tuple[World, ClientNet]]:
    """Load the programs, attach tc_ingress to lb0, yield world and client."""
    if not has_tcx():
        pytest.skip("TCX links need Linux 6.6")
    with open_world() as world:
        client = ClientNet(world.net)
        link = -1
        try:
            with world.net.inside():
                complete_in_software("lb0")
                link = bpf_link.link_create(world.programs[TC_INGRESS], world.net.lb0, bpf_link.AttachType.TCX_INGRESS)
            yield world, client
        finally:
            if link >= 0:
                os.close(link)
            client.close()


@contextmanager
def capture(client: ClientNet) -> Iterator[socket.socket]:
    """Listen to peer0 in the client's namespace, which the block runs in."""
    with client.inside(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.bind(("peer0", 0))
        raw.settimeout(1)
        yield raw


def answer_in(raw: socket.socket, family: Family, proto: int) -> tuple[bytes, wire.Wire]:
    """Return the first captured frame from the VIP with this protocol."""
    while True:
        data = raw.recv(4000)
        seen = wire.parse(data)
        if seen is not None and seen.src == family.packed(family.vip) and seen.proto == proto:
            return data, seen


def test_connection_refused(wired_world: tuple[World, ClientNet], fam: Family) -> None:
    """connect() fails at once, and the RST on the wire has a right checksum."""
    world, client = wired_world
    world.reset()
    world.service(fam, fam.vip, 80, TCP)
    with capture(client) as raw, socket.socket(fam.af, socket.SOCK_STREAM) as stream:
        stream.settimeout(1)
        with pytest.raises(ConnectionRefusedError):
            stream.connect((fam.vip, 80))
        _, seen = answer_in(raw, fam, wire.TCP)
        assert seen.bad == []


@pytest.mark.parametrize("size", [0, 1, 2, 33, 500, 1400])
def test_datagram_refused(wired_world: tuple[World, ClientNet], fam: Family, size: int) -> None:
    """recv() returns the error; its checksum is right, and so is the one in the datagram it quotes."""
    world, client = wired_world
    world.reset()
    world.service(fam, fam.vip, 80, UDP)
    with capture(client) as raw, socket.socket(fam.af, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(1)
        datagrams.connect((fam.vip, 80))
        datagrams.send(b"q" * size)
        with pytest.raises(ConnectionRefusedError):
            datagrams.recv(100)
        _, seen = answer_in(raw, fam, wire.ICMP if fam.version == 4 else wire.ICMP6)
        assert seen.bad == []
        assert seen.quoted is not None
        if size < 500:
            assert seen.quoted.bad == []


def test_path_mtu_is_learned(wired_world: tuple[World, ClientNet], fam: Family) -> None:
    """A datagram too big for the way to the backend: the socket learns the MTU from the program's answer."""
    world, client = wired_world
    world.reset()
    backend = world.backend(fam, fam.remote(1), 8080, UDP, mtu=1300)
    world.service(fam, fam.vip, 80, UDP, [backend])
    level, option = (socket.IPPROTO_IP, IP_MTU) if fam.version == 4 else (socket.IPPROTO_IPV6, IPV6_MTU)
    with capture(client) as raw, socket.socket(fam.af, socket.SOCK_DGRAM) as datagrams:
        datagrams.setsockopt(*DISCOVER[fam.version])
        datagrams.settimeout(1)
        datagrams.connect((fam.vip, 80))
        datagrams.send(bytes(1400))
        _, seen = answer_in(raw, fam, wire.ICMP if fam.version == 4 else wire.ICMP6)
        assert (seen.mtu, seen.bad) == (1300, [])
        with pytest.raises(OSError, match="too long") as raised:
            datagrams.send(bytes(1400))
            datagrams.send(bytes(1400))
        assert raised.value.errno == errno.EMSGSIZE
        assert datagrams.getsockopt(level, option) == 1300


def soon(holds: Callable[[], bool]) -> bool:
    """Poll until it holds, for a second at most: the device delivers packets with a delay."""
    for _ in range(100):
        if holds():
            return True
        time.sleep(0.01)
    return False


def many_segments(fam: Family, size: int) -> socket.socket:
    """Return a connected UDP socket whose sends are cut into segments of `size` as late as possible (UDP GSO)."""
    datagrams = socket.socket(fam.af, socket.SOCK_DGRAM)
    datagrams.settimeout(1)
    datagrams.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    datagrams.setsockopt(*DISCOVER[fam.version])
    datagrams.connect((fam.vip, 80))
    return datagrams


def test_many_segments_are_measured_one_by_one(wired_world: tuple[World, ClientNet], fam: Family) -> None:
    """Ten segments of 1,000 bytes travel as one packet of 10,000: it fits a way of 1,300, one of 900 it does not."""
    world, client = wired_world
    for mtu, reason in ((1300, Reason.FWD_NEW), (900, Reason.ANSWER_TOO_BIG)):
        world.reset()
        world.service(fam, fam.vip, 80, UDP, [world.backend(fam, fam.remote(1), 8080, UDP, mtu=mtu)])
        before = world.counter(reason)[0]
        with client.inside(), many_segments(fam, 1000) as datagrams:
            datagrams.send(bytes(10_000))
        assert soon(lambda: world.counter(reason)[0] == before + 1), reason  # noqa: B023 - asked at once


def test_many_segments_are_refused(wired_world: tuple[World, ClientNet], fam: Family) -> None:
    """The answer to such a packet is one small packet with a right checksum."""
    world, client = wired_world
    world.reset()
    world.service(fam, fam.vip, 80, UDP)
    with capture(client) as raw, many_segments(fam, 700) as datagrams:
        datagrams.send(bytes(10_000))
        with pytest.raises(ConnectionRefusedError):
            datagrams.recv(100)
        data, seen = answer_in(raw, fam, wire.ICMP if fam.version == 4 else wire.ICMP6)
        assert seen.bad == []
        assert len(data) <= 14 + (576 if fam.version == 4 else 1280)
