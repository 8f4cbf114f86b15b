"""Frontends with a range of ports: where a Service has one, what its backends are, and which of two that overlap is served."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.objects.records import (
    Endpoint,
    EndpointSlice,
    FailedChecks,
    Origin,
    Service,
    ServicePort,
    SlicePort,
    StateOverride,
)
from lbagent.probes.backend_check import BackendCheck
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec
from tests.resolve.watched import Watched

VIP, LB, EXTERNAL = bytes((10, 96, 0, 1)), bytes((203, 0, 113, 1)), bytes((203, 0, 113, 2))
RTP = ServicePort("rtp", L4Type.UDP, 5004, 30004)


def ranged(first: int, last: int) -> ServicePort:
    return ServicePort("rtp", L4Type.UDP, first, last_port=last)


def service(name: str = "voip", first: int = 10000, last: int = 19999, **more: Any) -> Service:
    given: dict[str, Any] = {
        "families": (Family.IPV4,), "ports": (RTP,), "port_ranges": (ranged(first, last),), "ingress": (LB,),
        "type": "LoadBalancer",
    } | more  # fmt: skip
    return Service("d", name, Origin("web.yaml", 1, 3), **given)


def piece(*hosts: int, of: str = "voip", port: int = 9000) -> EndpointSlice:
    endpoints = tuple(Endpoint(bytes((10, 244, 0, host))) for host in hosts)
    return EndpointSlice(
        "d", f"{of}-1", of, Family.IPV4, ports=(SlicePort("rtp", L4Type.UDP, port),), endpoints=endpoints
    )


def frontends(watched: Watched) -> dict[str, str]:
    """Return the Service of each frontend with a range."""
    return {text: str(svc.name) for text, svc in watched.rows().items() if svc.frontend.last_port}


def said(watched: Watched) -> list[str]:
    return [text for text in watched.messages() if "port-range" in text]


def test_addresses_have_the_range_and_node_ports_have_none() -> None:
    watched = Watched()
    watched.put(service(cluster_ips=(VIP,), external_ips=(EXTERNAL,)), piece(1))
    assert list(frontends(watched)) == [
        "10.96.0.1:10000-19999/UDP",
        "203.0.113.1:10000-19999/UDP",
        "203.0.113.2:10000-19999/UDP",
    ]
    rows = watched.rows()
    (backend,) = rows["203.0.113.1:10000-19999/UDP"].selectable
    assert backend.address == L3n4Addr(bytes((10, 244, 0, 1)), 0, L4Type.UDP), "port 0: packets keep theirs"
    (own,) = rows["203.0.113.1:5004/UDP"].selectable
    assert own.address.port == 9000


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_of_two_that_overlap_the_older_is_served(order: tuple[str, ...]) -> None:
    both = {
        "old": service("old", 10000, 19999, created=1.0),
        "new": service("new", 19999, 20100, created=2.0, ports=(replace(RTP, port=5006, node_port=0),)),
    }
    watched = Watched()
    for name in order:
        watched.put(both[name])
    assert frontends(watched) == {"203.0.113.1:10000-19999/UDP": "d/old"}
    (message,) = said(watched)
    assert "Service d/new: metadata.annotations.lbagent.io/port-range: 203.0.113.1:19999-20100/UDP" in message
    assert "held by the older Service d/old" in message
    assert "203.0.113.1:5006/UDP" in watched.rows(), "its port is served"
    watched.put(service("old", 10000, 19998, created=1.0))
    assert frontends(watched) == {"203.0.113.1:10000-19998/UDP": "d/old", "203.0.113.1:19999-20100/UDP": "d/new"}
    assert said(watched) == []
    watched.put(both["old"])
    assert frontends(watched) == {"203.0.113.1:10000-19999/UDP": "d/old"}
    watched.drop(both["old"])
    assert frontends(watched) == {"203.0.113.1:19999-20100/UDP": "d/new"}
    assert said(watched) == []


def test_one_that_is_not_served_excludes_no_other() -> None:
    watched = Watched()
    for number, (first, last) in enumerate(((100, 200), (150, 300), (250, 400)), 1):
        port = replace(RTP, port=number, node_port=0)
        watched.put(service(f"s{number}", first, last, created=float(number), ports=(port,)))
    assert frontends(watched) == {"203.0.113.1:100-200/UDP": "d/s1", "203.0.113.1:250-400/UDP": "d/s3"}


def test_the_same_range_twice() -> None:
    watched = Watched()
    for number in (2, 1):
        port = replace(RTP, port=number, node_port=0)
        watched.put(service(f"s{number}", 100, 200, created=float(number), ports=(port,)))
    assert frontends(watched) == {"203.0.113.1:100-200/UDP": "d/s1"}


def test_a_port_of_another_service_inside_is_no_conflict() -> None:
    watched = Watched()
    watched.put(
        service("old", created=1.0), service("new", created=2.0, ports=(replace(RTP, port=10500),), port_ranges=())
    )
    assert said(watched) == []
    assert {svc.frontend.port_text for svc in watched.rows().values() if svc.frontend.address == LB} == {
        "5004",
        "10000-19999",
        "10500",
    }


def test_a_state_of_the_operator_is_that_of_the_target_port() -> None:
    """`backend set-state` of the pod's port holds for the range, too."""
    watched = Watched()
    watched.put(service(), piece(1, 2))
    watched.put(StateOverride("x", L3n4Addr(bytes((10, 244, 0, 1)), 9000, L4Type.UDP), BackendState.MAINTENANCE))
    row = watched.rows()["203.0.113.1:10000-19999/UDP"]
    assert [each.address.address[-1] for each in row.selectable] == [2]


def test_a_failed_check_of_the_target_port_quarantines_the_backend_of_the_range() -> None:
    check = BackendCheck(ProbeSpec(kind=ProbeKind.TCP))
    watched = Watched()
    watched.put(service(health_check=check), piece(1, 2, 3))
    failed = L3n4Addr(bytes((10, 244, 0, 2)), 9000, L4Type.UDP)
    watched.put(FailedChecks("d/voip", frozenset((failed,))))
    row = watched.rows()["203.0.113.1:10000-19999/UDP"]
    assert [each.address.address[-1] for each in row.selectable] == [1, 3]
    assert [(each.address.port, each.state) for each in row.unselectable] == [(0, BackendState.QUARANTINED)]
    ((_, checked),) = watched.resolver.checked.items()
    assert {address.port for address, _ in checked.backends} == {9000}, "port 0 is no place to probe"


def test_a_state_for_port_0_is_that_of_the_range_alone() -> None:
    watched = Watched()
    watched.put(service(), piece(1, 2))
    watched.put(StateOverride("x", L3n4Addr(bytes((10, 244, 0, 1)), 0, L4Type.UDP), BackendState.MAINTENANCE))
    rows = watched.rows()
    assert [each.address.address[-1] for each in rows["203.0.113.1:10000-19999/UDP"].selectable] == [2]
    assert len(rows["203.0.113.1:5004/UDP"].selectable) == 2
