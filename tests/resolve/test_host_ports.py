"""Frontends of HostPorts: which Pods have some, their contents, and no ids from resolve."""

from __future__ import annotations

from typing import Any

import pytest

from lbagent.model.address import L4Type
from lbagent.model.backend import BackendState
from lbagent.objects.records import (
    Endpoint,
    EndpointSlice,
    HostPort,
    ObjectChange,
    Pod,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.resolve import Options, Resolver
from lbagent.resolve.host_ports import is_relevant
from tests.objects.kinds import kind_of

NODE_IP, POD_IP, VIP = bytes((192, 0, 2, 1)), bytes((10, 244, 0, 1)), bytes((10, 96, 0, 1))


def resolved(*objects: Any, node: str = "n1"):  # type: ignore[no-untyped-def]
    resolver = Resolver(Options(node, (NODE_IP,)))
    resolver.update([ObjectChange(kind_of(obj), obj.key, None, obj) for obj in objects])
    return resolver.resolve().state


def pod(**more: Any) -> Pod:
    given = {"node": "n1", "ips": (POD_IP,), "host_ports": (HostPort(7000, 8080, L4Type.TCP),)} | more
    return Pod("d", "p", **given)


def frontends(state) -> list[str]:  # type: ignore[no-untyped-def]
    return [str(svc.frontend) for svc in state.services]


def test_a_pod_of_this_node_has_a_row_for_each_of_its_host_ports() -> None:
    state = resolved(pod())
    assert "192.0.2.1:7000" in frontends(state)
    svc = next(svc for svc in state.services if str(svc.frontend) == "192.0.2.1:7000")
    (backend,) = svc.selectable
    assert (str(backend.address), backend.id, backend.weight, backend.local) == ("10.244.0.1:8080", 0, 100, True)
    assert backend.state is BackendState.ACTIVE
    assert not svc.loopback_hostport


@pytest.mark.parametrize(
    "more", [{"finished": True}, {"host_network": True}, {"node": "n2"}, {"node": ""}, {"host_ports": ()}]
)
def test_other_pods_have_none(more: dict[str, Any]) -> None:
    assert frontends(resolved(pod(**more))) == []
    assert is_relevant(pod(), "n1")
    assert not is_relevant(pod(**more), "n1")


def test_a_node_without_a_name_has_no_pods() -> None:
    assert frontends(resolved(pod(node=""), node="")) == []


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        (bytes((127, 0, 0, 1)), True),
        (bytes((127, 9, 9, 9)), True),
        (bytes((10, 127, 0, 1)), False),
        (bytes(15) + b"\1", True),
        (b"\xfd" + bytes(14) + b"\1", False),
    ],
)
def test_a_host_port_may_be_of_the_loopback_alone(address: bytes, loopback: bool) -> None:
    ip = POD_IP if len(address) == 4 else b"\xfd" + bytes(14) + b"\7"
    state = resolved(pod(ips=(ip,), host_ports=(HostPort(7000, 8080, L4Type.TCP, address),)))
    assert {svc.loopback_hostport for svc in state.services if svc.frontend.port == 7000} == {loopback}


@pytest.mark.parametrize(("given", "weight"), [(None, 100), (0, 0), (7, 7)])
def test_the_weight_of_a_pod_is_that_of_its_row(given: int | None, weight: int) -> None:
    state = resolved(pod(weight=given))
    assert {backend.weight for backend in state.backends.values()} == {weight}


def web(*endpoints: Endpoint) -> tuple[Service, EndpointSlice]:
    port = ServicePort("http", L4Type.TCP, 80)
    return (
        Service("d", "web", families=(4,), cluster_ips=(VIP,), ports=(port,)),  # type: ignore[arg-type]
        EndpointSlice("d", "web-1", "web", 4, ports=(SlicePort("http", L4Type.TCP, 8080),), endpoints=endpoints),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("node", "here", "local"), [("n1", "n1", True), ("n2", "n1", False), ("", "n1", False), ("", "", False)]
)
def test_an_endpoint_is_local_on_the_node_it_names(node: str, here: str, local: bool) -> None:
    state = resolved(*web(Endpoint(POD_IP, node=node)), node=here)
    (backend,) = state.backends.values()
    assert (backend.local, backend.id) == (local, 0)


def test_a_service_and_a_pod_share_the_state_of_a_backend() -> None:
    """It terminates in the Service's slice, but not in the Pod."""
    service, piece = web(Endpoint(POD_IP, node="n1", ready=False, serving=True, terminating=True))
    state = resolved(service, piece, pod())
    assert {backend.state for svc in state.services for backend in svc.backends} == {BackendState.ACTIVE}
    resolver = Resolver(Options("n1", (NODE_IP,)))
    resolver.update([ObjectChange(kind_of(obj), obj.key, None, obj) for obj in (pod(), service, piece)])
    resolver.resolve()
    resolver.update([ObjectChange("Pod", "d/p", pod(), pod(terminating=True))])
    later = resolver.resolve().state
    assert {backend.state for svc in later.services for backend in svc.backends} == {BackendState.TERMINATING}
    resolver.update([ObjectChange("EndpointSlice", piece.key, piece, None)])
    assert resolver.resolve().state.by_name.keys() == later.by_name.keys()


def test_a_pod_that_is_gone_shares_no_state_any_more() -> None:
    service, piece = web(Endpoint(POD_IP, node="n1", ready=False, serving=True, terminating=True))
    resolver = Resolver(Options("n1", (NODE_IP,)))
    resolver.update([ObjectChange(kind_of(obj), obj.key, None, obj) for obj in (pod(), service, piece)])
    assert {backend.state for backend in resolver.resolve().state.backends.values()} == {BackendState.ACTIVE}
    resolver.update([ObjectChange("Pod", "d/p", pod(), None)])
    assert {backend.state for backend in resolver.resolve().state.backends.values()} == {BackendState.TERMINATING}


# --- which addresses, and whose they are ---

POD6, NODE6 = b"\xfd" + bytes(14) + b"\7", b"\xfd\1" + bytes(13) + b"\1"


def rows_of(*pods: Pod) -> tuple[dict[str, list[str]], list[str]]:
    """Return the backends of each frontend, a dual-stack node's, and the messages."""
    resolver = Resolver(Options("n1", (NODE_IP, NODE6)))
    resolver.update([ObjectChange("Pod", each.key, None, each) for each in pods])
    found = resolver.resolve()
    rows = {str(svc.frontend): [backend.address.ip for backend in svc.backends] for svc in found.state.services}
    return rows, [str(message) for message in found.messages]


@pytest.mark.parametrize(
    ("host_ip", "wanted"),
    [
        (None, ["0.0.0.0:7000", "192.0.2.1:7000", "[::]:7000", "[fd01::1]:7000"]),
        (bytes(4), ["0.0.0.0:7000", "192.0.2.1:7000"]),
        (bytes(16), ["[::]:7000", "[fd01::1]:7000"]),
        (NODE_IP, ["192.0.2.1:7000"]),
        (NODE6, ["[fd01::1]:7000"]),
    ],
)
def test_the_addresses_of_a_host_port(host_ip: bytes | None, wanted: list[str]) -> None:
    """An unspecified hostIP means every address of its family."""
    ports = (HostPort(7000, 8080, L4Type.TCP, host_ip),)
    rows, messages = rows_of(pod(ips=(POD_IP, POD6), host_ports=ports))
    assert (list(rows), messages) == (wanted, [])
    assert all(backends == [("fd00::7" if "[" in frontend else "10.244.0.1")] for frontend, backends in rows.items())


@pytest.mark.parametrize("host_ip", [bytes(16), NODE6])
def test_a_host_port_needs_a_pod_of_its_family(host_ip: bytes) -> None:
    assert rows_of(pod(host_ports=(HostPort(7000, 8080, L4Type.TCP, host_ip),))) == ({}, [])


def rival(name: str, host: int, created: float, **more: Any) -> Pod:
    ports = (HostPort(7000, 8080, L4Type.TCP),)
    given = {"node": "n1", "ips": (bytes((10, 244, 0, host)),), "host_ports": ports, "created": created} | more
    return Pod("d", name, **given)


def test_the_older_of_two_pods_has_a_host_port() -> None:
    """One without a time counts as the youngest; a lost frontend is reported once, not for each address."""
    lost = "spec.containers.ports.hostPort: 0.0.0.0:7000/TCP is held by the older Pod d/b; the other frontends stay"
    rows, messages = rows_of(rival("a", 1, 0.0), rival("b", 2, 5.0), rival("c", 3, 9.0))
    assert rows == {"0.0.0.0:7000": ["10.244.0.2"], "192.0.2.1:7000": ["10.244.0.2"]}
    assert sorted(messages) == [f"Pod d/a: {lost}", f"Pod d/c: {lost}"]


@pytest.mark.parametrize("created", [0.0, 5.0])
def test_of_two_pods_of_one_age_the_name_decides_and_the_message_says_so(created: float) -> None:
    rows, (message,) = rows_of(rival("b", 2, created), rival("a", 1, created))
    assert rows["192.0.2.1:7000"] == ["10.244.0.1"]
    assert message.startswith(
        "Pod d/b: spec.containers.ports.hostPort: 0.0.0.0:7000/TCP is held by Pod d/a, which is of the"
    )


def test_a_terminating_pod_keeps_its_flows_beside_a_new_one() -> None:
    rows, messages = rows_of(rival("a", 1, 1.0, terminating=True), rival("b", 2, 5.0))
    assert rows == {"0.0.0.0:7000": ["10.244.0.2", "10.244.0.1"], "192.0.2.1:7000": ["10.244.0.2", "10.244.0.1"]}
    assert messages == []


def test_a_pod_is_no_rival_of_itself() -> None:
    ports = (HostPort(7000, 8080, L4Type.TCP, NODE_IP), HostPort(7000, 8081, L4Type.TCP, NODE_IP))
    _, messages = rows_of(rival("a", 1, 1.0, host_ports=ports))
    assert messages == []


def test_only_the_address_of_the_node_is_routable() -> None:
    state = resolved(pod())
    assert {str(svc.frontend): str(svc.flags) for svc in state.services} == {
        "0.0.0.0:7000": "HostPort, non-routable",
        "192.0.2.1:7000": "HostPort",
    }
    loopback = resolved(pod(host_ports=(HostPort(7000, 8080, L4Type.TCP, bytes((127, 0, 0, 1))),)))
    assert [str(svc.flags) for svc in loopback.services] == ["HostPort, non-routable, loopback"]
