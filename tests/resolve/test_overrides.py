"""The effective BackendState if several sources set a state for a backend, by its address or by its Pod."""

from __future__ import annotations

from itertools import permutations

import pytest

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import BackendState
from lbagent.objects.records import (
    OPERATOR,
    Endpoint,
    EndpointSlice,
    ObjectChange,
    Origin,
    Service,
    ServicePort,
    SlicePort,
    StateOverride,
)
from lbagent.resolve import Options, Resolver
from lbagent.resolve.overrides import rank_overrides

ADDRESS, OTHER, POD = L3n4Addr.parse("10.0.0.1:80/TCP"), L3n4Addr.parse("10.0.0.1:81/TCP"), "shop/web-0"
ACTIVE, MAINTENANCE, QUARANTINED = BackendState.ACTIVE, BackendState.MAINTENANCE, BackendState.QUARANTINED
SOURCES = ("folder", "kube")
FILE = Origin("a.yaml", 1, 3, "folder")
API = Origin(source="kube")
BY_OPERATOR = Origin(source=OPERATOR)
UNKNOWN = Origin(source="somewhere")


def of_address(state: BackendState, origin: Origin, name: str = "") -> StateOverride:
    return StateOverride(name or f"a-{origin.source}", ADDRESS, state, origin)


def of_pod(state: BackendState, origin: Origin, name: str = "") -> StateOverride:
    return StateOverride(name or f"p-{origin.source}", None, state, origin, pod=POD)


@pytest.mark.parametrize(
    ("states", "holds"),
    [
        ([of_address(MAINTENANCE, API)], MAINTENANCE),
        ([of_address(MAINTENANCE, API), of_address(ACTIVE, BY_OPERATOR)], ACTIVE),  # no file is not "the operator"
        ([of_address(MAINTENANCE, API), of_address(QUARANTINED, FILE)], QUARANTINED),  # as they are configured
        ([of_address(MAINTENANCE, UNKNOWN), of_address(QUARANTINED, API)], QUARANTINED),
        ([of_address(MAINTENANCE, API), of_address(QUARANTINED, FILE), of_address(ACTIVE, BY_OPERATOR)], ACTIVE),
        ([of_pod(MAINTENANCE, BY_OPERATOR)], MAINTENANCE),
        ([of_pod(MAINTENANCE, FILE), of_address(ACTIVE, FILE)], ACTIVE),  # one source: the address is the closer word
        ([of_pod(MAINTENANCE, BY_OPERATOR), of_address(ACTIVE, FILE)], MAINTENANCE),
        ([of_pod(MAINTENANCE, API), of_address(ACTIVE, FILE)], ACTIVE),
        ([of_pod(MAINTENANCE, FILE), of_pod(QUARANTINED, API), of_pod(ACTIVE, BY_OPERATOR)], ACTIVE),
        ([], None),
    ],
)
def test_precedence(states: list[StateOverride], holds: BackendState | None) -> None:
    for order in permutations(states):
        overrides, _ = rank_overrides(order, SOURCES)
        assert overrides.state_of(ADDRESS, POD) is holds
        assert bool(overrides) is bool(states)
        assert overrides.state_of(OTHER, "shop/other") is None


def test_a_pods_state_is_that_of_each_of_its_backends_and_of_no_other() -> None:
    overrides, _ = rank_overrides([of_pod(MAINTENANCE, BY_OPERATOR)], SOURCES)
    assert overrides.state_of(OTHER, POD) is MAINTENANCE
    assert overrides.state_of(ADDRESS, "") is None
    assert overrides.of_addresses() == {}


def test_contradictions_name_the_place_or_the_source() -> None:
    _, found = rank_overrides([of_address(ACTIVE, FILE), of_address(MAINTENANCE, API)], SOURCES)
    assert [str(each.message()).split("; ") for each in found] == [
        [
            "BackendState a-kube: spec.state: BackendState a-folder (a.yaml:3) sets active for 10.0.0.1:80/TCP",
            "it comes first and applies, not maintenance",
        ]
    ]
    assert found[0].message().warning
    _, found = rank_overrides([of_pod(ACTIVE, API, "x"), of_pod(MAINTENANCE, API, "y")], SOURCES)
    assert [str(each.message()).split("; ") for each in found] == [
        [
            "BackendState y: spec.state: BackendState x (source kube) sets active for pod/shop/web-0",
            "it comes first and applies, not maintenance",
        ]
    ]


def test_the_operator_contradicts_nobody() -> None:
    states = [of_address(ACTIVE, BY_OPERATOR), of_address(MAINTENANCE, API), of_address(MAINTENANCE, FILE)]
    assert rank_overrides(states, SOURCES)[1] == []


def test_endpoints_follow_their_pod() -> None:
    """Set before the Pod has an endpoint, it applies to every later backend; its removal restores all states."""
    resolver = Resolver(Options("n", sources=SOURCES))
    override = of_pod(MAINTENANCE, BY_OPERATOR)
    service = Service(
        "shop", "web", families=(4,), external_ips=(b"\xc0\0\2\1",), ports=(ServicePort("", L4Type.TCP, 80),)
    )

    def piece(*endpoints: tuple[int, str]) -> EndpointSlice:
        found = tuple(Endpoint(bytes((10, 0, 0, host)), pod=pod) for host, pod in endpoints)
        return EndpointSlice("shop", "web-1", "web", 4, ports=(SlicePort("", L4Type.TCP, 80),), endpoints=found)

    def states(*changes: ObjectChange) -> dict[str, str]:
        resolver.update(changes)
        (svc,) = resolver.resolve().state.services
        return {str(backend.address.address[3]): backend.state.text for backend in svc.backends}

    one, two = piece((1, POD), (2, "shop/web-1")), piece((2, "shop/web-1"), (3, POD))
    start = states(
        ObjectChange("BackendState", override.name, None, override),
        ObjectChange("Service", service.key, None, service),
        ObjectChange("EndpointSlice", one.key, None, one),
    )
    assert start == {"1": "maintenance", "2": "active"}
    assert states(ObjectChange("EndpointSlice", one.key, one, two)) == {"2": "active", "3": "maintenance"}
    back = of_pod(ACTIVE, BY_OPERATOR)
    assert states(ObjectChange("BackendState", back.name, override, back)) == {"2": "active", "3": "active"}


def test_each_address_and_each_pod_has_a_state_of_its_own() -> None:
    other = StateOverride("other", OTHER, QUARANTINED, FILE)
    another_pod = StateOverride("pod", None, QUARANTINED, FILE, pod="shop/web-1")
    held, contradictions = rank_overrides(
        [of_address(MAINTENANCE, FILE), other, of_pod(MAINTENANCE, FILE), another_pod], SOURCES
    )
    assert contradictions == []
    assert held.of_addresses() == {ADDRESS: MAINTENANCE, OTHER: QUARANTINED}
    unknown = L3n4Addr.parse("10.0.0.9:80")
    assert [held.state_of(unknown, pod) for pod in (POD, "shop/web-1", "shop/web-2", "")] == [
        MAINTENANCE, QUARANTINED, None, None,
    ]  # fmt: skip
