"""The calls that a renderer of Services gets: which, in which order, with what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.backend import Backend
from lbagent.model.family import Family
from lbagent.model.service import CIDR, SVC, ServiceName, SVCTrafficPolicy, SVCType
from lbagent.model.state import State
from lbagent.render.renderer_types import (
    Interfaces,
    IPAddresses,
    ProtocolType,
    ResolvedService,
    ServiceBackend,
    ServicePort,
    TrafficPolicy,
)
from lbagent.render.service_calls import (
    Call,
    Resync,
    ServiceCalls,
    Surroundings,
    UpdateLocalBackendIfs,
    UpdateLocalFrontendIfs,
    UpdateNodePortServices,
    UpdateService,
    View,
)
from lbagent.render.service_of_rows import resolved_service
from lbagent.sync.target_protocol import ObjectFacts

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


def brief(calls: Sequence[Call]) -> list[tuple[str, str]]:
    return [(call.name, call.service.id if hasattr(call, "service") else "") for call in calls]


def test_a_resync_is_first_and_holds_every_complete_service() -> None:
    calls = ServiceCalls().to(state(row("a", 1, [5]), row("b", 2), row("c", 3)), facts("a", "b"))
    assert brief(calls) == [("resync", "")]
    (resync,) = calls
    assert isinstance(resync, Resync)
    assert [service.id for service in resync.snapshot.services] == ["t/a", "t/b"]  # c has no slice
    assert resync.snapshot.node_ips == IPAddresses("10.0.0.1")


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
    assert isinstance(update, UpdateService)
    assert (update.to_json()["call"], update.to_json()["others"]) == ("update_service", ["t/a", "t/c"])
    assert [other.id for other in update.others] == ["t/a", "t/c"]
    assert (len(update.others), update.others[-1].id) == (2, "t/c")
    ips = [[item.ip for item in each.backends["http"]] for each in (update.old, update.service)]
    assert ips == [["10.1.0.6"], ["10.1.0.6", "10.1.0.8"]]


def test_deletes_come_before_updates_and_adds() -> None:
    """An address may go from one Service to another in one change."""
    calls = ServiceCalls()
    calls.to(state(row("a", 1, [5]), row("b", 2, [6])), facts("a", "b"))
    found = calls.to(state(row("b", 2, [7]), row("c", 1, [5])), facts("b", "c"))
    assert brief(found) == [("delete_service", "t/a"), ("update_service", "t/b"), ("add_service", "t/c")]
    assert found[0].to_json()["others"] == ["t/b", "t/c"]


def test_a_change_of_node_addresses_or_node_ports_alone() -> None:
    def with_node_port(number: int) -> State:
        node_port = row("b", 9, [6], type=SVCType.NODE_PORT, port=number)
        return state(row("a", 1, [5]), row("b", 2, [6]), node_port)

    calls, names = ServiceCalls(), ("a", "b")
    calls.to(with_node_port(30080), facts(*names))
    (moved,) = calls.to(with_node_port(30080), facts(*names, node=bytes((10, 0, 0, 2))))
    assert isinstance(moved, UpdateNodePortServices)
    assert (moved.name, moved.node_ips) == ("update_node_port_services", IPAddresses("10.0.0.2"))
    assert [(each.id, each.ports["http"].node_port) for each in moved.services] == [("t/b", 30080)]
    (renumbered,) = calls.to(with_node_port(30081), facts(*names, node=bytes((10, 0, 0, 2))))
    assert isinstance(renumbered, UpdateNodePortServices)
    assert [each.ports["http"].node_port for each in renumbered.services] == [30081]


def test_after_a_failure_comes_a_resync() -> None:
    calls = ServiceCalls()
    calls.to(state(row("a", 1, [5])), facts("a"))
    calls.forget()
    (resync,) = calls.to(state(row("a", 1, [6])), facts("a"))
    assert isinstance(resync, Resync)
    assert [service.backends["http"][0].ip for service in resync.snapshot.services] == ["10.1.0.6"]


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
        "t/a", TrafficPolicy.NODE_LOCAL, 10800, IPAddresses("10.96.0.1"), IPAddresses("10.96.0.2", "10.96.0.3"),
        {"http": ServicePort(ProtocolType.TCP, 80, 30080)},
        {"http": (ServiceBackend("10.1.0.5", 8080, False, False), ServiceBackend("10.1.0.6", 8080, False, True))},
    )  # fmt: skip
    assert found.has_node_port()
    assert found.svcs == rows[:-1]
    assert str(found.ports["http"]) == "80:30080/TCP"
    assert str(ServicePort(ProtocolType.UDP, 53)) == "53/UDP"
    assert str(found.backends["http"][0]) == "<IP:10.1.0.5 Port:8080, Local:false>"
    assert resolved_service("t/pod", rows[-1:], ()) is None
    assert ResolvedService.from_json(msgspec.json.decode(msgspec.json.encode(found.to_json()))) == found
    assert found.to_json() == {
        "id": "t/a", "traffic_policy": "node-local", "session_affinity_timeout_s": 10800,
        "cluster_ips": ["10.96.0.1"], "external_ips": ["10.96.0.2", "10.96.0.3"],
        "ports": {"http": {"protocol": "TCP", "port": 80, "node_port": 30080}},
        "backends": {"http": [
            {"ip": "10.1.0.5", "port": 8080, "local": False, "host_network": False},
            {"ip": "10.1.0.6", "port": 8080, "local": False, "host_network": True},
        ]},
    }  # fmt: skip


def local_row(name: str, address: int, *hosts: int) -> SVC:
    made = row(name, address)
    return replace(made, selectable=tuple(backend(host, local=True) for host in hosts))


def test_a_change_of_rows_alone_is_an_update() -> None:
    """Source ranges and weights are in the rows, and in no field of the service."""
    calls = ServiceCalls()
    calls.to(state(row("a", 1, [5])), facts("a"))
    (update,) = calls.to(state(row("a", 1, [5], source_ranges=(CIDR.parse("10.0.0.0/8"),))), facts("a"))
    assert isinstance(update, UpdateService)
    assert update.old == update.service
    assert [svc.source_ranges for svc in update.service.svcs] == [(CIDR.parse("10.0.0.0/8"),)]


def test_the_interfaces_of_local_pods_follow_the_services() -> None:
    devices = {"10.1.0.5": "veth5", "10.1.0.6": "veth6"}
    around = Surroundings(Interfaces("eth0"), lambda address: devices.get(address, ""))
    calls = ServiceCalls()
    first = state(local_row("a", 1, 5), local_row("b", 2, 5), row("c", 3, [9]))
    (resync,) = calls.to(first, facts("a", "b", "c"), around)
    assert isinstance(resync, Resync)
    assert (resync.snapshot.frontend_ifs, resync.snapshot.backend_ifs) == (Interfaces("eth0"), Interfaces("veth5"))
    update, ifs = calls.to(state(local_row("a", 1, 6, 7), local_row("b", 2, 5)), facts("a", "b"), around)[1:]
    assert update.name == "update_service"
    assert ifs == UpdateLocalBackendIfs(Interfaces("veth5"), Interfaces("veth5", "veth6"))
    found = calls.to(state(local_row("a", 1, 6)), facts("a"), around)
    assert found[-1] == UpdateLocalBackendIfs(Interfaces("veth5", "veth6"), Interfaces("veth6"))
    around = Surroundings(Interfaces("eth0", "eth1"), around.device_of)
    assert calls.to(state(local_row("a", 1, 6)), facts("a"), around) == [
        UpdateLocalFrontendIfs(Interfaces("eth0"), Interfaces("eth0", "eth1"))
    ]
    assert [call.name for call in calls.to(state(), facts(), around)] == ["delete_service", "update_local_backend_ifs"]


def test_a_renderer_of_one_family_gets_no_other_frontend() -> None:
    six = SVC(L3n4Addr("2001:db8::1", 80), 0, ServiceName("t", "a"), port_name="http")
    only_six = SVC(L3n4Addr("2001:db8::2", 80), 0, ServiceName("t", "b"), port_name="http")
    both = ObjectFacts((NODE, parse_ip("2001:db8::9")), frozenset(), frozenset({"t/a", "t/b"}))
    found = {}
    for family in Family:
        (resync,) = ServiceCalls(View(family=family)).to(state(row("a", 1, [5]), six, only_six), both)
        assert isinstance(resync, Resync)
        found[family] = resync.snapshot
    assert [service.cluster_ips.list() for service in found[Family.IPV4].services] == [["10.96.0.1"]]
    assert [service.id for service in found[Family.IPV6].services] == ["t/a", "t/b"]
    assert found[Family.IPV6].node_ips == IPAddresses("2001:db8::9")


def test_a_renderer_that_needs_the_nodes_gets_the_addresses_of_all() -> None:
    all_nodes = ObjectFacts((NODE,), frozenset({NODE, bytes((10, 0, 0, 2))}), frozenset())
    calls = ServiceCalls(View(needs_nodes=True))
    (resync,) = calls.to(state(), all_nodes)
    assert isinstance(resync, Resync)
    assert resync.snapshot.node_ips.list() == ["10.0.0.1", "10.0.0.2"]
    assert ServiceCalls().to(state(), all_nodes)[0].to_json()["node_ips"] == ["10.0.0.1"]


def test_the_host_ports_of_a_pod_come_where_the_renderer_takes_them() -> None:
    pod = row("web", 8, [5], type=SVCType.HOST_PORT, port=99)
    assert ServiceCalls().to(state(pod), facts())[0].to_json()["services"] == []
    (resync,) = ServiceCalls(View(host_ports=True)).to(state(row("web", 1, [5]), pod), facts("web"))
    assert isinstance(resync, Resync)
    assert [service.id for service in resync.snapshot.services] == ["t/web", "pod:t/web"]
    assert resync.snapshot.services[1].ports == {"http": ServicePort(ProtocolType.TCP, 0, 99)}


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.sets(st.integers(1, 4), max_size=3)), max_size=6))
def test_any_way_to_a_state_makes_the_same_of_a_renderer(history: list[dict[str, set[int]]]) -> None:
    """What the calls have made true equals what a resync has."""
    calls, around = ServiceCalls(), Surroundings(Interfaces("eth0"), "veth{}".format)
    held: dict[str, ResolvedService] = {}
    for each in history:
        names = sorted(each)
        wanted = state(*(local_row(name, ord(name), *sorted(each[name])) for name in names))
        for call in calls.to(wanted, facts(*names), around):
            made = call.to_json()
            if isinstance(call, Resync):
                held = {service.id: service for service in call.snapshot.services}
            elif call.name == "delete_service":
                assert sorted(made["others"]) == sorted(calls_others(wanted, made["service"]["id"]))
                del held[made["service"]["id"]]
            elif call.name in {"add_service", "update_service"}:
                assert (made["service"]["id"] in held) == (call.name == "update_service")
                held[made["service"]["id"]] = call.service  # type: ignore[attr-defined]
        (fresh,) = ServiceCalls().to(wanted, facts(*names), around)
        assert isinstance(fresh, Resync)
        assert tuple(held[name] for name in sorted(held)) == fresh.snapshot.services
        assert calls.snapshot() == fresh.snapshot


def calls_others(wanted: State, name: str) -> list[str]:
    return [str(other) for other in wanted.by_name if str(other) != name]
