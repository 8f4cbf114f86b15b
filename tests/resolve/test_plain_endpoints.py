"""Plain endpoints have the same backends as by the whole selection, which handles all others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.model.address import L4Type
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.objects.records import Endpoint, EndpointSlice, ObjectChange, Service, ServicePort, SlicePort
from lbagent.resolve import Options, Resolver, service_builder
from lbagent.resolve.build_context import BuildContext
from lbagent.resolve.frontends import LocalNode, wanted_frontends
from lbagent.resolve.plain_endpoints import plain_endpoints
from lbagent.resolve.service_builder import ServiceBuilder

NODE = LocalNode("here", (bytes((10, 9, 0, 1)),), "a")
CONTEXT = BuildContext(NODE)
PORTS = (SlicePort("http", L4Type.TCP, 8080), SlicePort("metrics", L4Type.TCP, 9091))
SERVICE = Service(
    "default", "web", families=(Family.IPV4,), cluster_ips=(bytes((10, 96, 0, 1)),),
    ports=(ServicePort("http", L4Type.TCP, 80), ServicePort("metrics", L4Type.TCP, 90, index=1), ServicePort("other", L4Type.TCP, 91, index=2)),
)  # fmt: skip


def _endpoint(number: int, **more: Any) -> Endpoint:
    return Endpoint(bytes((10, 0, 0, number)), **more)


def _slice(*endpoints: Endpoint, **more: Any) -> EndpointSlice:
    return EndpointSlice(
        "default", more.pop("name", "web-a"), "web", Family.IPV4, ports=PORTS, endpoints=endpoints, **more
    )


def _rows(*slices: EndpointSlice) -> Any:
    return ServiceBuilder(SERVICE, slices, CONTEXT).build(wanted_frontends(SERVICE, NODE), lambda _: None)


@pytest.mark.parametrize(
    "endpoints",
    [
        (),
        (_endpoint(3, node="here", zone="a"), _endpoint(1, node="there"), _endpoint(2)),
        (_endpoint(2, serving=False), _endpoint(1, terminating=True)),  # ready: the rest does not count
        (Endpoint(bytes((10, 9, 0, 1))),),  # an address of this node
    ],
)
def test_the_rows_are_those_of_the_whole_selection(
    endpoints: tuple[Endpoint, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = _slice(*endpoints)
    assert plain_endpoints([piece], Family.IPV4, CONTEXT) is not None
    rows = _rows(piece)
    monkeypatch.setattr(service_builder, "plain_endpoints", lambda *_: None)
    assert rows == _rows(piece)
    assert len(rows[0].selectable) == len(endpoints)


@pytest.mark.parametrize(
    "slices",
    [
        [_slice(_endpoint(1), _endpoint(2, ready=False))],
        [_slice(_endpoint(1), _endpoint(2, for_zones=("a",)))],
        [_slice(_endpoint(1, for_nodes=("here",)))],
        [_slice(_endpoint(1, state=BackendState.QUARANTINED))],
        [_slice(_endpoint(1), _endpoint(1, node="here"))],
        [_slice(_endpoint(1), weight=7)],
        [_slice(_endpoint(1)), _slice(_endpoint(2), name="web-b")],
        [],
    ],
)
def test_what_is_not_plain_is_left_to_the_selection(slices: list[EndpointSlice]) -> None:
    assert plain_endpoints(slices, Family.IPV4, CONTEXT) is None


def test_weights_of_pods_are_not_plain() -> None:
    context = replace(CONTEXT, weight_of_pod=lambda pod, _address: 5 if pod == "default/p" else None)
    assert plain_endpoints([_slice(_endpoint(1))], Family.IPV4, context) is not None
    assert plain_endpoints([_slice(_endpoint(1, pod="default/p"))], Family.IPV4, context) is None


def test_endpoints_of_dead_nodes_are_not_plain() -> None:
    context = replace(CONTEXT, dead_nodes=frozenset({"n1"}))
    assert plain_endpoints([_slice(_endpoint(1, node="n2"), _endpoint(2))], Family.IPV4, context) is not None
    assert plain_endpoints([_slice(_endpoint(1, node="n1"))], Family.IPV4, context) is None


def test_a_port_that_is_named_twice_is_left_to_the_selection() -> None:
    piece = replace(_slice(_endpoint(1)), ports=(*PORTS, SlicePort("http", L4Type.TCP, 8081)))
    plain = plain_endpoints([piece], Family.IPV4, CONTEXT)
    assert plain is not None
    assert plain.backends(SERVICE.ports[0]) is None
    assert len(_rows(piece)[0].selectable) == 2


def test_backends_that_stay_are_the_same_objects_after_a_change() -> None:
    """A burst of changes uses no more memory."""
    resolver = Resolver(Options(node_name="here"))
    before = _slice(_endpoint(1), _endpoint(2), _endpoint(3))
    resolver.update(
        [ObjectChange("Service", SERVICE.key, None, SERVICE), ObjectChange("EndpointSlice", before.key, None, before)]
    )
    (old, *_) = resolver.resolve().state.services
    after = _slice(_endpoint(1), _endpoint(3, zone="b"), _endpoint(2))
    resolver.update([ObjectChange("EndpointSlice", after.key, before, after)])
    (new, *_) = resolver.resolve().state.services
    assert [backend.zone for backend in new.selectable] == ["", "", "b"]
    assert [mine is other for mine, other in zip(new.selectable, old.selectable, strict=True)] == [True, True, False]
