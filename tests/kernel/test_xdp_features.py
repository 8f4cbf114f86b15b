"""What the kernel tells of drivers, and where the members of its structs lie."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from lbagent.kernel import xdp_features
from lbagent.kernel.btf import Btf, kernel_offsets
from lbagent.kernel.xdp_features import XdpFeature, drain, feature_events
from tests.lab import xdp
from tests.lab.netns import Namespace, veth


@pytest.fixture
def pair() -> Iterator[tuple[Namespace, Namespace]]:
    node = peer = None
    try:
        node, peer = Namespace("feat"), Namespace("featpeer")
        veth(node, "v0", peer, "v1")
        node.ip("link add d0 type bridge")
        yield node, peer
    finally:
        for space in (node, peer):
            if space:
                space.delete()


def told(node: Namespace) -> dict[int, XdpFeature]:
    found = node.call(xdp_features.xdp_features)
    if not found:
        pytest.skip("the kernel does not tell (Linux 6.3)")
    return found


@pytest.mark.root
@pytest.mark.bpf
def test_a_veth_takes_frames_when_its_other_end_polls(pair: tuple[Namespace, Namespace]) -> None:
    node, peer = pair
    v0, d0 = node.ifindex("v0"), node.ifindex("d0")
    found = told(node)
    assert found.keys() == {1, v0, d0}
    assert not found[d0]
    assert not found[v0] & XdpFeature.NDO_XMIT
    events = node.call(feature_events)
    assert events is not None
    xdp.attach_pass(peer, "v1")
    time.sleep(0.05)
    assert events.recv(1 << 16)  # the change is told
    drain(events)
    events.close()
    assert told(node)[v0] & XdpFeature.NDO_XMIT
    assert node.call(xdp_features.xdp_features, v0) == {v0: told(node)[v0]}
    assert node.call(xdp_features.xdp_features, 9999) == {}


def test_offsets_are_read_from_structs_alone() -> None:
    names = b"\0device\0index\0number\0"
    device, index, number = 1, 8, 14
    pointer = struct.pack("<III", device, 2 << 24, 3)  # a pointer type with the name of the struct
    members = struct.pack("<IIIIII", index, 9, 64, number, 9, 1 << 24 | 128)  # the second: a field of one bit's width
    plain = struct.pack("<III", device, 4 << 24 | 1, 32) + members[:12]
    with_bits = struct.pack("<III", number, 1 << 31 | 4 << 24 | 2, 32) + members
    types = pointer + plain + with_bits
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    btf = Btf(header + types + names)
    assert btf.offset("device", "index") == 8
    assert btf.offset("number", "number") == 16
    assert btf.offset("device", "number") is None
    assert btf.offset("nothing", "index") is None
    with pytest.raises(ValueError, match="BTF"):
        Btf(b"\x7fELF" + bytes(40))


def test_members_that_no_kernel_has_are_not_found() -> None:
    assert kernel_offsets(("net_device", "no_such_member_at_all")) is None
