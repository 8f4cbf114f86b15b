"""Slices without a Service: the message suggests a Service, and ends with the cause."""

from __future__ import annotations

import pytest

from lbagent.model.address import L4Type
from lbagent.model.family import Family
from lbagent.objects.records import (
    Endpoint,
    EndpointSlice,
    ObjectChange,
    ObjectSnapshot,
    Origin,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.resolve import Options, Resolver

FILE = Origin("a.yaml", 1, 7, "folder")
API = Origin(source="kubernetes")


def service(name: str, namespace: str = "shop", origin: Origin = FILE, ignored: str = "") -> Service:
    port = ServicePort("", L4Type.TCP, 80)
    vip = bytes((10, 96, 0, len(name)))
    return Service(namespace, name, origin, ignored=ignored, families=(Family.IPV4,), cluster_ips=(vip,), ports=(port,))


def piece(name: str, namespace: str = "shop", origin: Origin = FILE) -> EndpointSlice:
    endpoint = Endpoint(bytes((10, 244, 0, 1)))
    port = SlicePort("", L4Type.TCP, 8080)
    return EndpointSlice(namespace, f"{name}-1", name, Family.IPV4, origin, (port,), (endpoint,))


def messages(*objects: Service | EndpointSlice) -> list[str]:
    resolver = Resolver(Options("n1"))
    services = {each.key: each for each in objects if isinstance(each, Service)}
    slices = {each.key: each for each in objects if isinstance(each, EndpointSlice)}
    resolver.replace(ObjectSnapshot(services, slices))
    return [str(message) for message in resolver.resolve().messages]


def test_the_name_of_the_service_is_misspelt() -> None:
    assert messages(service("frontend"), piece("fontend")) == [
        (
            "a.yaml:7: EndpointSlice shop/fontend-1: metadata.labels.kubernetes.io/service-name: there is no Service shop/fontend;"
            " did you mean Service shop/frontend (a.yaml:7), which has no slice?; its endpoints are not used"
        )
    ]


def test_the_namespace_is_not_that_of_the_service() -> None:
    assert messages(service("web"), piece("web", "default")) == [
        (
            "a.yaml:7: EndpointSlice default/web-1: metadata.namespace: there is no Service default/web;"
            " did you mean Service shop/web (a.yaml:7), which has no slice?; its endpoints are not used"
        )
    ]


@pytest.mark.parametrize(
    "objects",
    [
        (service("web"), piece("db")),  # a slice without a Service is no error
        (service("shard-1"), piece("shard-2")),
        (service("frontend"), piece("frontend"), piece("fontend")),  # the Service has its own slice
        (service("frontend", ignored="headless"), piece("fontend")),
        (service("frontend"), piece("fontend", origin=API)),  # another controller's
        (piece("fontend"),),
    ],
)
def test_what_is_no_mistake(objects: tuple[Service | EndpointSlice, ...]) -> None:
    assert messages(*objects) == []


def test_the_message_ends_with_its_cause() -> None:
    """It ends by each possible change, and returns with the cause."""
    resolver = Resolver(Options("n1"))

    def after(old: Service | EndpointSlice | None, new: Service | EndpointSlice | None) -> int:
        obj = new or old
        kind = "Service" if isinstance(obj, Service) else "EndpointSlice"
        resolver.update([ObjectChange(kind, obj.key, old, new)])
        return len(resolver.resolve().messages)

    web, wrong, right = service("frontend"), piece("fontend"), piece("frontend")
    other = service("fontend")
    assert after(None, wrong) == 0
    assert after(None, web) == 1
    assert after(None, right) == 0  # the Service has a slice now
    assert after(right, None) == 1
    assert after(None, other) == 0  # the Service that the slice names is there now; "frontend" is empty and in order
    assert after(other, None) == 1
    assert after(web, None) == 0
    assert after(None, web) == 1
    assert after(wrong, None) == 0
