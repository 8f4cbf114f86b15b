"""Solicitations for an announced IPv6 address pass a switch with MLD snooping, while it is announced."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from lbagent.announce.l2 import solicited_groups
from lbagent.announce.l2.solicited_groups import Group, SolicitedGroups
from lbagent.model.address import parse_ip
from tests.lab.netns import Namespace, filter_groups, veth, wait_for

VIP, SAME_GROUP, OTHER = "fd08::1:100", "fd08::2:1:100", "fd08::7"
SOLICITATION_AT, TYPE_AT, SOLICITATION = 54, 20, (58, 135)  # bytes of an Ethernet frame; ICMPv6 and its type


class Switch:
    """A bridge with an MLD querier and snooping, a client and a node."""

    def __init__(self) -> None:
        self.spaces = [Namespace(role, "mld-") for role in ("switch", "client", "node")]
        self.switch, self.client, self.node = self.spaces
        self.switch.ip("link add br0 type bridge", "link set br0 up")
        for number, space in enumerate(self.spaces[1:], 1):
            veth(space, "eth0", self.switch, f"port{number}")
            self.switch.ip(f"link set port{number} master br0")
            space.ip(f"addr add fd08::{number}/64 dev eth0 nodad")
        filter_groups(self.switch)
        self.index = self.node.call(socket.if_nametoindex, "eth0")

    def passes(self, address: str) -> bool:
        """Return whether the node receives the client's solicitation for an address."""
        self.client.ip("neigh flush dev eth0")
        with self.node.call(_listen) as heard:
            self.client.call(_send, address)
            deadline = time.monotonic() + 0.5
            while (left := deadline - time.monotonic()) > 0:
                heard.settimeout(left)
                try:
                    frame = heard.recv(256)
                except TimeoutError:
                    break
                if (frame[TYPE_AT], frame[SOLICITATION_AT]) == SOLICITATION and frame[62:78] == parse_ip(address):
                    return True
        return False


def _listen() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind(("eth0", 0x86DD))
    return sock


def _send(address: str) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"", (address, 9))


@pytest.fixture
def filtering() -> Iterator[Switch]:
    switch = Switch()
    try:
        wait_for(lambda: not switch.passes(OTHER), "the switch filters", 20)
        yield switch
    finally:
        for space in switch.spaces:
            space.delete()


@pytest.mark.root
def test_a_switch_that_filters_passes_who_asks_for_what_is_announced_and_nothing_else(filtering: Switch) -> None:
    groups = SolicitedGroups()
    filtering.node.call(groups.use, [(filtering.index, parse_ip(VIP)), (filtering.index, parse_ip("10.0.0.1"))])
    wait_for(lambda: filtering.passes(VIP), "a question", 10)
    assert not filtering.passes(OTHER)
    filtering.node.call(groups.use, [(filtering.index, parse_ip(each)) for each in (VIP, SAME_GROUP)])
    filtering.node.call(groups.use, [(filtering.index, parse_ip(SAME_GROUP))])
    time.sleep(3)  # the bridge queries a left group twice, once per second, and then filters it
    assert filtering.passes(SAME_GROUP)
    filtering.node.call(groups.use, [])
    wait_for(lambda: not filtering.passes(VIP), "no question any more", 20)
    groups.close()


@pytest.mark.root
def test_a_thousand_addresses_and_a_device_that_is_gone(filtering: Switch, caplog: pytest.LogCaptureFixture) -> None:
    groups = SolicitedGroups()
    places = [(filtering.index, parse_ip(f"fd08::3:{number:x}")) for number in range(1000)]
    filtering.node.call(groups.use, places)
    assert len(groups._joined) == 1000
    filtering.node.ip("link del eth0")
    filtering.node.call(groups.use, places[:1])
    filtering.node.call(groups.use, places[1:3])
    groups.close()
    assert caplog.records == []


def room_for(most: int, sockets: dict[socket.socket, set[Group]]) -> Callable[[socket.socket, int, Group], int]:
    """Return a kernel that accepts so many memberships per socket."""

    def tell(sock: socket.socket, option: int, group: Group) -> int:
        held = sockets.setdefault(sock, set())
        if option == socket.IPV6_LEAVE_GROUP:
            held.remove(group)
        elif len(held) >= most:
            return errno.ENOMEM
        else:
            held.add(group)
        return 0

    return tell


def test_memberships_that_one_socket_has_no_room_for_are_another_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets: dict[socket.socket, set[Group]] = {}
    monkeypatch.setattr(solicited_groups, "_tell", room_for(2, sockets))
    groups, places = SolicitedGroups(), [(1, parse_ip(f"fd08::{number}")) for number in range(1, 6)]
    groups.use(places)
    assert sorted(map(len, sockets.values())) == [1, 2, 2]
    groups.use(places[3:])
    assert sum(map(len, sockets.values())) == 2
    groups.use(places)
    assert sorted(map(len, sockets.values())) == [1, 2, 2], "the room is used again"
    groups.close()


def test_what_the_kernel_refuses_is_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(solicited_groups, "_tell", lambda *_: errno.EPERM)
    groups = SolicitedGroups()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            groups.use([(1, parse_ip(VIP))])
    assert [getattr(record, "error", "") for record in caplog.records] == ["group ff02::1:ff01:100: EPERM"]
    monkeypatch.setattr(solicited_groups, "_tell", lambda *_: 0)
    groups.use([(1, parse_ip(VIP))])
    assert len(groups._joined) == 1
    groups.close()
