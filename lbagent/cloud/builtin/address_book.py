"""Which Service has which address, while a controller lives: the allocation, and what was given and not yet seen in a status.

What a Service was given counts as held from that moment on, also before the API server has it; and what its status still shows
after it was given another one goes to no other Service until the status changes. So no address is there twice, whatever the order
in which writes and watches arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from lbagent.cloud.planned_balancer import Action
from lbagent.cloud.pool_provider import claim_of, taken_addresses
from lbagent.cloud.service_rules import action_of
from lbagent.objects.records import Node, ObjectChange, ObjectSnapshot, Service
from lbagent.pools.allocate import allocate
from lbagent.pools.claim import Allocation, Claim
from lbagent.pools.read_pools import PoolsFile


class Given(Struct):
    """What a Service was given; `is_seen`: its status has had it."""

    uid: str
    addresses: tuple[bytes, ...]
    is_seen: bool = False


class AddressBook:
    """The addresses of one term of one controller. Nothing here waits."""

    def __init__(self, file: PoolsFile, lb_class: str = "") -> None:
        self.file, self.lb_class = file, lb_class
        self.is_stale = True  # something changed since `look`
        self.allocations: dict[str, Allocation] = {}
        self._given: dict[str, Given] = {}
        self._claims: dict[str, Claim] = {}  # by key; as of the Service's last version

    def use(self, file: PoolsFile) -> None:
        """Take other pools."""
        self.file, self.is_stale = file, True

    def note(self, change: ObjectChange) -> None:
        """Take a change of a Service or a Node."""
        old, new = change.old, change.new
        if isinstance(old, Node) or isinstance(new, Node):
            before = old.internal_ips if isinstance(old, Node) else ()
            self.is_stale |= before != (new.internal_ips if isinstance(new, Node) else ())
            return
        service = new if isinstance(new, Service) else None
        claim, before_claim = self._claim(service), self._claims.pop(change.key, None)
        if claim is None or service is None:
            self._given.pop(change.key, None)
            self.is_stale = True
            return
        self._claims[change.key] = claim
        given = self._given_to(service)
        if given is not None and set(claim.held) == set(given.addresses):
            given.is_seen = True
            if (
                before_claim is not None
                and _is_own_write(before_claim, claim)
                and _external_ips(old) == service.external_ips
            ):
                return
        self.is_stale = True

    def look(self, objects: ObjectSnapshot) -> dict[str, Allocation]:
        """Return what each Service has, by key; nothing is given out twice."""
        if not self.is_stale:
            return self.allocations
        claims: dict[str, Claim] = {}
        for key, service in objects.services.items():
            if claim := self._claim(service):
                claims[key] = claim
        taken = dict(taken_addresses(objects, set(claims)))
        for key, claim in claims.items():
            given = self._given_to(objects.services[key])
            if given is None or set(given.addresses) == set(claim.held):
                continue
            if given.is_seen and claim.held:  # another program wrote another status: that is what the Service has
                del self._given[key]
                continue
            for address in claim.held:
                if address not in given.addresses:
                    taken.setdefault(address, f"Service {key}")
            claims[key] = replace(claim, held=given.addresses)
        found = allocate(self.file.pools, claims.values(), taken)
        for key, each in found.items():
            self._give(key, objects.services[key], each)
        self.allocations, self.is_stale = found, False
        return found

    def release(self, key: str) -> None:
        """Forget what a Service was given: its balancer is gone."""
        if self._given.pop(key, None) is not None:
            self.is_stale = True

    def changed_since(self, before: dict[str, Allocation]) -> Iterator[str]:
        """Iterate over the Services that have something else now."""
        return (key for key, each in self.allocations.items() if before.get(key) != each)

    def _claim(self, service: Service | None) -> Claim | None:
        if service is None or action_of(service, self.lb_class)[0] is not Action.ENSURE:
            return None
        return claim_of(service)

    def _given_to(self, service: Service) -> Given | None:
        given = self._given.get(service.key)
        uid = service.balancer.uid if service.balancer else ""
        return given if given and given.uid == uid else None

    def _give(self, key: str, service: Service, found: Allocation) -> None:
        uid = service.balancer.uid if service.balancer else ""
        held = service.balancer.status if service.balancer else ()
        given = self._given_to(service)
        if not found.addresses:
            self._given.pop(key, None)
        elif given is None or given.addresses != found.addresses:
            self._given[key] = Given(uid, found.addresses, set(found.addresses) == set(held))


def _is_own_write(before: Claim, now: Claim) -> bool:
    """Return whether only the status is another, and nothing went from it."""
    return set(before.held) <= set(now.held) and replace(before, held=()) == replace(now, held=())


def _external_ips(obj: object) -> tuple[bytes, ...]:
    return obj.external_ips if isinstance(obj, Service) else ()
