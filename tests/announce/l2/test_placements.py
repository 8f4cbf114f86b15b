"""Where addresses are placed, and when they must be placed again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lbagent.announce.announce_refusal import AnnounceRefusal, RefusalReason
from lbagent.announce.desired_vips import DesiredVip
from lbagent.announce.l2.placements import NodeState, Placements
from lbagent.model.address import parse_ip
from lbagent.net.snapshot import EMPTY, Link, NodeAddress
from lbagent.pools.announcement import L2Settings

VIP, MAC = parse_ip("10.0.0.9"), b"\2\0\0\0\0\1"
NETWORK = replace(
    EMPTY, links={7: Link(7, "eth0", MAC, 1500, True)}, addresses=(NodeAddress(parse_ip("10.0.0.5"), 24, 7),)
)
CORDONED = AnnounceRefusal(RefusalReason.CORDONED)
STATE = NodeState(NETWORK, frozenset({"eth0"}), frozenset({7}), L2Settings(), None)


def test_an_address_is_placed_and_dropped() -> None:
    placements = Placements("n")
    assert placements.use(STATE)
    placements.place(VIP, None, is_served=False)
    assert (placements.places, placements.refusals, placements.devices) == ({VIP: {7: MAC}}, {}, {7})
    placements.drop([VIP, parse_ip("10.0.0.10")])
    assert (placements.places, placements.refusals) == ({}, {})


@pytest.mark.parametrize(
    "change",
    [
        {"network": replace(NETWORK, addresses=())},
        {"attached": frozenset()},
        {"carriers": frozenset()},
        {"settings": L2Settings(devices=("eth1",))},
        {"refusal": CORDONED},
    ],
)
def test_all_are_placed_anew_when_what_they_follow_from_is_another(change: dict[str, object]) -> None:
    placements = Placements("n")
    placements.use(STATE)
    placements.place(VIP, None, is_served=False)
    assert not placements.use(STATE._replace(network=replace(NETWORK)))
    assert placements.places
    assert placements.use(STATE._replace(**change))  # type: ignore[arg-type]
    assert placements.places == {}
    placements.place(VIP, None, is_served=False)
    assert placements.refusals[VIP]


def test_policy_local_needs_an_endpoint_here() -> None:
    placements = Placements("n")
    placements.use(STATE)
    vip = DesiredVip(VIP, "lan", ("l2",), ("ns/web",), True, frozenset({"m"}))
    placements.place(VIP, vip, is_served=False)
    assert placements.refusals == {VIP: AnnounceRefusal(RefusalReason.NO_ENDPOINT_HERE)}
    placements.place(VIP, replace(vip, nodes=frozenset({"m", "n"})), is_served=True)
    assert placements.refusals == {}
    placements.place(VIP, replace(vip, nodes=frozenset({"m", "n"})), is_served=False)
    assert placements.refusals == {VIP: AnnounceRefusal(RefusalReason.NOT_SERVED_HERE)}
    placements.place(VIP, replace(vip, nodes=None), is_served=False)
    assert placements.refusals == {}, "policy Cluster: clients are answered, another node may do better"


def test_what_other_nodes_are_told() -> None:
    assert (STATE.networks(), STATE.macs()) == (["10.0.0.0/24"], {MAC})
    assert STATE._replace(refusal=CORDONED).networks() == []
