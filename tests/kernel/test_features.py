"""The kernel's reports about the drivers of devices."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lbagent.kernel import features
from lbagent.kernel.features import XdpFeature, drain, feature_events
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


def reported(node: Namespace) -> dict[int, XdpFeature]:
    found = node.call(features.xdp_features)
    if not found:
        pytest.skip("the kernel does not report it (Linux 6.3)")
    return found


@pytest.mark.root
@pytest.mark.bpf
def test_a_veth_takes_frames_when_its_other_end_polls(pair: tuple[Namespace, Namespace]) -> None:
    node, peer = pair
    v0, d0 = node.ifindex("v0"), node.ifindex("d0")
    found = reported(node)
    assert found.keys() == {1, v0, d0}
    assert not found[d0]
    assert not found[v0] & XdpFeature.NDO_XMIT
    events = node.call(feature_events)
    assert events is not None
    xdp.attach_pass(peer, "v1")
    time.sleep(0.05)
    assert events.recv(1 << 16)  # the change is reported
    drain(events)
    events.close()
    assert reported(node)[v0] & XdpFeature.NDO_XMIT
    assert node.call(features.xdp_features, v0) == {v0: reported(node)[v0]}
    assert node.call(features.xdp_features, 9999) == {}
