"""Connections of this host to servers: how many there are, by pool and server."""

from __future__ import annotations

import socket
import struct
from functools import partial
from types import SimpleNamespace

import pytest

from lbagent.apilb.instance import Instance, Mode
from lbagent.apilb.native.connection_reset import ConnectionReset
from lbagent.apilb.native.pool_objects import served_instance
from lbagent.kernel import sock_diag
from lbagent.kernel.sock_diag import ConnectedSocket
from lbagent.maps.layout import LB4_STREAM, STREAMS
from lbagent.model.address import L3n4Addr, parse_ip
from lbagent.model.state import State
from lbagent.objects.records import Origin
from lbagent.targets.bpf.socket_frontends import socket_frontends

SERVERS = tuple(L3n4Addr.parse(f"10.0.0.{last}:6443") for last in (1, 2, 3))


def connected(cookie: int, server: L3n4Addr) -> ConnectedSocket:
    addresses = parse_ip("10.9.0.1") + bytes(12) + server.address + bytes(12)
    ident = struct.pack(">HH", 40000 + cookie, server.port) + addresses + struct.pack("=III", 0, cookie, 0)
    return ConnectedSocket(socket.AF_INET, ident, socket.IPPROTO_TCP)


def test_all_are_counted_with_one_look_at_the_sockets_for_each_port(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [
        served_instance(
            Instance(pool="p", name=f"lb{port}", mode=Mode.NATIVE, bind_address=f"127.0.0.1:{port}", host_config_path="/x",
                     servers=tuple(map(str, SERVERS))), Origin("/x", source="apilb"),
        )
        for port in (7443, 7444)
    ]  # fmt: skip
    asked: list[int] = []

    def connections(port: int) -> list[ConnectedSocket]:
        asked.append(port)
        return [connected(1, SERVERS[0]), connected(2, SERVERS[0]), connected(3, SERVERS[2]), connected(4, SERVERS[2])]

    monkeypatch.setattr(sock_diag, "tcp_connections_to", connections)
    records = bytearray(STREAMS * LB4_STREAM.size)  # what the socket programs wrote: 4 was connected without a bind
    for cookie, server, port in ((1, SERVERS[0], 7443), (2, SERVERS[0], 7443), (3, SERVERS[2], 7444)):
        words = (
            cookie,
            server.address,
            parse_ip("127.0.0.1"),
            server.port.to_bytes(2, "big"),
            port.to_bytes(2, "big"),
            b"",
        )
        records[cookie * LB4_STREAM.size : (cookie + 1) * LB4_STREAM.size] = LB4_STREAM.pack(*words)
    maps = SimpleNamespace(get=lambda name, _key: bytes(records) if name == "lb4_stream" else None)
    reset = ConnectionReset(partial(socket_frontends, maps), lambda: [(pool, SERVERS) for pool in pools], State)
    counts = {key: number for key, number in reset.count().items() if number}
    assert counts == {("apilb/lb7443", SERVERS[0]): 2, ("apilb/lb7444", SERVERS[2]): 1}
    assert asked == [6443]
