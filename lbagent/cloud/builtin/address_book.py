"""Which Service has which address while a controller runs: the allocation, and addresses that are not yet in a status.

An address counts as held from the moment it is given to a Service, also before the API server has it; and an address that a status
still shows after the Service was given another one goes to no other Service until the status changes. So no address is given
twice, in any order of writes and watch events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from lbagent.cloud.planned_balancer import Action
from lbagent.cloud.pool_provider import address_request_of, taken_addresses
from lbagent.cloud.service_rules import action_of
from lbagent.objects.records import Node, ObjectChange, ObjectSnapshot, Service
from lbagent.pools.address_request import AddressRequest, Allocation
from lbagent.pools.allocate import Allocator
from lbagent.pools.read_pools import PoolsFile


class AssignedAddresses(Struct):
    """The addresses given to a Service in place of `held`; `is_seen`: its status has had them. `before` may be written later."""

    uid: str
    addresses: tuple[bytes, ...]
    held: tuple[bytes, ...]
    is_seen: bool = False
    before: tuple[bytes, ...] = ()


class AddressBook:
    """The addresses of one term of one controller. Nothing here blocks."""

    def __init__(self, file: PoolsFile, lb_class: str = "") -> None:
        self.file, self.lb_class = file, lb_class
        self.is_stale = True  # something changed since `look`
        self._new: set[str] = set()  # keys of new Services on which no other Service's address depends
        self._allocator = Allocator((), (), {})
        self.allocations: dict[str, Allocation] = {}
        self._given: dict[str, AssignedAddresses] = {}
        self._requests: dict[str, AddressRequest] = {}  # by key; as of the Service's last version

    def use(self, file: PoolsFile) -> None:
        """Replace the pools."""
        self.file, self.is_stale = file, True

    def note(self, change: ObjectChange) -> None:
        """Apply a change of a Service or a Node."""
        old, new = change.old, change.new
        if isinstance(old, Node) or isinstance(new, Node):
            before = old.internal_ips if isinstance(old, Node) else ()
            self.is_stale |= before != (new.internal_ips if isinstance(new, Node) else ())
            return
        service = new if isinstance(new, Service) else None
        request, before_request = self._request(service), self._requests.pop(change.key, None)
        if request is None or service is None:
            self._given.pop(change.key, None)
            self.is_stale = True
            return
        self._requests[change.key] = request
        if old is None and before_request is None and not request.held and not service.external_ips:
            self._new.add(change.key)  # it cannot change the addresses of others: `ensure` allocates its address
            return
        if request == before_request and _uid(old) == _uid(service) and _external_ips(old) == service.external_ips:
            return  # the finalizer was added
        given = self._given_to(service)
        if given is not None and set(request.held) == set(given.addresses):
            frees, given.is_seen, given.before = bool(given.before), True, ()
            if (
                not frees
                and before_request is not None
                and _is_own_write(before_request, request)
                and _external_ips(old) == service.external_ips
            ):
                return
        self.is_stale = True

    def is_current(self, key: str) -> bool:
        """Return whether `allocations` has the current addresses of a Service."""
        return not self.is_stale and (key in self.allocations or not self._new)

    def look(self, objects: ObjectSnapshot) -> dict[str, Allocation]:
        """Return the allocation of each Service, by key; no address is given out twice."""
        if self.is_stale or (self._new and not self._allocator.lacks_nothing):
            self._allocator = self._allocate_anew(objects)
            found = self.allocations = self._allocator.found
        else:
            found = self._allocator.add(self._requests[key] for key in self._new)
        for key, each in found.items():
            self._give(key, objects.services[key], each)
        self.is_stale, self._new = False, set()
        return self.allocations

    def _allocate_anew(self, objects: ObjectSnapshot) -> Allocator:
        requests: dict[str, AddressRequest] = {}
        for key, service in objects.services.items():
            if request := self._request(service):
                requests[key] = request
        taken = dict(taken_addresses(objects, set(requests)))
        holders = _holders(requests.values())
        for key, request in list(requests.items()):
            if given := self._given_to(objects.services[key]):
                requests[key] = self._as_given(request, given, taken, holders)
        return Allocator(self.file.pools, requests.values(), taken)

    def _as_given(
        self,
        request: AddressRequest,
        given: AssignedAddresses,
        taken: dict[bytes, str],
        holders: Mapping[bytes, Sequence[AddressRequest]],
    ) -> AddressRequest:
        """Return the request with the addresses given to its Service; its other addresses are added to `taken`."""
        for address in given.before:
            taken.setdefault(address, f"Service {request.key}")
        if set(given.addresses) == set(request.held):
            return request
        is_other = request.held and (given.is_seen or set(request.held) != set(given.held))  # another program wrote it
        if is_other or _are_anothers(
            given.addresses, request, holders
        ):  # or the server was restored to an earlier state
            del self._given[request.key]
            return request
        for address in request.held:
            if address not in given.addresses:
                taken.setdefault(address, f"Service {request.key}")
        return replace(request, held=given.addresses)

    def release(self, key: str) -> None:
        """Remove the addresses given to a Service: its balancer is deleted."""
        if self._given.pop(key, None) is not None:
            self.is_stale = True

    def _request(self, service: Service | None) -> AddressRequest | None:
        if service is None or action_of(service, self.lb_class)[0] is not Action.ENSURE:
            return None
        return address_request_of(service)

    def _given_to(self, service: Service) -> AssignedAddresses | None:
        given = self._given.get(service.key)
        return given if given and given.uid == _uid(service) else None

    def _give(self, key: str, service: Service, found: Allocation) -> None:
        uid, held = _uid(service), service.balancer.status if service.balancer else ()
        given = self._given_to(service)
        if not found.addresses:
            self._given.pop(key, None)
        elif given is None or given.addresses != found.addresses:
            unseen = (*given.before, *(() if given.is_seen else given.addresses)) if given else ()
            before = tuple(address for address in unseen if address not in found.addresses)
            self._given[key] = AssignedAddresses(uid, found.addresses, held, set(found.addresses) == set(held), before)


def _holders(requests: Iterable[AddressRequest]) -> dict[bytes, list[AddressRequest]]:
    """Return by address the Services whose status shows it."""
    found: dict[bytes, list[AddressRequest]] = {}
    for request in requests:
        for address in request.held:
            found.setdefault(address, []).append(request)
    return found


def _are_anothers(
    addresses: Collection[bytes], request: AddressRequest, holders: Mapping[bytes, Sequence[AddressRequest]]
) -> bool:
    """Return whether the status of another Service, with which this one may not share, shows one of these addresses."""
    return any(
        other.key != request.key and address not in request.held and not other.shares_with(request)
        for address in addresses
        for other in holders.get(address, ())
    )


def _is_own_write(before: AddressRequest, now: AddressRequest) -> bool:
    """Return whether only the status differs, and no address was removed from it."""
    return set(before.held) <= set(now.held) and replace(before, held=()) == replace(now, held=())


def _uid(obj: object) -> str:
    return obj.balancer.uid if isinstance(obj, Service) and obj.balancer else ""


def _external_ips(obj: object) -> tuple[bytes, ...]:
    return obj.external_ips if isinstance(obj, Service) else ()
