"""Provider `pool`: gives addresses of pools to Services. The addresses are in the Services' status; nothing else is stored."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from lbagent.cloud.builtin.address_book import AddressBook
from lbagent.cloud.pool_provider import pool_rows
from lbagent.cloud.provider import (
    CONFIG,
    ClientBuilder,
    CloudProvider,
    ConfigError,
    Ingress,
    LoadBalancer,
    LoadBalancerStatus,
    Node,
    Refusal,
    Service,
    default_load_balancer_name,
)
from lbagent.cloud.service_rules import action_of
from lbagent.model.address import format_ip, parse_ip
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.observe.exposition import MetricFamily
from lbagent.pools.address_request import POOL_ANNOTATION, Allocation, read_preference
from lbagent.pools.read_pools import PoolsFile, parse_pools

log = logging.getLogger(__name__)
CHANGE_DEBOUNCE_S = 0.05  # from a change until allocations are compared: changes arrive in bursts
FAILED, ASTRAY = "AllocationFailed", "AddressNotInPool"


class PoolBalancers(LoadBalancer):
    """A balancer is an address; `ensure` allocates it, or raises the reason."""

    owned_annotations = (POOL_ANNOTATION,)

    def __init__(self, file: PoolsFile) -> None:
        self.book = AddressBook(file)
        self.failures: Counter[tuple[str, str]] = Counter()  # (pool, reason)
        self._builder: ClientBuilder | None = None
        self._told: dict[str, Allocation | None] = {}  # by the last `ensure`
        self._said: dict[str, str] = {}  # uid -> the last counted problem
        self._looking: asyncio.TimerHandle | None = None

    def begin(self, builder: ClientBuilder) -> None:
        """Read the controller's objects, and follow their changes."""
        self._builder = builder
        self.book.lb_class = builder.lb_class
        builder.follow(self._note)

    # --- the part of a provider ---

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        """Return the status: a balancer has nothing else."""
        return service.status if service.status.ingress else None

    def name(self, cluster: str, service: Service) -> str:
        """Return the default name."""
        return default_load_balancer_name(service)

    async def ensure(self, cluster: str, service: Service, nodes: Sequence[Node]) -> LoadBalancerStatus:
        """Return the addresses. Raises Refusal if there is none."""
        found = self._told[service.key] = self._look(service.key).get(service.key)
        if found is None:
            raise Refusal(FAILED, self._why_not(service))
        if found.problem:
            self._count(service, found)
        else:
            self._said.pop(service.uid, None)
        if not found.addresses:
            raise Refusal(FAILED, found.problem)
        if found.problem:
            self._write(service, FAILED, found.problem)
        if found.astray:
            texts = ", ".join(map(format_ip, found.astray))
            self._write(service, ASTRAY, f"no pool has {texts}; the Service keeps it")
        notes = {POOL_ANNOTATION: found.pool} if found.pool else {}
        return LoadBalancerStatus(_ingress(found, service.status), notes)

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Do nothing: an address belongs to no node."""

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Remove the allocation; the address is free when no status has it."""
        self.book.release(service.key)
        self._told.pop(service.key, None)
        self._said.pop(service.uid, None)

    # --- allocations ---

    def use(self, file: PoolsFile) -> None:
        """Replace the pools."""
        self.book.use(file)
        self._look_soon()

    def objects(self) -> ObjectSnapshot:
        """Return the Services and Nodes."""
        return self._builder.snapshot() if self._builder else ObjectSnapshot()

    def _look(self, key: str = "") -> dict[str, Allocation]:
        """Return the allocation of each Service; of new Services only that of `key`."""
        is_known = self.book.is_current(key) if key else not self.book.is_stale
        return self.book.allocations if is_known else self.book.look(self.objects())

    def _note(self, changes: Sequence[ObjectChange]) -> None:
        for change in changes:
            self.book.note(change)
        if self.book.is_stale:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._looking is None and self._builder is not None:
            self._looking = asyncio.get_running_loop().call_later(CHANGE_DEBOUNCE_S, self._sync_changed)

    def _sync_changed(self) -> None:
        """Sync the Services whose allocation changed since their last sync."""
        self._looking = None
        assert self._builder is not None
        now, there = self._look(), self.objects().services
        self._told = {key: each for key, each in self._told.items() if key in there}
        for key, told in self._told.items():
            if now.get(key) != told:
                self._told[key] = now.get(key)
                self._builder.sync(key)

    # --- Events and metrics ---

    def _why_not(self, service: Service) -> str:
        found = self.objects().services.get(service.key)
        assert self._builder is not None
        return (found and action_of(found, self._builder.lb_class)[1]) or "it changed in the meantime"

    def _write(self, service: Service, reason: str, text: str) -> None:
        if self._builder is not None:
            self._builder.write_event(service, reason, text, warning=True)

    def _count(self, service: Service, found: Allocation) -> None:
        if self._said.get(service.uid) == found.problem:
            return
        self._said[service.uid] = found.problem
        preference = read_preference(service.annotations, service.load_balancer_ip)
        has_preference = bool(preference.addresses or preference.pool or preference.problem)
        pools = [
            pool.name
            for pool in self.book.file.pools
            if pool.auto_assign and pool.serves(service.namespace, service.labels)
        ]
        self.failures[preference.pool or ",".join(pools), "wish" if has_preference else "no_address"] += 1
        log.warning("a Service lacks an address", extra={"service": service.key, "error": found.problem})

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of the pools."""
        rows = pool_rows(self.book.file, self.objects())
        for name, field, text in (
            ("addresses", "addresses", "Addresses that a pool has."),
            ("in_use", "in_use", "Addresses of a pool that are in use."),
        ):
            samples = [((("pool", row["pool"]), ("family", row["family"])), float(row[field])) for row in rows]
            yield MetricFamily(f"lbagent_cloud_pool_{name}", "gauge", text, samples)
        text = "Times that a Service got less than it requested."
        counts = [((("pool", pool), ("reason", why)), float(count)) for (pool, why), count in self.failures.items()]
        yield MetricFamily("lbagent_cloud_allocations_failed_total", "counter", text, counts)


class PoolProvider(CloudProvider):
    """Has only balancers."""

    name = "pool"

    def __init__(self, config: str | None) -> None:
        """Raises ConfigError."""
        if config is None:
            raise ConfigError("provider pool needs the pools file", file=CONFIG)
        self._balancers = PoolBalancers(parse_pools(config, CONFIG))

    async def initialize(self, client_builder: ClientBuilder, stop: asyncio.Event) -> None:
        """Start with the addresses that Services have already."""
        self._balancers.begin(client_builder)

    def load_balancer(self) -> LoadBalancer:
        """Return the part for balancers."""
        return self._balancers

    def reload(self, config: str) -> None:
        """Replace the pools. Raises ConfigError."""
        self._balancers.use(parse_pools(config, CONFIG))

    def metrics(self) -> Iterator[MetricFamily]:
        """Return the metrics of the pools."""
        return self._balancers.metrics()


def _ingress(found: Allocation, status: LoadBalancerStatus) -> tuple[Ingress, ...]:
    """Return the entries of a status; an existing entry is not changed, nor are its mode and ports."""
    there: dict[bytes, Ingress] = {}
    for entry in status.ingress:
        try:
            there.setdefault(parse_ip(entry.ip), entry)
        except ValueError:
            continue
    return tuple(there.get(address) or Ingress(ip=format_ip(address)) for address in found.addresses)
