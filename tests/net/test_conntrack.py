"""Reading connections out of the kernel's messages, and which are deleted."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from lbagent.kernel.netlink_attributes import attribute, nested, u32
from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.family import Family
from lbagent.net.conntrack import Connection, Conntrack, Ended, read_connection

CLIENT, FRONTEND, BACKEND = "192.0.2.9:40000", "10.96.0.1:80", "10.0.0.1:8080"


def side(source: str, target: str, kind: L4Type) -> bytes:
    """Return a tuple of the kernel: addresses and ports."""
    one, two = L3n4Addr.parse(source), L3n4Addr.parse(target)
    four = one.family is Family.IPV4
    ip = attribute(1 if four else 3, one.address) + attribute(2 if four else 4, two.address)
    ports = attribute(2, struct.pack("!H", one.port)) + attribute(3, struct.pack("!H", two.port))
    return nested(1, ip) + nested(2, attribute(1, bytes((kind.number,))), ports)


def message(
    kind: L4Type = L4Type.TCP, *, back: str = CLIENT, status: int = 0x22, tcp: int = 3, backend: str = BACKEND
) -> bytes:
    parts = attribute(1, side(CLIENT, FRONTEND, kind)) + attribute(2, side(backend, back, kind))
    parts += u32(3, status) + u32(12, 77)
    if kind is L4Type.TCP:
        parts += nested(4, nested(1, attribute(1, bytes((tcp,)))))
    return parts


@pytest.mark.parametrize(
    ("parts", "state", "port", "live"),
    [
        (message(), "established", 0, True),
        (message(back="10.77.1.1:5555"), "established", 5555, True),
        (message(tcp=7), "time_wait", 0, False),
        (message(L4Type.UDP, status=0x20), "unreplied", 0, True),
        (message(L4Type.UDP), "established", 0, True),
    ],
)
def test_a_connection(parts: bytes, state: str, port: int, live: bool) -> None:
    found = read_connection(Family.IPV4, parts)
    assert found is not None
    assert (found.client.address, found.client.port) == (parse_ip("192.0.2.9"), 40000)
    assert (str(found.frontend), str(found.backend)) == (FRONTEND, BACKEND)
    assert (found.state, found.snat_port, found.is_live) == (state, port, live)


def test_ipv6() -> None:
    parts = attribute(1, side("[2001:db8::9]:4", "[fd00::1]:53", L4Type.UDP))
    parts += attribute(2, side("[fd01::2]:5353", "[2001:db8::9]:4", L4Type.UDP)) + u32(3, 0x22) + u32(12, 1)
    found = read_connection(Family.IPV6, parts)
    assert found is not None
    assert (found.frontend.with_protocol(), str(found.backend)) == ("[fd00::1]:53/UDP", "[fd01::2]:5353")


def test_one_that_was_not_translated() -> None:
    assert read_connection(Family.IPV4, message(status=0x02)) is None


def test_which_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "10.0.0.2:8080"
    found = [read_connection(Family.IPV4, message()), read_connection(Family.IPV4, message(backend=other))]
    deleted: list[str] = []

    def dump(_self: Conntrack, family: Family, _body: bytes) -> Iterator[Connection]:
        yield from (each for each in found if each is not None and family is Family.IPV4)

    def delete(_self: Conntrack, each: Connection) -> bool:
        deleted.append(str(each.backend))
        return True

    monkeypatch.setattr(Conntrack, "_dump", dump)
    monkeypatch.setattr(Conntrack, "_delete", delete)
    conntrack = Conntrack()
    try:
        assert conntrack.end([Ended(L3n4Addr.parse(other))]) == 1
        assert conntrack.end([Ended(L3n4Addr.parse(BACKEND), L3n4Addr.parse("10.96.0.9:80"))]) == 0
        assert conntrack.end([Ended(L3n4Addr.parse(BACKEND), L3n4Addr.parse(FRONTEND))]) == 1
    finally:
        conntrack.close()
    assert deleted == [other, BACKEND]
