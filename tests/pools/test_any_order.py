"""No sequence of Service, pool and restart events gives an address twice, or moves one without a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from lbagent.model.address import L4Type, parse_ip
from lbagent.model.family import Family
from lbagent.pools.address_request import AddressPreference, AddressRequest, Allocation
from lbagent.pools.allocate import Allocator, allocate
from lbagent.pools.read_pools import parse_pools

pytestmark = pytest.mark.long

V4, V6 = Family.IPV4, Family.IPV6
FILES = [
    "",
    "pools: [{name: a, addresses: [10.0.0.1-10.0.0.3, fd00::1-fd00::2]}]",
    "pools: [{name: a, addresses: [10.0.0.2-10.0.0.3]}, {name: b, addresses: [10.1.0.1-10.1.0.2, fd00::1-fd00::2], priority: 1}]",
    "pools: [{name: c, addresses: [10.1.0.1, 10.0.0.3], autoAssign: false}, {name: d, addresses: [fd00::/64], namespaces: [n1]}]",
]
NODES: list[dict[bytes, str]] = [
    {},
    {parse_ip("10.0.0.2"): "node n1"},
    {parse_ip("fd00::1"): "node n1", parse_ip("10.1.0.1"): "node n2"},
]
ADDRESSES = [parse_ip(text) for text in ("10.0.0.1", "10.0.0.2", "10.1.0.1", "10.9.9.9", "fd00::1")]
PREFERENCES = st.builds(
    AddressPreference,
    addresses=st.one_of(st.just(()), st.sampled_from(ADDRESSES).map(lambda address: (address,))),
    pool=st.sampled_from(["", "", "", "a", "b", "c"]),
    sharing_key=st.sampled_from(["", "", "k"]),
)
SERVICES = st.builds(
    AddressRequest,
    namespace=st.sampled_from(["n1", "n2"]),
    name=st.sampled_from("abcdef"),
    created=st.integers(0, 3).map(float),
    families=st.sampled_from([(V4,), (V6,), (V4, V6), (V6, V4)]),
    require_all=st.booleans(),
    ports=st.frozensets(st.tuples(st.just(L4Type.TCP), st.integers(1, 3)), min_size=1, max_size=2),
    pods=st.sampled_from(["", "", "app=x"]),
    preference=PREFERENCES,
)


class Pools(RuleBasedStateMachine):
    """The stored state are the Services with their status; the controller may die between two writes."""

    def __init__(self) -> None:
        super().__init__()
        self.services: dict[str, AddressRequest] = {}
        self.pools = parse_pools(FILES[1], "f").pools
        self.nodes: Mapping[bytes, str] = {}

    @initialize(index=st.sampled_from([1, 2]))
    def begin(self, index: int) -> None:
        self.edit(index)

    @rule(index=st.sampled_from(range(len(FILES))))
    def edit(self, index: int) -> None:
        self.pools = parse_pools(FILES[index], "f").pools

    @rule(nodes=st.sampled_from(NODES))
    def node_addresses(self, nodes: Mapping[bytes, str]) -> None:
        self.nodes = nodes

    @rule(service=SERVICES)
    def create(self, service: AddressRequest) -> None:
        self.services.setdefault(service.key, service)

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        if self.services:
            del self.services[data.draw(st.sampled_from(sorted(self.services)))]

    @rule(data=st.data(), preference=PREFERENCES)
    def preference(self, data: Any, preference: AddressPreference) -> None:
        if self.services:
            key = data.draw(st.sampled_from(sorted(self.services)))
            self.services[key] = replace(self.services[key], preference=preference)

    @rule(writes=st.integers(0, 8))
    def sync(self, writes: int) -> None:
        """One pass of a controller that dies after so many writes."""
        found = allocate(self.pools, self.services.values(), self.nodes)
        self.check(found)
        changed = [key for key, each in found.items() if each.addresses != self.services[key].held]
        for key in changed[:writes]:
            self.services[key] = replace(self.services[key], held=found[key].addresses)

    def check(self, found: Mapping[str, Allocation]) -> None:
        for key, each in found.items():
            service = self.services[key]
            self.check_new(service, set(each.addresses) - set(service.held))
            assert len({Family.of(address) for address in each.addresses}) == len(each.addresses)
            for address in set(service.held) - set(each.addresses):
                assert self.may_lose(service, address, each), (service, each)

    def check_new(self, service: AddressRequest, new: set[bytes]) -> None:
        for address in new:
            assert address not in self.nodes
            (pool,) = [pool for pool in self.pools if pool.holds(address)]
            assert pool.serves(service.namespace, service.labels)
            assert pool.auto_assign or service.preference.pool == pool.name or address in service.preference.addresses
            if service.preference.pool:
                assert pool.name == service.preference.pool

    def may_lose(self, service: AddressRequest, address: bytes, now: Allocation) -> bool:
        """Return whether a preference moved it, or a Service that may not share it also got it."""
        wished = service.preference.addresses or service.preference.pool
        moved = any(Family.of(each) is Family.of(address) for each in now.addresses)
        contested = any(
            address in other.held and not other.shares_with(service)
            for other in self.services.values()
            if other.key != service.key
        )
        return (bool(wished) and moved) or contested

    @invariant()
    def each_address_has_one_service(self) -> None:
        services = list(self.services.values())
        found = allocate(self.pools, services, self.nodes)
        for one in services:
            for two in services:
                both = set(found[one.key].addresses) & set(found[two.key].addresses)
                assert one.key == two.key or not both or one.shares_with(two), (one, two)

    @invariant()
    def nothing_is_left_to_do_after_a_whole_pass(self) -> None:
        """A restart changes nothing: the result is the same."""
        services = self.services
        for _ in range(3):  # a moved Service gives its address back one pass later
            found = allocate(self.pools, services.values(), self.nodes)
            services = {key: replace(each, held=found[key].addresses) for key, each in services.items()}
        again = allocate(self.pools, services.values(), self.nodes)
        assert {key: each.addresses for key, each in again.items()} == {
            key: each.held for key, each in services.items()
        }


TestAnyOrder = Pools.TestCase
TestAnyOrder.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def distinct(most: int) -> st.SearchStrategy[list[AddressRequest]]:
    return st.lists(SERVICES, max_size=most, unique_by=lambda request: request.key)


@given(distinct(4), distinct(6), st.integers(0, len(FILES) - 1), st.sampled_from(NODES))
def test_services_that_come_later_get_what_they_would_get_of_all_of_them(
    there: list[AddressRequest], come: list[AddressRequest], index: int, nodes: Mapping[bytes, str]
) -> None:
    pools = parse_pools(FILES[index], "f").pools
    known = {request.key for request in there}
    new = [request for request in come if request.key not in known]
    one = Allocator(pools, there, nodes)
    assume(one.lacks_nothing)
    held = [replace(request, held=one.found[request.key].addresses) for request in there]
    assert one.found | one.add(new) == allocate(pools, [*held, *new], nodes)
    assert one.lacks_nothing == (not any(each.problem for each in one.found.values()))
