"""Which addresses are in use during an allocation, and the lowest free one of a pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from lbagent.model.family import Family
from lbagent.pools.address_request import AddressRequest
from lbagent.pools.pool import AddressPool


class AddressUse:
    """Addresses and their Services. No address becomes free in an instance's life, so the lowest free address only rises."""

    def __init__(self, pools: Sequence[AddressPool], taken: Mapping[bytes, str]) -> None:
        self.pools, self.taken = pools, taken
        self._users: dict[bytes, list[AddressRequest]] = {}
        self._shared: dict[str, set[bytes]] = {}  # sharing key -> addresses
        self._in_use: Counter[tuple[str, Family]] = Counter()
        self._free: dict[tuple[str, Family], Iterator[bytes]] = {}
        self._lowest: dict[tuple[str, Family], bytes | None] = {}
        for address in taken:
            self._count(address)

    def pool_of(self, address: bytes) -> AddressPool | None:
        """Return the pool of an address; there is at most one."""
        return next((pool for pool in self.pools if pool.holds(address)), None)

    def in_use(self, pool: AddressPool, family: Family) -> int:
        """Return how many of a pool's allocatable addresses are in use."""
        return self._in_use[pool.name, family]

    def add(self, request: AddressRequest, address: bytes) -> None:
        """Record that a Service has an address."""
        users = self._users.setdefault(address, [])
        if not users and address not in self.taken:
            self._count(address)
        users.append(request)
        if request.preference.sharing_key:
            self._shared.setdefault(request.preference.sharing_key, set()).add(address)

    def _count(self, address: bytes) -> None:
        pool = self.pool_of(address)
        if pool and pool.can_give(address):
            self._in_use[pool.name, Family.of(address)] += 1

    def refusal_of_user(self, request: AddressRequest, address: bytes) -> str:
        """Return the Service that prevents another one from having an address, '' for none."""
        for user in self._users.get(address, ()):
            if user.key != request.key and not user.shares_with(request):
                return f"Service {user.key} has it"
        return ""

    def refusal(self, request: AddressRequest, address: bytes) -> str:
        """Return why a Service cannot have an address that is in use, '' if it can."""
        if (owner := self.taken.get(address)) and owner != f"Service {request.key}":
            return f"it is in use: {owner}"
        return self.refusal_of_user(request, address)

    def lowest(self, request: AddressRequest, pool: AddressPool, family: Family) -> bytes | None:
        """Return the lowest address of a pool that a Service can have; None: there is none."""
        own = [
            address
            for address in self._shared.get(request.preference.sharing_key, ())
            if Family.of(address) is family and pool.can_give(address) and not self.refusal(request, address)
        ]
        free = self._lowest_free(pool, family)
        return min((*own, free) if free else own, default=None)

    def _lowest_free(self, pool: AddressPool, family: Family) -> bytes | None:
        key = (pool.name, family)
        if key not in self._free:
            self._free[key] = (
                address
                for each in pool.ranges
                if each.family is family
                for address in each.addresses(avoid_buggy=pool.avoid_buggy_ips)
            )
            self._lowest[key] = next(self._free[key], None)
        while (lowest := self._lowest[key]) and (lowest in self._users or lowest in self.taken):
            self._lowest[key] = next(self._free[key], None)
        return lowest
