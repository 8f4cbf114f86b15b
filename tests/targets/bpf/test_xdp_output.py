"""By which devices XDP programs can send: by what drivers report, else by their kind."""

from __future__ import annotations

import msgspec
import pytest

from lbagent.kernel.features import XdpFeature
from lbagent.net.snapshot import Link
from lbagent.targets.bpf.xdp_output import egress_by, refusing_devices
from tests.net.builders import MAC, network

BASIC, ALL = XdpFeature.BASIC | XdpFeature.REDIRECT, XdpFeature.BASIC | XdpFeature.REDIRECT | XdpFeature.NDO_XMIT
NIC, OTHER, VXLAN, POD, WIREGUARD = 2, 3, 4, 5, 6
LINKS = {
    NIC: Link(NIC, "eth0", MAC[2], 1500, True),
    OTHER: Link(OTHER, "eth1", MAC[3], 1500, True),
    VXLAN: Link(VXLAN, "flannel.1", MAC[4], 1450, True, "vxlan"),
    POD: Link(POD, "veth1", MAC[5], 1500, True, "veth"),
    WIREGUARD: Link(WIREGUARD, "wg0", b"", 1420, True, "wireguard"),
}


def refusing(features: dict[int, XdpFeature], *native: int) -> set[int]:
    return set(refusing_devices(msgspec.structs.replace(network(), links=LINKS, features=features), frozenset(native)))


TOLD = {NIC: ALL, OTHER: ALL, VXLAN: XdpFeature(0), POD: BASIC, WIREGUARD: XdpFeature(0)}


def test_drivers_say_it() -> None:
    assert refusing(TOLD, NIC, OTHER) == {VXLAN, POD, WIREGUARD}
    assert refusing({**TOLD, POD: ALL}, NIC) == {VXLAN, WIREGUARD}
    assert refusing({**TOLD, OTHER: BASIC}, NIC, OTHER) == {OTHER, VXLAN, POD, WIREGUARD}


def test_a_nic_alone_sends_back_whatever_else_it_takes() -> None:
    assert refusing({**TOLD, NIC: BASIC}, NIC) == {VXLAN, POD, WIREGUARD}
    assert refusing({**TOLD, NIC: BASIC}, OTHER) == {NIC, VXLAN, POD, WIREGUARD}
    assert refusing(TOLD, POD) == {VXLAN, POD, WIREGUARD}  # a veth sends back to an end that polls, or to no end


def test_the_kind_says_it_where_drivers_do_not() -> None:
    assert refusing({}, NIC) == {VXLAN, POD, WIREGUARD}
    assert refusing({}, NIC, POD) == {VXLAN, WIREGUARD}  # chosen by the operator, as a NIC


@pytest.mark.parametrize("features", [{}, TOLD])
def test_tc_and_generic_xdp_send_by_all(features: dict[int, XdpFeature]) -> None:
    assert refusing(features) == set()


def test_the_way_of_packets_that_leave_by_a_device() -> None:
    refusing = {VXLAN: "a vxlan takes no frames from XDP"}
    assert egress_by(NIC, refusing, xdp=True) == ("xdp", "")
    assert egress_by(VXLAN, refusing, xdp=True) == ("tc", refusing[VXLAN])
    assert egress_by(NIC, {}, xdp=False) == ("tc", "")
    assert egress_by(VXLAN, refusing, xdp=False) == ("tc", "")  # no XDP program runs, so there is nothing to explain


def test_each_says_why() -> None:
    told = refusing_devices(msgspec.structs.replace(network(), links=LINKS, features=TOLD), frozenset({NIC}))
    assert "vxlan" in told[VXLAN]
    assert "gro on" in told[POD]
    assert "Ethernet" in told[WIREGUARD]
