"""A renderer that notes its calls, and fails as configured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from lbagent.render import Difference, Interfaces, IPAddresses, ResolvedService, ResyncEventData


class NotingRenderer:
    """Holds the Services of the calls before the last flush."""

    def __init__(self, words: frozenset[str] = frozenset()) -> None:
        self.calls: list[str] = []
        self.services: dict[str, ResolvedService] = {}
        self.node_ips = IPAddresses()
        self.fail: BaseException | None = None  # the next calls raise it
        self.wait_s = self.block_s = 0.0  # of the next call
        self.differences: list[Difference] = []
        self.kept: bool | None = None
        self._words = words

    async def _note(self, call: str, detail: str = "") -> None:
        if self.fail is not None:
            raise self.fail
        wait_s, block_s, self.wait_s, self.block_s = self.wait_s, self.block_s, 0.0, 0.0
        time.sleep(block_s)  # noqa: ASYNC251 - a defect that the agent must bear
        await asyncio.sleep(wait_s)
        self.calls.append(f"{call} {detail}".rstrip())

    async def add_service(self, service: ResolvedService) -> None:
        await self._note("add", service.id)
        self.services[service.id] = service

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        await self._note("update", new.id)
        self.services[new.id] = new

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        await self._note("delete", service.id)
        del self.services[service.id]

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        await self._note("node_ports", str(node_ips))
        self.node_ips = node_ips

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        await self._note("frontend_ifs", str(new))

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        await self._note("backend_ifs", str(new))

    async def resync(self, snapshot: ResyncEventData) -> None:
        await self._note("resync", ",".join(service.id for service in snapshot.services))
        self.services = {service.id: service for service in snapshot.services}
        self.node_ips = snapshot.node_ips

    async def flush(self) -> None:
        await self._note("flush")

    async def dump(self) -> list[str]:
        return [*self.services]

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        found, self.differences = self.differences, []
        return found

    def capabilities(self) -> frozenset[str]:
        return self._words

    async def close(self, keep: bool) -> None:
        self.kept = keep
