"""A router with NAT-PMP. The protocol has no list and no descriptions: this module stores the mappings of the process.

Source: RFC 6886. The epoch (3.6) shows that a router restarted and lost its mappings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import ceil

from lbagent.cloud.edge.protocols import nat_pmp_packet as packet
from lbagent.cloud.edge.protocols.default_route import source_address
from lbagent.cloud.edge.protocols.nat_pmp_packet import NatPmpAnswer
from lbagent.cloud.edge.protocols.port_mapping import (
    Gateway,
    GatewayFailure,
    GatewayRefusal,
    GatewayUnreachable,
    HeldMapping,
    MappingConflict,
    PortMapping,
)

PORT = 5351
FIRST_WAIT_S = 0.25  # timeout of the first attempt; it doubles (3.1)
TRIES = 5  # 7.75 s in total; the RFC's nine take two minutes
LONGEST_LIFETIME_S = 7 * 86400  # NAT-PMP has no leases without an end
EPOCH_SLACK_S = 2.0


class _Waiting(asyncio.DatagramProtocol):
    """Returns the first datagram that answers an opcode."""

    def __init__(self, is_answer: Callable[[NatPmpAnswer], bool]) -> None:
        self.answer: asyncio.Future[NatPmpAnswer] = asyncio.get_running_loop().create_future()
        self._is_answer = is_answer

    def datagram_received(self, data: bytes, _addr: object) -> None:
        try:
            found = packet.decode_answer(data)
        except ValueError:
            return
        if self._is_answer(found) and not self.answer.done():
            self.answer.set_result(found)

    def error_received(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class NatPmpGateway(Gateway):
    """The router at an address."""

    protocol, says_owners = "nat-pmp", False

    def __init__(
        self, host: str, local_address: str, port: int = PORT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.local_address = f"gateway {host} (NAT-PMP)", local_address
        self._host, self._port, self._clock = host, port, clock
        self._made: dict[
            tuple[str, int], tuple[PortMapping, float]
        ] = {}  # (protocol, port) -> mapping, its end by the clock
        self._epoch: tuple[float, float] | None = None  # the router's epoch, and this host's clock at that moment

    async def external_address(self) -> str:
        """Return the WAN address, '' while there is none. Raises GatewayUnreachable."""
        answer = await self._ask(packet.encode_address_request(), lambda found: found.opcode == packet.ADDRESS)
        if answer.result == 3:
            return ""
        self._check(answer, "the WAN address")
        return "" if answer.address == "0.0.0.0" else answer.address  # noqa: S104 - no socket is bound

    async def find(self, protocol: str, external_port: int) -> HeldMapping | None:
        """Return the mappings of this process."""
        mapping, ends = self._made.get((protocol, external_port), (None, 0.0))
        left_s = ends - self._clock()
        return HeldMapping(mapping, max(1, ceil(left_s))) if mapping and left_s > 0 else None

    async def add(self, mapping: PortMapping, lease_s: int) -> None:
        """Make or renew a mapping. Raises MappingConflict, GatewayRefusal, GatewayUnreachable."""
        if mapping.client != self.local_address:
            raise GatewayRefusal(
                f"{self.name} maps ports to the requesting host ({self.local_address}), not to {mapping.client}"
            )
        before = self._made.get(mapping.outside)
        if before and before[0].internal_port != mapping.internal_port:
            await self.remove(before[0])
        answer = await self._map(mapping, mapping.external_port, lease_s or LONGEST_LIFETIME_S)
        self._check(answer, str(mapping))
        if answer.external_port != mapping.external_port:
            await self._map(mapping, 0, 0)
            raise MappingConflict(
                f"{self.name} gives {answer.external_port} in place of {mapping.external_port}, which is in use"
            )
        self._made[mapping.outside] = mapping, self._clock() + answer.lease_s

    async def remove(self, mapping: PortMapping) -> None:
        """Remove a mapping of this host. Raises GatewayRefusal, GatewayUnreachable."""
        if mapping.client == self.local_address:
            self._check(await self._map(mapping, 0, 0), f"the removal of {mapping}")
        self._made.pop(mapping.outside, None)

    async def mappings(self) -> list[HeldMapping]:
        """Return the mappings of this process."""
        found = [await self.find(*key) for key in list(self._made)]
        return [each for each in found if each]

    # --- one request ---

    async def _map(self, mapping: PortMapping, external_port: int, lease_s: int) -> NatPmpAnswer:
        request = packet.encode_map_request(mapping.protocol, mapping.internal_port, external_port, lease_s)
        opcode = packet.OPCODES[mapping.protocol]

        def is_answer(found: NatPmpAnswer) -> bool:
            return found.opcode == opcode and (found.result != 0 or found.internal_port == mapping.internal_port)

        return await self._ask(request, is_answer)

    def _check(self, answer: NatPmpAnswer, what: str) -> None:
        if not answer.result:
            return
        text = f"{self.name}: {what}: {packet.RESULTS.get(answer.result, f'result {answer.result}')}"
        raise GatewayRefusal(text) if answer.result == packet.REFUSED else GatewayFailure(text)

    async def _ask(self, request: bytes, is_answer: Callable[[NatPmpAnswer], bool]) -> NatPmpAnswer:
        """Send a request until it is answered; the socket receives only datagrams of the router."""
        loop = asyncio.get_running_loop()
        try:
            where = (self._host, self._port)
            transport, waiting = await loop.create_datagram_endpoint(lambda: _Waiting(is_answer), remote_addr=where)
        except OSError as error:
            raise GatewayUnreachable(f"{self.name}: {error.strerror or error}") from None
        try:
            for attempt in range(TRIES):
                transport.sendto(request)
                done, _ = await asyncio.wait({waiting.answer}, timeout=FIRST_WAIT_S * 2**attempt)
                if done:
                    return self._noted(waiting.answer.result())
        except OSError as error:
            raise GatewayUnreachable(f"{self.name}: {error.strerror or error}") from None
        finally:
            waiting.answer.cancel()
            transport.close()
        raise GatewayUnreachable(f"{self.name}: no answer")

    def _noted(self, answer: NatPmpAnswer) -> NatPmpAnswer:
        """Drop all mappings if the router's time went back, or advanced less than 7/8 of this host's (3.6)."""
        now = self._clock()
        if self._epoch is not None:
            expected_s = self._epoch[0] + (now - self._epoch[1]) * 7 / 8
            if answer.epoch_s + EPOCH_SLACK_S < expected_s:
                self._made.clear()
        self._epoch = float(answer.epoch_s), now
        return answer


async def open_nat_pmp(host: str, port: int = PORT) -> NatPmpGateway:
    """Return the router at an address if it answers. Raises GatewayUnreachable, GatewayRefusal."""
    try:
        found = NatPmpGateway(host, source_address(host), port)
    except OSError as error:
        raise GatewayUnreachable(f"gateway {host}: {error.strerror or error}") from None
    await found.external_address()
    return found
