"""Allocates addresses to Services: a pure function of pools and Services, so that every controller has the same result.

A Service keeps the addresses in its status. The others get one in order of age, each the lowest free address of the first pool that
matches. There is no stored state: a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lbagent.model.address import format_ip
from lbagent.model.family import Family
from lbagent.pools.address_request import AddressRequest, Allocation
from lbagent.pools.address_use import AddressUse
from lbagent.pools.pool import AddressPool


def allocate(
    pools: Sequence[AddressPool], requests: Iterable[AddressRequest], taken: Mapping[bytes, str]
) -> dict[str, Allocation]:
    """Return the allocation of each Service, by key. Pools are in order of preference (`PoolsFile.pools`).

    `taken` are packed addresses that none of these Services can get, each with its owner: `node n1`, `Service a/b`.
    """
    return Allocator(pools, requests, taken).found


class Allocator:
    """The result of `allocate` (`found`), and allocations of later Services, without reading the earlier ones again."""

    def __init__(
        self, pools: Sequence[AddressPool], requests: Iterable[AddressRequest], taken: Mapping[bytes, str]
    ) -> None:
        ordered = sorted(requests, key=_order)
        self._use = AddressUse(pools, taken)
        kept = {request.key: _kept(request, self._use) for request in ordered}
        self.found: dict[str, Allocation] = {}
        self.lacks_nothing = True  # each Service has its request: none waits for another one's address
        self._take_turns(ordered, kept)

    def add(self, requests: Iterable[AddressRequest]) -> dict[str, Allocation]:
        """Allocate for further Services, which hold nothing; return the results. Only for an Allocator that `lacks_nothing`."""
        return self._take_turns(sorted(requests, key=_order), {})

    def _take_turns(
        self, requests: Sequence[AddressRequest], kept: Mapping[str, dict[Family, bytes]]
    ) -> dict[str, Allocation]:
        found = {request.key: _Turn(request, kept.get(request.key, {}), self._use).allocation() for request in requests}
        self.lacks_nothing &= not any(each.problem for each in found.values())
        self.found |= found
        return found


def _order(request: AddressRequest) -> tuple[float, str]:
    return request.order


def _kept(request: AddressRequest, use: AddressUse) -> dict[Family, bytes]:
    """Return the addresses that a Service keeps of those it holds: one per family that no older Service has."""
    kept: dict[Family, bytes] = {}
    for address in request.held:
        family = Family.of(address)
        if family in request.families and family not in kept and not use.refusal_of_user(request, address):
            kept[family] = address
            use.add(request, address)
    return kept


class _Turn:
    """The allocation for one Service."""

    def __init__(self, request: AddressRequest, kept: dict[Family, bytes], use: AddressUse) -> None:
        self.request, self.kept, self.use = request, kept, use

    def allocation(self) -> Allocation:
        """Return the Service's allocation."""
        found, problem = self._preferred() if self._is_preference_open() else self._any(self.kept)
        if problem and (self.request.require_all or not found):
            found = self.kept
        for family, address in found.items():
            if self.kept.get(family) != address:
                self.use.add(self.request, address)
        return self._with_pools(found, problem)

    def _with_pools(self, found: Mapping[Family, bytes], problem: str) -> Allocation:
        addresses = tuple(found[family] for family in self.request.families if family in found)
        pools = {address: self.use.pool_of(address) for address in addresses}
        names = dict.fromkeys(pool.name for pool in pools.values() if pool)
        astray = tuple(address for address, pool in pools.items() if pool is None)
        return Allocation(addresses, ",".join(names), problem, astray)

    def _is_preference_open(self) -> bool:
        """Return whether the Service lacks something that it requests."""
        preference = self.request.preference
        if preference.problem or set(preference.addresses) - set(self.kept.values()):
            return True
        return bool(preference.pool) and any(
            not self._is_of(preference.pool, address) for address in self.kept.values()
        )

    def _is_of(self, name: str, address: bytes) -> bool:
        pool = self.use.pool_of(address)
        return pool is not None and pool.name == name

    def _preferred(self) -> tuple[dict[Family, bytes], str]:
        """Return the requested addresses, with addresses of the other families; or why not."""
        preference = self.request.preference
        if preference.problem:
            return self.kept, preference.problem
        for address in preference.addresses:
            if problem := self._refusal(address):
                return self.kept, problem
        found = {Family.of(address): address for address in preference.addresses}
        for family, address in self.kept.items():
            if not preference.pool or self._is_of(preference.pool, address):
                found.setdefault(family, address)
        more, problem = self._any(found)
        if problem and not preference.addresses:
            return self.kept, problem
        return self.kept | more, problem  # also of a family that the requested pool does not have any more

    def _refusal(self, address: bytes) -> str:
        """Return why the Service cannot have the requested address, '' if it can."""
        text, request = format_ip(address), self.request
        if Family.of(address) not in request.families:
            return f"{text} is requested, and the Service has no such IP family"
        pool = self.use.pool_of(address)
        if pool is None:
            return f"{text} is requested, and no pool has it"
        if request.preference.pool and pool.name != request.preference.pool:
            return f"{text} is requested, and pool {request.preference.pool} too; the address is of pool {pool.name}"
        if not pool.serves(request.namespace, request.labels):
            return f"{text} is requested, and pool {pool.name} is not for this Service (namespaces, serviceSelector)"
        if not pool.can_give(address):
            return f"{text} is requested, and pool {pool.name} does not allocate it (avoidBuggyIPs)"
        problem = self.use.refusal(request, address)
        return f"{text} is requested, and {problem}" if problem else ""

    def _any(self, found: Mapping[Family, bytes]) -> tuple[dict[Family, bytes], str]:
        """Return these addresses and one for each other family: all of one pool, else of several."""
        missing = [family for family in self.request.families if family not in found]
        if not missing:
            return dict(found), ""
        pools = self._pools()
        if not pools:
            return dict(found), self._no_pool()
        for pool in self._nearest(pools, found):
            more = {family: self.use.lowest(self.request, pool, family) for family in missing}
            if all(more.values()):
                return {**found, **{family: address for family, address in more.items() if address}}, ""
        return self._of_several(found, missing, pools)

    def _of_several(
        self, found: Mapping[Family, bytes], missing: list[Family], pools: list[AddressPool]
    ) -> tuple[dict[Family, bytes], str]:
        complete, lacking = dict(found), []
        for family in missing:
            addresses = (self.use.lowest(self.request, pool, family) for pool in pools)
            if address := next(filter(None, addresses), None):
                complete[family] = address
            else:
                lacking.append(family)
        if not lacking or (complete and not self.request.require_all and not self._is_full(lacking, pools)):
            return complete, ""
        return complete, self._numbers(lacking, pools)

    def _is_full(self, lacking: list[Family], pools: list[AddressPool]) -> bool:
        """Return whether pools have addresses of a family, and all are in use; else waiting would not help."""
        return any(pool.count(family) for family in lacking for pool in pools)

    def _pools(self) -> list[AddressPool]:
        """Return the pools from which the Service may get an address, in order."""
        preference, request = self.request.preference, self.request
        return [
            pool
            for pool in self.use.pools
            if (pool.name == preference.pool if preference.pool else pool.auto_assign)
            and pool.serves(request.namespace, request.labels)
        ]

    def _nearest(self, pools: list[AddressPool], found: Mapping[Family, bytes]) -> list[AddressPool]:
        """Return the pools, first those of addresses that the Service has."""
        return sorted(pools, key=lambda pool: not any(pool.holds(address) for address in found.values()))

    def _no_pool(self) -> str:
        if name := self.request.preference.pool:
            if any(pool.name == name for pool in self.use.pools):
                return f"pool {name} is requested, and is not for this Service (namespaces, serviceSelector)"
            known = ", ".join(pool.name for pool in self.use.pools) or "none"
            return f"pool {name} is requested, and there is no such pool; there are: {known}"
        if not self.use.pools:
            return "there is no pool"
        return "no pool is for this Service (autoAssign, namespaces, serviceSelector)"

    def _numbers(self, lacking: list[Family], pools: list[AddressPool]) -> str:
        """Return how full the pools are: `office: 16 of 16 in use`."""
        parts = [
            f"{pool.name}: {self.use.in_use(pool, family)} of {count} in use"
            + (" (IPv6)" if family is Family.IPV6 else "")
            for family in lacking
            for pool in pools
            if (count := pool.count(family))
        ]
        families = " and ".join(f"IPv{family}" for family in lacking)
        return (
            f"no {families} address is free: {'; '.join(parts)}"
            if parts
            else f"no pool for it has {families} addresses"
        )
