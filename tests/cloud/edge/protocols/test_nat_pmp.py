"""NAT-PMP: datagrams, and a router that restarts, gives another port, or is silent."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.cloud.edge.protocols import nat_pmp_gateway
from lbagent.cloud.edge.protocols import nat_pmp_packet as packet
from lbagent.cloud.edge.protocols.nat_pmp_gateway import NatPmpGateway
from lbagent.cloud.edge.protocols.nat_pmp_packet import NatPmpAnswer
from lbagent.cloud.edge.protocols.port_mapping import (
    GatewayFailure,
    GatewayRefusal,
    GatewayUnreachable,
    MappingConflict,
    PortMapping,
)

HOST = "127.0.0.1"
WEB = PortMapping("TCP", 80, HOST, 30080, "kubernetes/shop/web/http")


def test_requests() -> None:
    assert packet.encode_address_request() == bytes(2)
    assert packet.encode_map_request("TCP", 0x7580, 80, 3600).hex() == "00020000" + "7580" + "0050" + "00000e10"
    assert packet.encode_map_request("UDP", 1, 0, 0).hex() == "00010000" + "0001" + "0000" + "00000000"


def test_answers() -> None:
    assert packet.decode_answer(bytes.fromhex("00800000 0000000a 0b000001")) == NatPmpAnswer(0, 0, 10, "11.0.0.1")
    found = packet.decode_answer(bytes.fromhex("00820000 0000000a 7580 0050 00000e10"))
    assert found == NatPmpAnswer(2, 0, 10, "", 0x7580, 80, 3600)
    assert packet.decode_answer(bytes.fromhex("00810002 0000000a")) == NatPmpAnswer(1, 2, 10)
    for text in (
        "",
        "0080",
        "01800000 0000000a 0b000001",
        "00050000 0000000a",
        "00800000 0000000a",
        "00820000 0000000a 75",
    ):
        with pytest.raises(ValueError):
            packet.decode_answer(bytes.fromhex(text))


@given(st.binary(max_size=40))
def test_any_datagram_is_an_answer_or_refused(data: bytes) -> None:
    try:
        found = packet.decode_answer(data)
    except ValueError:
        return
    assert found.opcode in (0, 1, 2)


class FakeRouter(asyncio.DatagramProtocol):
    """Returns the answers of a function; None: no answer."""

    def __init__(self) -> None:
        self.epoch_s, self.result, self.external_port, self.lease_s = 100, 0, 0, 0
        self.requests: list[bytes] = []
        self.is_silent: Callable[[int], bool] = lambda _count: False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.requests.append(data)
        if self.is_silent(len(self.requests)):
            return
        head = struct.pack(">BBHI", 0, data[1] + 128, self.result, self.epoch_s)
        if data[1] == 0:
            rest = bytes((11, 0, 0, 1))
        else:
            internal, external, lease_s = struct.unpack_from(">HHI", data, 4)
            rest = struct.pack(">HHI", internal, self.external_port or external, self.lease_s or lease_s)
        self.transport.sendto(b"junk", addr)
        self.transport.sendto(head + rest, addr)


@asynccontextmanager
async def lab(clock: Callable[[], float] = lambda: 0.0) -> AsyncIterator[tuple[FakeRouter, NatPmpGateway]]:
    loop = asyncio.get_running_loop()
    transport, router = await loop.create_datagram_endpoint(FakeRouter, local_addr=(HOST, 0))
    try:
        yield router, NatPmpGateway(HOST, HOST, transport.get_extra_info("sockname")[1], clock)
    finally:
        transport.close()


async def test_a_mapping() -> None:
    now = 0.0
    async with lab(lambda: now) as (router, gateway):
        assert await gateway.external_address() == "11.0.0.1"
        router.lease_s = 600  # less than requested
        await gateway.add(WEB, 3600)
        found = await gateway.find("TCP", 80)
        assert found is not None
        assert (found.mapping, found.lease_s) == (WEB, 600)
        now = 599.5
        assert [each.lease_s for each in await gateway.mappings()] == [1]
        now = 600.0
        assert await gateway.find("TCP", 80) is None
        router.lease_s = 0
        await gateway.remove(WEB)
        assert router.requests[-1] == packet.encode_map_request("TCP", 30080, 0, 0)


async def test_a_router_that_restarted_has_nothing() -> None:
    now = 0.0
    async with lab(lambda: now) as (router, gateway):
        await gateway.add(WEB, 3600)
        now, router.epoch_s = 100.0, 190  # its clock is slow, within 1/8
        await gateway.external_address()
        assert await gateway.find("TCP", 80) is not None
        now, router.epoch_s = 200.0, 5
        await gateway.external_address()
        assert await gateway.find("TCP", 80) is None


async def test_another_port_is_given_back() -> None:
    async with lab() as (router, gateway):
        router.external_port = 8080
        with pytest.raises(MappingConflict, match="gives 8080 in place of 80"):
            await gateway.add(WEB, 3600)
        assert router.requests[-1] == packet.encode_map_request("TCP", 30080, 0, 0)
        assert await gateway.mappings() == []


async def test_results() -> None:
    async with lab() as (router, gateway):
        router.result = 3
        assert await gateway.external_address() == ""
        with pytest.raises(GatewayFailure, match="network failure"):
            await gateway.add(WEB, 3600)
        router.result = 2
        with pytest.raises(GatewayRefusal, match="not authorized"):
            await gateway.add(WEB, 3600)
        with pytest.raises(GatewayRefusal, match="to the requesting host"):
            await gateway.add(PortMapping("TCP", 80, "192.0.2.7", 30080, "x"), 3600)


async def test_a_silent_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat_pmp_gateway, "FIRST_WAIT_S", 0.02)
    async with lab() as (router, gateway):
        router.is_silent = lambda count: count < 3
        assert await gateway.external_address() == "11.0.0.1"
        router.is_silent = lambda _count: True
        with pytest.raises(GatewayUnreachable, match="no answer"):
            await gateway.external_address()
        assert len(router.requests) == 3 + nat_pmp_gateway.TRIES
