"""By which devices an address can be announced."""

from __future__ import annotations

from msgspec.structs import replace

from lbagent.announce.l2.reach import announcing_devices, is_within, networks
from lbagent.model.address import parse_ip
from lbagent.net.snapshot import EMPTY, Link, NodeAddress
from lbagent.pools.announcement import L2Settings

MAC = b"\2\0\0\0\0\1"
NETWORK = replace(
    EMPTY,
    links={1: Link(1, "eth0", MAC, 1500, True), 2: Link(2, "eth1", MAC, 1500, True)},
    addresses=(
        NodeAddress(parse_ip("10.0.0.5"), 24, 1),
        NodeAddress(parse_ip("fd00::5"), 64, 1),
        NodeAddress(parse_ip("10.0.1.5"), 32, 2),
    ),
)
VIP = parse_ip("10.0.0.9")


def test_the_device_of_its_network_announces_it() -> None:
    assert announcing_devices(NETWORK, {"eth0", "eth1"}, {1, 2}, L2Settings(), VIP) == ({1: MAC}, None)
    assert announcing_devices(NETWORK, {"eth0"}, {1}, L2Settings(), parse_ip("fd00::9")) == ({1: MAC}, None)


def test_named_devices_announce_any_address() -> None:
    named = L2Settings(devices=("eth*",))
    assert announcing_devices(NETWORK, {"eth0", "eth1"}, {1, 2}, named, parse_ip("192.0.2.1")) == (
        {1: MAC, 2: MAC},
        None,
    )


def test_why_no_device_does() -> None:
    def why(attached: set[str], carriers: set[int], settings: L2Settings, address: str) -> str:
        found, reason = announcing_devices(NETWORK, attached, carriers, settings, parse_ip(address))
        assert found == {}
        return str(reason)

    assert "has the address itself" in why({"eth0"}, {1}, L2Settings(), "10.0.0.5")
    assert "no device has an address" in why({"eth0"}, {1}, L2Settings(), "10.0.1.9")
    assert "no device of l2.devices" in why({"eth0"}, {1}, L2Settings(devices=("wan",)), "10.0.0.9")
    assert "no programs are on eth0" in why({"eth1"}, {1}, L2Settings(), "10.0.0.9")
    assert why({"eth0"}, set(), L2Settings(), "10.0.0.9") == "eth0 has no carrier"


def test_a_node_says_which_networks_it_reaches() -> None:
    assert networks(NETWORK, {"eth0"}, {1}, L2Settings()) == ["10.0.0.0/24", "fd00::/64"]
    assert networks(NETWORK, {"eth0"}, set(), L2Settings()) == []
    anything = networks(NETWORK, {"eth0"}, {1}, L2Settings(devices=("eth0",)))
    assert is_within(parse_ip("192.0.2.1"), anything)
    assert not is_within(parse_ip("192.0.2.1"), ["10.0.0.0/24", "fd00::/64"])
