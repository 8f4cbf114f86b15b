"""The calls that a renderer of Services gets: which, in which order, with what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import Backend
from lbagent.model.service import SVC, ServiceName, SVCTrafficPolicy, SVCType
from lbagent.model.state import State
from lbagent.sync.target_protocol import ObjectFacts
from lbagent.targets.resolved_service import (
    ResolvedService,
    ServiceBackend,
    ServicePort,
    TrafficPolicy,
    resolved_service,
)
from lbagent.targets.service_calls import ServiceCalls

NODE = bytes((10, 0, 0, 1))


def frontend(address: int, port: int = 80) -> L3n4Addr:
    return L3n4Addr(bytes((10, 96, 0, address)), port, L4Type.TCP)


def backend(host: int, *, local: bool = False) -> Backend:
    return Backend(host, L3n4Addr(bytes((10, 1, 0, host)), 8080, L4Type.TCP), local=local)


def row(name: str, address: int, hosts: Sequence[int] = (), **more: Any) -> SVC:
    more.setdefault("port_name", "http")
    port = more.pop("port", 80)
    return SVC(frontend(address, port), 0, ServiceName("t", name), selectable=tuple(map(backend, hosts)), **more)


def state(*rows: SVC) -> State:
    return State(1, rows)


def facts(*names: str, node: bytes = NODE) -> ObjectFacts:
    return ObjectFacts((node,), frozenset(), frozenset(f"t/{name}" for name in names))


def brief(calls: Sequence[Any]) -> list[tuple[str, str]]:
    return [(call["call"], call["service"].id if "service" in call else "") for call in calls]


def test_a_resync_is_first_and_holds_every_complete_service() -> None:
    calls = ServiceCalls().to(state(row("a", 1, [5]), row("b", 2), row("c", 3)), facts("a", "b"))
    assert brief(calls) == [("resync", "")]
    assert [service.id for service in calls[0]["services"]] == ["t/a", "t/b"]  # c has no slice
    assert calls[0]["node_ips"] == ("10.0.0.1",)


def test_a_service_is_added_when_both_objects_are_there_and_deleted_when_either_goes() -> None:
    calls, both = ServiceCalls(), state(row("a", 1, [5]))
    assert brief(calls.to(state(), facts())) == [("resync", "")]
    assert calls.to(both, facts()) == [], "no slice yet"
    assert brief(calls.to(both, facts("a"))) == [("add_service", "t/a")]
    assert calls.to(both, facts("a")) == []
    assert brief(calls.to(state(row("a", 1)), facts())) == [("delete_service", "t/a")], "the slice went"
    assert brief(calls.to(both, facts("a"))) == [("add_service", "t/a")]
    assert brief(calls.to(state(), facts("a"))) == [("delete_service", "t/a")], "the Service went"


def test_an_update_has_old_and_new_and_the_others() -> None:
    calls = ServiceCalls()
    calls.to(state(row("a", 1, [5]), row("b", 2, [6]), row("c", 3, [7])), facts("a", "b", "c"))
    (update,) = calls.to(state(row("a", 1, [5]), row("b", 2, [6, 8]), row("c", 3, [7])), facts("a", "b", "c"))
    assert (update["call"], update["others"]) == ("update_service", ["t/a", "t/c"])
    ips = [[item.ip for item in update[key].backends["http"]] for key in ("old", "service")]
    assert ips == [["10.1.0.6"], ["10.1.0.6", "10.1.0.8"]]


def test_deletes_come_before_updates_and_adds() -> None:
    """An address may go from one Service to another in one change."""
    calls = ServiceCalls()
    calls.to(state(row("a", 1, [5]), row("b", 2, [6])), facts("a", "b"))
    found = calls.to(state(row("b", 2, [7]), row("c", 1, [5])), facts("b", "c"))
    assert brief(found) == [("delete_service", "t/a"), ("update_service", "t/b"), ("add_service", "t/c")]
    assert found[0]["others"] == ["t/b", "t/c"]


def test_a_change_of_node_addresses_or_node_ports_alone() -> None:
    def with_node_port(number: int) -> State:
        node_port = row("b", 9, [6], type=SVCType.NODE_PORT, port=number)
        return state(row("a", 1, [5]), row("b", 2, [6]), node_port)

    calls, names = ServiceCalls(), ("a", "b")
    calls.to(with_node_port(30080), facts(*names))
    (moved,) = calls.to(with_node_port(30080), facts(*names, node=bytes((10, 0, 0, 2))))
    assert (moved["call"], moved["node_ips"]) == ("update_node_port_services", ("10.0.0.2",))
    assert [(each.id, each.ports["http"].node_port) for each in moved["services"]] == [("t/b", 30080)]
    (renumbered,) = calls.to(with_node_port(30081), facts(*names, node=bytes((10, 0, 0, 2))))
    assert renumbered["call"] == "update_node_port_services"
    assert [each.ports["http"].node_port for each in renumbered["services"]] == [30081]


def test_after_a_failure_comes_a_resync() -> None:
    calls = ServiceCalls()
    calls.to(state(row("a", 1, [5])), facts("a"))
    calls.forget()
    (resync,) = calls.to(state(row("a", 1, [6])), facts("a"))
    assert resync["call"] == "resync"
    assert [service.backends["http"][0].ip for service in resync["services"]] == ["10.1.0.6"]


def test_what_a_resolved_service_holds() -> None:
    rows = (
        row("a", 1, [5, 6], session_affinity=True),
        row("a", 2, [5], type=SVCType.LOAD_BALANCER, ext_traffic_policy=SVCTrafficPolicy.LOCAL),
        row("a", 3, [5], type=SVCType.EXTERNAL_IPS),
        row("a", 9, [5], type=SVCType.NODE_PORT, port=30080),
        row("a", 1, wildcard=True, port=0, port_name=""),
        row("a", 8, [5], type=SVCType.HOST_PORT, port=99),
    )
    found = resolved_service("t/a", rows, {bytes((10, 1, 0, 6))})
    assert found == ResolvedService(
        "t/a", TrafficPolicy.NODE_LOCAL, 10800, ("10.96.0.1",), ("10.96.0.2", "10.96.0.3"),
        {"http": ServicePort(L4Type.TCP, 80, 30080)},
        {"http": (ServiceBackend("10.1.0.5", 8080, False, False), ServiceBackend("10.1.0.6", 8080, False, True))},
    )  # fmt: skip
    assert found.has_node_port
    assert str(found.ports["http"]) == "80:30080/TCP"
    assert str(ServicePort(L4Type.UDP, 53)) == "53/UDP"
    assert str(found.backends["http"][0]) == "<IP:10.1.0.5 Port:8080, Local:false>"
    assert resolved_service("t/pod", rows[-1:], ()) is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=ResolvedService) == found
    assert msgspec.to_builtins(found) == {
        "id": "t/a", "traffic_policy": "node-local", "session_affinity_timeout_s": 10800,
        "cluster_ips": ("10.96.0.1",), "external_ips": ("10.96.0.2", "10.96.0.3"),
        "ports": {"http": {"protocol": "TCP", "port": 80, "node_port": 30080}},
        "backends": {"http": (
            {"ip": "10.1.0.5", "port": 8080, "local": False, "host_network": False},
            {"ip": "10.1.0.6", "port": 8080, "local": False, "host_network": True},
        )},
    }  # fmt: skip
