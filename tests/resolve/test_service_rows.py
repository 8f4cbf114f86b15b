"""Frontends of a Service beyond the scenarios: limits, a node without a name, and entries that the agent keeps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.service import CIDR, Algorithm
from lbagent.objects.records import (
    Endpoint,
    EndpointSlice,
    Origin,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.resolve import InForce, service_builder
from tests.resolve.watched import Watched

VIP, LB = bytes((10, 96, 0, 1)), bytes((203, 0, 113, 1))
HTTP = ServicePort("http", L4Type.TCP, 80)
TERM: dict[str, Any] = {"ready": False, "terminating": True}


def service(name: str = "web", **more: Any) -> Service:
    given: dict[str, Any] = {"families": (Family.IPV4,), "cluster_ips": (VIP,), "ports": (HTTP,)} | more
    return Service("d", name, Origin("web.yaml", 1, 3), **given)


def endpoint(host: int, **more: Any) -> Endpoint:
    return Endpoint(bytes((10, 244, 0, host)), **more)


def piece(*endpoints: Endpoint, ports: tuple[SlicePort, ...] = (), of: str = "web", number: int = 1) -> EndpointSlice:
    ports = ports or (SlicePort("http", L4Type.TCP, 8080),)
    return EndpointSlice("d", f"{of}-{number}", of, Family.IPV4, ports=ports, endpoints=endpoints)


# --- limits ---


@pytest.mark.parametrize(
    ("alive", "going", "groups"),
    [
        ([1, 2], [3], [[1, 2], [3], []]),
        ([1, 2], [3, 4], [[1, 2], [3], []]),
        ([1, 2, 3, 4], [5], [[1, 2, 3], [], []]),
        ([1], [2, 3, 4, 5], [[1], [2, 3], []]),
    ],
)
def test_a_frontend_has_so_many_slots(
    monkeypatch: pytest.MonkeyPatch, alive: list[int], going: list[int], groups: list[list[int]]
) -> None:
    """Those that take new flows come first; the rest is reported once for all frontends of the port."""
    monkeypatch.setattr(service_builder, "MAX_SLOTS", 3)
    found = Watched(
        service(ingress=(LB,)), piece(*(endpoint(host) for host in alive), *(endpoint(host, **TERM) for host in going))
    )
    assert found.hosts("10.96.0.1:80/TCP") == found.hosts("203.0.113.1:80/TCP") == groups
    text = "web.yaml:3: Service d/web: spec.ports[0]: more than 3 endpoints; the rest is left out"
    assert [str(message) for message in found.resolver.resolve().messages] == [text] * (len(alive) + len(going) > 3)


# --- policies ---


def test_a_node_without_a_name_has_no_local_endpoints() -> None:
    found = Watched(service(ingress=(LB,), external_local=True), piece(endpoint(1)), node_name="")
    assert found.hosts("203.0.113.1:80/TCP") == [[], [], []]
    assert found.hosts("203.0.113.1:80/TCP/i") == [[1], [], []]


def test_two_scopes_where_old_flows_alone_meet_other_backends() -> None:
    found = Watched(
        service(ingress=(LB,), external_local=True), piece(endpoint(1, node="n1"), endpoint(2, node="n2", **TERM))
    )
    assert found.hosts("203.0.113.1:80/TCP") == [[1], [], []]
    assert found.hosts("203.0.113.1:80/TCP/i") == [[1], [2], []]
    alike = Watched(service(ingress=(LB,), external_local=True), piece(endpoint(1, node="n1")))
    assert list(alike.rows()) == ["10.96.0.1:80/TCP", "10.96.0.1:0/NONE", "203.0.113.1:80/TCP"]


@pytest.mark.parametrize(("contiv", "hosts"), [(False, [1, 2]), (True, [1])])
def test_contiv_means_external_local_for_the_cluster_ip_too(contiv: bool, hosts: list[int]) -> None:
    objects = service(ingress=(LB,), external_local=True), piece(endpoint(1, node="n1"), endpoint(2, node="n2"))
    found = Watched(*objects, contiv_policies=contiv)
    assert found.hosts("10.96.0.1:80/TCP")[0] == hosts
    assert found.hosts("203.0.113.1:80/TCP")[0] == [1]


def test_local_endpoints_get_a_larger_share() -> None:
    """Weights are Maglev's: a frontend without endpoints on both sides keeps its algorithm."""
    both = piece(endpoint(1, node="n1"), endpoint(2, node="n2"))
    found = Watched(service(), both, local_endpoint_weight=3)
    (row,) = (row for row in found.resolver.resolve().state.services if row.frontend.port)
    assert [(each.weight, each.local) for each in row.selectable] == [(300, True), (100, False)]
    assert row.algorithm is Algorithm.MAGLEV
    alone = Watched(service(), piece(endpoint(1, node="n2"), endpoint(2, node="n3")), local_endpoint_weight=3)
    (row,) = (row for row in alone.resolver.resolve().state.services if row.frontend.port)
    assert [each.weight for each in row.selectable] == [100, 100]
    assert row.algorithm is Algorithm.RANDOM


def test_the_weight_of_a_local_endpoint_has_a_limit() -> None:
    heavy = replace(piece(endpoint(1, node="n1"), endpoint(2, node="n2")), weight=60_000)
    found = Watched(service(algorithm=Algorithm.MAGLEV), heavy, local_endpoint_weight=3)
    (row,) = (row for row in found.resolver.resolve().state.services if row.frontend.port)
    assert [each.weight for each in row.selectable] == [65535, 60_000]


@pytest.mark.parametrize("deny", [False, True])
def test_source_ranges_are_of_the_load_balancer_alone(deny: bool) -> None:
    ranges = (CIDR.parse("192.168.0.0/16"), CIDR.parse("10.0.0.0/8"), CIDR.parse("fd00::/8"))
    found = Watched(service(ingress=(LB,), source_ranges=ranges, ranges_given=True, ranges_deny=deny))
    inside, outside = found.rows()["10.96.0.1:80/TCP"], found.rows()["203.0.113.1:80/TCP"]
    assert (inside.check_source_range, inside.source_ranges_deny, inside.source_ranges) == (False, False, ())
    assert (outside.check_source_range, outside.source_ranges_deny) == (True, deny)
    assert list(map(str, outside.source_ranges)) == ["10.0.0.0/8", "192.168.0.0/16"]
    assert ("deny" in str(outside.flags)) is deny


@pytest.mark.parametrize(("port", "flagged"), [(0, False), (1, True), (65535, True)])
def test_an_l7_proxy_is_flagged(port: int, flagged: bool) -> None:
    assert Watched(service(l7_proxy_port=port)).rows()["10.96.0.1:80/TCP"].flags.is_l7lb() is flagged


# --- what the agent keeps ---


def test_restored_backends_count_for_one_state() -> None:
    """A backend in the maps keeps its entry as long as it exists; one that was gone meanwhile has none."""
    lost = piece(endpoint(1, ready=False, serving=False))
    found = Watched(service(), lost, keep_existing=True)
    found.resolver.set_restored(InForce(frozenset([L3n4Addr(bytes((10, 244, 0, 1)), 8080)])))
    assert found.hosts("10.96.0.1:80/TCP") == [[], [], [1]]
    found.drop(lost)
    assert found.hosts("10.96.0.1:80/TCP") == [[], [], []]
    found.put(lost)
    assert found.hosts("10.96.0.1:80/TCP") == [[], [], []]


OLD, OLDER = SlicePort("old", L4Type.TCP, 8080), SlicePort("older", L4Type.TCP, 8080)


def test_a_backend_of_a_renamed_port_is_kept_once_and_in_its_best_state() -> None:
    """One address may be behind several ports that no frontend uses any more."""
    before = piece(endpoint(1), endpoint(2))
    found = Watched(service(), before, keep_existing=True)
    assert found.hosts("10.96.0.1:80/TCP") == [[1, 2], [], []]
    found.drop(before)
    found.put(
        piece(endpoint(1, ready=False), endpoint(2), ports=(OLD,), number=2),
        piece(endpoint(1), endpoint(2), ports=(OLDER,), number=3),
    )
    assert found.hosts("10.96.0.1:80/TCP") == [[], [], [1, 2]]
    kept = found.rows()["10.96.0.1:80/TCP"].slotless
    assert [(each.state, each.fe_port_name) for each in kept] == [
        (BackendState.ACTIVE, "older"), (BackendState.ACTIVE, "old"),
    ]  # fmt: skip


def test_a_backend_that_a_frontend_has_is_not_kept_beside_it() -> None:
    found = Watched(service(), piece(endpoint(1), endpoint(2)), keep_existing=True)
    assert found.hosts("10.96.0.1:80/TCP") == [[1, 2], [], []]
    found.put(piece(endpoint(1), endpoint(2), endpoint(3), ports=(OLD,), number=2))
    assert found.hosts("10.96.0.1:80/TCP") == [[1, 2], [], []]


def test_a_backend_of_a_port_that_none_asks_for_is_kept_when_another_service_brings_its_row() -> None:
    found = Watched(service(), piece(endpoint(1), ports=(OLD,)), keep_existing=True)
    assert found.hosts("10.96.0.1:80/TCP") == [[], [], []]
    found.put(service("other", cluster_ips=(bytes((10, 96, 0, 2)),)), piece(endpoint(1), of="other"))
    assert found.hosts("10.96.0.2:80/TCP") == [[1], [], []]
    assert found.hosts("10.96.0.1:80/TCP") == [[], [], [1]]
