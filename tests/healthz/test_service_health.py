"""Rule A8, healthCheckNodePort: from Service and EndpointSlices to the answers for a balancer."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from lbagent.healthz.service_health import ServiceHealthServers
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.objects.decode.decode_object import decode_object
from lbagent.objects.object_event import ObjectEvent
from lbagent.objects.records import ObjectChange, Origin
from lbagent.resolve import Options, Resolver
from tests.healthz.asking import ask
from tests.lab.ports import own_port

LOOPBACK = bytes((127, 0, 0, 1))
WEIGHT = "X-Load-Balancing-Endpoint-Weight"


@pytest.fixture
def port() -> int:
    return own_port()


def service(port: int, name: str = "web", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port,
            "clusterIPs": ["10.96.0.1" if name == "web" else "10.96.0.2"],
            "ports": [{"name": "http", "port": 80}, {"name": "admin", "port": 81}],
        } | spec,
    }  # fmt: skip


def endpoint(address: str, node: str = "n1", **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "nodeName": node, "conditions": conditions}


def endpoint_slice(*endpoints: dict[str, Any], name: str = "web", number: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": f"{name}-{number}", "namespace": "shop", "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": "http", "port": 8080}, {"name": "admin", "port": 8081}], "endpoints": list(endpoints),
    }  # fmt: skip


class Node:
    """A node that resolves objects and opens the resulting ports."""

    def __init__(self) -> None:
        self.healthy = True
        self.addresses = [LOOPBACK]
        self.events: list[ObjectEvent] = []
        self.servers = ServiceHealthServers(lambda: self.healthy, lambda: list(self.addresses), [self.events.append])
        self.resolver = Resolver(Options("n1"))
        self.known: dict[tuple[str, str], Any] = {}
        self.state = State()

    async def see(self, *documents: dict[str, Any], gone: Iterable[dict[str, Any]] = ()) -> None:
        for document, is_gone in [*((each, False) for each in documents), *((each, True) for each in gone)]:
            found = decode_object(document, Origin())
            key = (found.kind, found.key)
            new = None if is_gone else found.obj
            self.resolver.update([ObjectChange(*key, self.known.get(key), new)])
            self.known[key] = new
        self.state = self.resolver.resolve().state
        await self.servers.update(self.state)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    yield node
    await node.servers.close()


async def test_a8_body_headers_and_status(node: Node, port: int) -> None:
    await node.see(service(port), endpoint_slice(endpoint("10.244.1.1"), endpoint("10.244.2.1", "n2")))
    for path in ("/", "/healthz", "/anything?x=1"):
        answer = await ask(port, path)
        assert answer.status == 200
        assert answer.headers[WEIGHT] == "1"
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.body == {
            "service": {"namespace": "shop", "name": "web"}, "localEndpoints": 1, "serviceProxyHealthy": True,
        }  # fmt: skip
    await node.see(endpoint_slice(endpoint("10.244.2.1", "n2")))
    answer = await ask(port)
    assert (answer.status, answer.headers[WEIGHT], answer.body["localEndpoints"]) == (503, "0", 0)


@pytest.mark.parametrize("status", [200, 503])
async def test_a8_any_method_is_answered_as_get_and_head_without_a_body(node: Node, port: int, status: int) -> None:
    """kube-proxy's handler ignores the method; HAProxy's httpchk uses OPTIONS."""
    await node.see(service(port), endpoint_slice(endpoint("10.244.0.2", ready=status == 200)))
    got = await ask(port)
    assert (got.status, len(got.text) > 0) == (status, True)
    for method in ("OPTIONS", "POST", "PUT", "DELETE", "PROPFIND"):
        found = await ask(port, method=method)
        assert (found.status, found.headers, found.text) == (got.status, got.headers, got.text), method
    head = await ask(port, method="HEAD")
    assert (head.status, head.headers, head.text) == (got.status, got.headers, "")
    assert head.headers["Content-Length"] == str(len(got.text))


async def test_a8_an_address_counts_once_over_ports_and_slices(node: Node, port: int) -> None:
    one, two = endpoint("10.244.1.1"), endpoint("10.244.1.2")
    await node.see(service(port), endpoint_slice(one, two), endpoint_slice(one, number=2))
    assert (await ask(port)).headers[WEIGHT] == "2"


async def test_a8_terminating_endpoints_do_not_count(node: Node, port: int) -> None:
    """They still accept connections (KEP-1669): the balancer must not send new ones."""
    going = endpoint("10.244.1.1", ready=False, serving=True, terminating=True)
    await node.see(service(port), endpoint_slice(going))
    outside = [svc for svc in node.state.services if svc.port_name == "http"]
    assert outside[0].selectable, "the fallback serves"
    answer = await ask(port)
    assert (answer.status, answer.headers[WEIGHT]) == (503, "0")


async def test_a8_a_terminating_endpoint_that_another_service_shows_as_ready_does_not_count(
    node: Node, port: int
) -> None:
    going = endpoint("10.244.1.1", ready=False, serving=True, terminating=True)
    other = service(0, "all", type="ClusterIP", externalTrafficPolicy=None, healthCheckNodePort=None)
    ready = endpoint_slice(endpoint("10.244.1.1", ready=True, terminating=True), name="all")
    await node.see(service(port), endpoint_slice(going), other, ready)
    assert (await ask(port)).headers[WEIGHT] == "0"


async def test_a8_an_unhealthy_proxy_is_503(node: Node, port: int) -> None:
    await node.see(service(port), endpoint_slice(endpoint("10.244.1.1")))
    node.healthy = False
    answer = await ask(port)
    assert answer.status == 503
    assert answer.body["serviceProxyHealthy"] is False
    assert answer.headers[WEIGHT] == "1"


@pytest.mark.parametrize(
    "spec",
    [{"type": "NodePort"}, {"type": "ClusterIP"}, {"externalTrafficPolicy": "Cluster"}, {"healthCheckNodePort": None}],
    ids=str,
)
async def test_a8_only_a_load_balancer_with_the_local_policy(node: Node, port: int, spec: dict[str, Any]) -> None:
    await node.see(service(port, **spec), endpoint_slice(endpoint("10.244.1.1")))
    with pytest.raises(ConnectionRefusedError):
        await ask(port)


async def test_a8_the_port_is_open_before_the_balancer_has_an_address(node: Node, port: int) -> None:
    await node.see(service(port))
    assert (await ask(port)).status == 503


async def test_a8_the_port_closes_with_the_service_and_with_its_policy(node: Node, port: int) -> None:
    await node.see(service(port))
    await node.see(service(port, externalTrafficPolicy="Cluster"))
    with pytest.raises(ConnectionRefusedError):
        await ask(port)
    await node.see(service(port))
    assert (await ask(port)).status == 503
    await node.see(gone=[service(port)])
    with pytest.raises(ConnectionRefusedError):
        await ask(port)


async def test_a8_a_port_goes_from_one_service_to_another_in_one_change(node: Node, port: int) -> None:
    await node.see(service(port), endpoint_slice(endpoint("10.244.1.1")))
    await node.see(service(port, "new"), gone=[service(port)])
    assert (await ask(port)).body["service"]["name"] == "new"
    assert not list(node.servers.problems())


async def test_a8_two_services_exchange_their_ports_in_one_change(node: Node, port: int) -> None:
    second = own_port()
    await node.see(service(port), service(second, "new"))
    await node.see(service(second), service(port, "new"))
    assert not list(node.servers.problems())
    assert [(await ask(number)).body["service"]["name"] for number in (port, second)] == ["new", "web"]


async def test_a8_a_port_that_is_taken_is_named_and_tried_again(
    node: Node, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", port)):
        await node.see(service(port), endpoint_slice(endpoint("10.244.1.1")))
        ((name, address, why),) = node.servers.problems()
        assert (str(name), str(address), why) == ("shop/web", f"127.0.0.1:{port}", "Address already in use")
        await node.servers.update(node.state)
        assert [record.message for record in caplog.records] == ["a health check node port could not be opened"]
        (event,) = node.events
        assert (event.kind, event.key, event.reason) == ("Service", "shop/web", "FailedToStartServiceHealthcheck")
        assert f"127.0.0.1:{port}: Address already in use" in event.text
    await node.servers.update(node.state)
    assert not list(node.servers.problems())
    assert len(node.events) == 1
    assert (await ask(port)).status == 200


async def test_a8_it_listens_on_the_chosen_addresses_alone(node: Node, port: int) -> None:
    other = bytes((127, 0, 0, 2))
    await node.see(service(port), endpoint_slice(endpoint("10.244.1.1")))
    with pytest.raises(ConnectionRefusedError):
        await ask(port, host="127.0.0.2")
    node.addresses = [other]
    await node.servers.update(node.state)
    assert (await ask(port, host="127.0.0.2")).status == 200
    with pytest.raises(ConnectionRefusedError):
        await ask(port)
    node.addresses = [family.unspecified for family in Family]
    await node.servers.update(node.state)
    assert (await ask(port)).status == 200


async def test_a8_families_count_for_themselves(node: Node, port: int) -> None:
    node.addresses = [family.unspecified for family in Family]
    six = endpoint_slice(endpoint("fd00::1"), endpoint("fd00::2"), number=6) | {"addressType": "IPv6"}
    await node.see(service(port, clusterIPs=["10.96.0.1", "fd00:96::1"]), endpoint_slice(endpoint("10.244.1.1")), six)
    assert (await ask(port)).headers[WEIGHT] == "1"
    assert (await ask(port, host="::1")).headers[WEIGHT] == "2"
