"""Creates, renews and removes the mappings of one router, and restores them after its restart. One request at a time.

The router's own list is authoritative; this process stores only its own requests. A mapping whose description is not of this
cluster is never changed. A mapping of this cluster is stale if its Service does not request it any more (`is_wanted`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from lbagent.cloud.edge.edge_config import EdgeConfig
from lbagent.cloud.edge.edge_rules import owner_of
from lbagent.cloud.edge.find_gateway import find_gateway
from lbagent.cloud.edge.protocols.port_mapping import (
    Gateway,
    GatewayFailure,
    GatewayRefusal,
    GatewayUnreachable,
    HeldMapping,
    MappingConflict,
    PortMapping,
)
from lbagent.errors import LbError

log = logging.getLogger(__name__)
WEEK_S = 604800  # WANIPConnection:2 replaces a lease without an end by this
SOON_POLLS = 1.5  # a mapping that ends within so many polls is renewed
NAT_PMP = "NAT-PMP"  # prefix of the description that miniupnpd gives to such a mapping
HELD_S = 300.0  # maximum time until the removal of a mapping is retried
IsWanted = Callable[[PortMapping], bool]


class HeldByOtherNode(LbError):
    """The router has the mapping for another node of the cluster, and lets only that node change it; it ends in `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class MappingKeeper:
    """Sends requests to the router. `is_wanted`: whether a Service requests a mapping with this cluster's description now."""

    def __init__(self, config: EdgeConfig, is_wanted: IsWanted, clock: Callable[[], float] = time.monotonic) -> None:
        self.config, self.cluster = config, ""
        self.gateway: Gateway | None = None
        self.external_address = ""  # from the router's last answer
        self._is_wanted, self._clock = is_wanted, clock
        self._lock = asyncio.Lock()
        self._searched: tuple[float, GatewayUnreachable] | None = None  # when the last search failed, and why
        self._granted_s: dict[PortMapping, int] = {}  # lease that the router granted in place of the requested one
        self._renewed: dict[PortMapping, float] = {}  # end by this host's clock: for routers that report none

    # --- the router ---

    async def connect(self) -> Gateway:
        """Return the router, after a search if needed. Raises GatewayUnreachable; a poll has at most one search."""
        async with self._lock:
            return await self._connected()

    async def _connected(self) -> Gateway:
        if self.gateway is not None:
            return self.gateway
        if self._searched is not None and self._clock() - self._searched[0] < self.config.poll_s / 2:
            raise GatewayUnreachable(str(self._searched[1]))
        try:
            found = await find_gateway(self.config)
            self.external_address = await found.external_address()
        except GatewayUnreachable as error:
            self._searched = self._clock(), error
            raise
        self.gateway, self._searched = found, None
        log.info("gateway found", extra={"gateway": found.name, "address": self.external_address or "none"})
        return found

    def lose(self) -> None:
        """Record that the router does not answer: search again."""
        self.gateway = None

    def use(self, config: EdgeConfig) -> None:
        """Replace the configuration; search the router again."""
        self.config, self.gateway, self._searched = config, None, None

    async def look_at_address(self) -> bool:
        """Read the WAN address; return whether it changed. Raises GatewayUnreachable."""
        async with self._lock:
            before = self.external_address
            self.external_address = await (await self._preferred()).external_address()
            return self.external_address != before

    async def _preferred(self) -> Gateway:
        """Return the router by the first protocol that it answers; earlier failures are retried."""
        gateway = await self._connected()
        try:
            found = await find_gateway(self.config, before=gateway.protocol)
            address = await found.external_address()
        except (GatewayUnreachable, GatewayFailure, GatewayRefusal):
            return gateway
        log.info("the gateway answers by a preferred protocol", extra={"gateway": found.name})
        self.gateway, self.external_address = found, address or self.external_address
        return found

    # --- mappings ---

    async def replace(self, old: Iterable[PortMapping], new: Sequence[PortMapping]) -> None:
        """Replace the old mappings by the new ones: all of them, or none.

        New ones are created before old ones are removed. Raises MappingConflict, GatewayRefusal, GatewayUnreachable.
        """
        async with self._lock:
            gateway = await self._connected()
            held = [await self._find(gateway, mapping) for mapping in new]
            for mapping, found in zip(new, held, strict=True):
                self._check_owner(mapping, found)
            made: list[PortMapping] = []
            try:
                for mapping, found in zip(new, held, strict=True):
                    if found is None:
                        made.append(mapping)
                    await self._put(gateway, mapping, found)
            except LbError:
                await self._take_back(gateway, made)
                raise
            kept = {mapping.outside for mapping in new}
            for mapping in old:
                if mapping.outside not in kept:
                    await self._remove(gateway, mapping)

    async def keep(self, mapping: PortMapping, is_still: Callable[[], bool]) -> None:
        """Check a mapping, and create or renew it if it is still requested. Raises as `replace`."""
        async with self._lock:
            if not is_still():
                return
            gateway = await self._connected()
            found = await self._find(gateway, mapping)
            self._check_owner(mapping, found)
            await self._put(gateway, mapping, found)

    async def is_free(self, mapping: PortMapping) -> bool:
        """Return whether a mapping's port is free or its own. Raises GatewayUnreachable."""
        async with self._lock:
            try:
                self._check_owner(mapping, await self._find(await self._connected(), mapping))
            except MappingConflict:
                return False
            return True

    async def sweep(self) -> list[PortMapping]:
        """Remove this cluster's mappings that no Service requests any more; return the others. Raises GatewayUnreachable."""
        async with self._lock:
            gateway, kept = await self._connected(), []
            for mapping in await self._ours(gateway):
                if self._is_wanted(mapping):
                    kept.append(mapping)
                    continue
                try:
                    await self._remove(gateway, mapping)
                except GatewayRefusal as error:
                    log.warning("a mapping of no Service is left until its lease ends", extra={"error": str(error)})
            return kept

    async def remove_all(self, mappings: Iterable[PortMapping], is_also: IsWanted) -> None:
        """Remove these mappings, and this cluster's in the router's list that `is_also` selects. Raises GatewayRefusal too."""
        async with self._lock:
            gateway = await self._preferred()
            found = {mapping.outside: mapping for mapping in mappings}
            found |= {mapping.outside: mapping for mapping in await self._ours(gateway) if is_also(mapping)}
            for mapping in found.values():
                await self._remove(gateway, mapping)

    async def _ours(self, gateway: Gateway) -> list[PortMapping]:
        """Return the mappings with this cluster's descriptions from the router's list; some routers list none."""
        try:
            found = [each.mapping for each in await gateway.mappings()]
        except GatewayFailure as error:
            log.warning("the gateway does not list its mappings", extra={"error": str(error)})
            return []
        return [mapping for mapping in found if self._is_ours(mapping)]

    # --- one mapping ---

    async def _find(self, gateway: Gateway, mapping: PortMapping) -> HeldMapping | None:
        """Return the router's mapping at a port. A description that the router truncated is completed."""
        found = await gateway.find(*mapping.outside)
        if found is None or found.mapping.description == mapping.description or not found.mapping.description:
            return found
        whole = replace(found.mapping, description=mapping.description)
        is_cut = whole == mapping and mapping.description.startswith(found.mapping.description)
        return replace(found, mapping=whole) if is_cut else found

    def _is_ours(self, mapping: PortMapping) -> bool:
        owner = owner_of(mapping.description)
        return owner is not None and owner.cluster == self.cluster

    def _check_owner(self, mapping: PortMapping, found: HeldMapping | None) -> None:
        """Raise MappingConflict if another owner has the port."""
        if found is None or found.mapping.description == mapping.description or _is_by_nat_pmp(mapping, found):
            return
        mine, theirs = owner_of(mapping.description), owner_of(found.mapping.description)
        is_same_service = mine is not None and theirs is not None and mine.service == theirs.service
        if self._is_ours(found.mapping) and (is_same_service or not self._is_wanted(found.mapping)):
            return
        owner = found.mapping.description
        where = f"{found.mapping.external_port}/{found.mapping.protocol}"
        raise MappingConflict(
            f"{where} is mapped to {found.mapping.client} already, for {owner!r}; it is not changed", owner
        )

    async def _put(self, gateway: Gateway, mapping: PortMapping, found: HeldMapping | None) -> None:
        """Create or change a mapping, given the present one, which may be changed."""
        if found is not None and found.mapping == mapping and found.enabled and not self._is_due(mapping, found):
            return
        if found is not None and found.mapping.description != mapping.description:
            await self._remove(gateway, found.mapping)  # an `add` leaves the old description at some routers
        try:
            await gateway.add(mapping, self.config.lease_s)
        except MappingConflict as error:
            if found is None or found.mapping.description != mapping.description:
                raise self._unseen(gateway, mapping, error) from None
            await self._take_over(gateway, mapping, found)
        except GatewayFailure as error:
            raise self._with_address(error) from None
        await self._look_after(gateway, mapping)

    async def _take_over(self, gateway: Gateway, mapping: PortMapping, found: HeldMapping) -> None:
        """Replace a mapping to another node that the router does not change in place. Raises HeldByOtherNode."""
        try:
            await gateway.remove(found.mapping)
        except GatewayRefusal as error:
            text = f"{error}; {found.mapping.client} had it before, and its lease ends in {found.lease_s} s"
            seconds = min(found.lease_s + 1.0, HELD_S) if found.lease_s else HELD_S
            raise HeldByOtherNode(text, seconds) from None
        await gateway.add(mapping, self.config.lease_s)

    async def _look_after(self, gateway: Gateway, mapping: PortMapping) -> None:
        """Record the lease of a mapping."""
        self._renewed[mapping] = self._clock()
        found = await gateway.find(*mapping.outside)
        if found is None or not found.lease_s:
            self._granted_s.pop(mapping, None)
        else:
            self._granted_s[mapping] = found.lease_s
        fields = {"mapping": str(mapping), "description": mapping.description, "lease_s": found.lease_s if found else 0}
        log.info("port mapped", extra=fields)

    def _is_due(self, mapping: PortMapping, found: HeldMapping) -> bool:
        """Return whether a mapping is due for renewal."""
        asked_s = self.config.lease_s or WEEK_S
        if found.lease_s:
            lease_s = min(self._granted_s.get(mapping, asked_s), asked_s)
            return found.lease_s <= max(lease_s / 2, SOON_POLLS * self.config.poll_s)
        if not self.config.lease_s:
            return False
        return self._clock() - self._renewed.setdefault(mapping, self._clock()) >= asked_s / 2

    def _unseen(self, gateway: Gateway, mapping: PortMapping, error: MappingConflict) -> MappingConflict:
        """Raise a conflict without a visible mapping, with its possible reasons."""
        if mapping.client == gateway.local_address:
            return error
        text = (
            f"{error}; or it maps ports only to the requesting host, {gateway.local_address}, not to {mapping.client}"
        )
        return MappingConflict(text)

    def _with_address(self, error: GatewayFailure) -> GatewayFailure:
        return error if self.external_address else GatewayFailure(f"{error}; it has no WAN address, or a private one")

    async def _remove(self, gateway: Gateway, mapping: PortMapping) -> None:
        found = await self._find(gateway, mapping)
        if (
            found is not None
            and found.mapping.description != mapping.description
            and not _is_by_nat_pmp(mapping, found)
        ):
            return  # another owner has the port now
        if found is not None or not gateway.says_owners:
            await gateway.remove(found.mapping if found is not None else mapping)
            log.info("port mapping removed", extra={"mapping": str(mapping), "description": mapping.description})
        self._granted_s.pop(mapping, None)
        self._renewed.pop(mapping, None)

    async def _take_back(self, gateway: Gateway, made: Iterable[PortMapping]) -> None:
        """Remove the mappings created for a Service that cannot have all."""
        for mapping in made:
            try:
                await self._remove(gateway, mapping)
            except (GatewayRefusal, GatewayFailure, GatewayUnreachable) as error:
                log.warning(
                    "a mapping is left until its lease ends", extra={"mapping": str(mapping), "error": str(error)}
                )


def _is_by_nat_pmp(mapping: PortMapping, found: HeldMapping) -> bool:
    """Return whether a UPnP mapping was created by NAT-PMP for this host: those have no descriptions, so the target is compared."""
    held = found.mapping
    is_same_target = (held.client, held.internal_port) == (mapping.client, mapping.internal_port)
    return is_same_target and held.description.upper().startswith(NAT_PMP)
