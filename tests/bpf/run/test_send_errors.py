"""Frames that XDP sent and a device did not take are counted, for this network namespace and by device."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from lbagent.bpf.run.send_errors import SendErrorCounter
from lbagent.kernel.features import xdp_features
from lbagent.kernel.opcodes import CALL, EXIT, MOV64_IMM, insn
from tests.lab import xdp
from tests.lab.netns import Namespace, veth, wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]
REDIRECT = 23
FRAME = b"\x02\0\0\0\0\x01" + b"\x02\0\0\0\0\x02" + b"\x88\xb5" + bytes(50)  # an experimental type: no host answers


@pytest.fixture
def spaces() -> Iterator[tuple[Namespace, Namespace]]:
    node = peer = None
    try:
        node, peer = Namespace("send"), Namespace("sendpeer")
        peer.sysctl("ipv6/conf/default/disable_ipv6", 1)  # router solicitations would be counted too
        veth(node, "v0", peer, "v1")
        node.ip(
            "link add d0 type bridge",
            "link set d0 up",
            "link add w0 type veth peer name w1",
            "link set w0 up",
            "link set w1 up",
        )
        yield node, peer
    finally:
        for space in (node, peer):
            if space:
                space.delete()


def send(space: Namespace, device: str, count: int) -> None:
    with space.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((device, 0))
        for _ in range(count):
            sock.send(FRAME)


def redirecting(space: Namespace, device: str, ifindex: int) -> None:
    code = insn(MOV64_IMM, 1, imm=ifindex) + insn(MOV64_IMM, 2) + insn(CALL, imm=REDIRECT) + insn(EXIT)
    xdp.attach(space, device, xdp.load(code, "lab_redirect"))


def started(space: Namespace) -> SendErrorCounter:
    counter = SendErrorCounter()
    if not space.call(counter.start):
        pytest.skip("this kernel has no BTF")
    return counter


def test_a_device_that_takes_no_frames_is_counted_here_and_nowhere_else(spaces: tuple[Namespace, Namespace]) -> None:
    node, peer = spaces
    counter, elsewhere = started(node), started(peer)
    bridge = node.ifindex("d0")
    redirecting(node, "v0", bridge)
    send(peer, "v1", 7)
    wait_for(lambda: counter.read().get(bridge), "the first count")
    wait_for(lambda: counter.read()[bridge].frames == 7, "all of them")
    assert counter.read()[bridge].errno == errno.EOPNOTSUPP
    assert counter.read().keys() == {bridge}
    assert elsewhere.read() == {}
    counter.close()
    assert counter.read() == {}
    elsewhere.close()


def test_frames_that_are_sent_back_to_nobody_are_counted(spaces: tuple[Namespace, Namespace]) -> None:
    node, peer = spaces
    counter = started(node)
    xdp.attach(node, "v0", xdp.load(insn(MOV64_IMM, 0, imm=3) + insn(EXIT), "lab_tx"))  # XDP_TX; the peer does not poll
    v0 = node.ifindex("v0")
    send(peer, "v1", 5)
    wait_for(lambda: v0 in counter.read() and counter.read()[v0].frames == 5, "the count")
    counter.close()


def test_frames_that_arrive_are_not_counted(spaces: tuple[Namespace, Namespace]) -> None:
    node, peer = spaces
    w0 = node.ifindex("w0")
    xdp.attach_pass(node, "w1")
    if xdp_features():
        assert node.call(xdp_features, w0)[w0] & 4
    counter = started(node)
    redirecting(node, "v0", w0)
    send(peer, "v1", 5)
    assert counter.read() == {}
    counter.close()
