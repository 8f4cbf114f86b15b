"""The effect of Pods, Nodes and BackendStates on a Service: weights, addresses of the node, states; and of their changes."""

from __future__ import annotations

from typing import Any

import pytest

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.objects.records import (
    Endpoint,
    Endpoints,
    EndpointSlice,
    HostPort,
    Node,
    ObjectSnapshot,
    Origin,
    Pod,
    Service,
    ServicePort,
    SlicePort,
    StateOverride,
)
from tests.resolve.watched import Watched

VIP, NODE_IP, OTHER_IP = bytes((10, 96, 0, 1)), bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))
ONE, TWO = bytes((10, 244, 0, 1)), bytes((10, 244, 0, 2))
WEB = Service(
    "d", "web", families=(Family.IPV4,), cluster_ips=(VIP,), ports=(ServicePort("", L4Type.TCP, 80, node_port=30080),)
)


def piece(*endpoints: Endpoint, weight: int | None = None) -> EndpointSlice:
    return EndpointSlice(
        "d", "web-1", "web", Family.IPV4, ports=(SlicePort("", L4Type.TCP, 8080),), endpoints=endpoints, weight=weight
    )


def pod(name: str = "p", **more: Any) -> Pod:
    return Pod("d", name, **{"node": "n2", "ips": (ONE,)} | more)


# --- weights ---


def test_an_endpoint_has_the_weight_of_the_pod_it_names() -> None:
    """Independent of the Pod's address, and of another Pod with the endpoint's; without a weight, that of its slice."""
    named = piece(Endpoint(ONE, pod="d/p"), Endpoint(TWO, pod="d/q"), weight=100)
    watched = Watched(WEB, named, pod(weight=7, ips=()), pod("q"), pod("r", weight=9, ips=(ONE, TWO)))
    assert watched.weights() == {1: 7, 2: 100}
    watched.put(pod(weight=0, ips=()))
    assert watched.weights() == {1: 0, 2: 100}
    watched.put(pod("q", weight=3, ips=(NODE_IP,)))
    assert watched.weights() == {1: 0, 2: 3}
    watched.drop(pod())
    assert watched.weights() == {1: 100, 2: 3}


def test_a_lone_endpoint_follows_the_pod_it_names() -> None:
    watched = Watched(WEB, piece(Endpoint(ONE, pod="d/p")))
    assert watched.weights() == {1: 100}
    watched.put(pod(weight=7, ips=()))
    assert watched.weights() == {1: 7}


def test_an_endpoint_that_names_none_has_the_weight_of_the_pod_with_its_address() -> None:
    watched = Watched(WEB, piece(Endpoint(ONE), Endpoint(TWO)), pod(weight=7))
    assert watched.weights() == {1: 7, 2: 100}
    watched.put(pod(weight=7, ips=(TWO,)))
    assert watched.weights() == {1: 100, 2: 7}
    watched.put(pod("a", weight=5, ips=(TWO,)), pod("z", weight=6, ips=(TWO,)))
    assert watched.weights() == {1: 100, 2: 5}, "of several Pods the first one's"
    watched.put(pod("a", node="n1", ips=(TWO,), host_ports=(HostPort(7000, 8080, L4Type.TCP, NODE_IP),)), pod("z"))
    assert watched.weights() == {1: 100, 2: 7}
    watched.drop(pod())
    assert watched.weights() == {1: 100, 2: 100}


@pytest.mark.parametrize("more", [{"finished": True}, {"host_network": True}])
def test_a_pod_without_an_address_of_its_own_gives_no_weight(more: dict[str, Any]) -> None:
    """One that ended has it no more; one on the node's network shares the node's."""
    watched = Watched(WEB, piece(Endpoint(ONE)), pod(weight=7))
    assert watched.weights() == {1: 7}
    watched.put(pod(weight=7, **more))
    assert watched.weights() == {1: 100}
    watched.put(pod(weight=7))
    assert watched.weights() == {1: 7}


# --- this node ---


def test_a_node_port_is_on_the_internal_ips_of_this_node() -> None:
    watched = Watched(WEB, Node("n1", internal_ips=(NODE_IP,)), Node("n2", internal_ips=(OTHER_IP,)))
    assert watched.frontends()[2:] == ["0.0.0.0:30080", "192.0.2.1:30080"]
    watched.put(Node("n1", internal_ips=(OTHER_IP,)))
    assert watched.frontends()[2:] == ["0.0.0.0:30080", "192.0.2.2:30080"]
    assert watched.messages() == []
    watched.drop(Node("n1"))
    assert watched.frontends()[2:] == ["0.0.0.0:30080"]
    given = Watched(WEB, Node("n1", internal_ips=(NODE_IP,)), node_ips=(OTHER_IP,))
    assert given.frontends()[2:] == ["0.0.0.0:30080", "192.0.2.2:30080"], "what is given counts"


def test_a_node_port_without_an_address_of_the_node_is_a_warning() -> None:
    """Not where no Service has one."""
    text = "Node n1: status.addresses: no address is known: neither --node-ip nor an InternalIP of its Node object; "
    watched = Watched(WEB)
    assert watched.messages() == [text + "NodePort frontends have no row for a node address"]
    assert all(message.warning for message in watched.resolver.resolve().messages)
    plain = Service("d", "web", families=WEB.families, cluster_ips=(VIP,), ports=(ServicePort("", L4Type.TCP, 80),))
    for other in (plain, Service("d", "web", ignored="headless", ports=WEB.ports)):
        watched.put(other)
        assert watched.messages() == []
        watched.put(WEB)
        assert len(watched.messages()) == 1
    watched.drop(WEB)
    assert watched.messages() == []


def test_a_host_port_is_on_the_internal_ips_of_this_node() -> None:
    watched = Watched(pod(node="n1", host_ports=(HostPort(7000, 8080, L4Type.TCP),)))
    assert watched.frontends() == ["0.0.0.0:7000"]
    watched.put(Node("n1", internal_ips=(NODE_IP,)))
    assert watched.frontends() == ["0.0.0.0:7000", "192.0.2.1:7000"]


def test_the_zone_of_this_node_chooses_by_hints() -> None:
    hinted = piece(Endpoint(ONE, for_zones=("a",)), Endpoint(TWO, for_zones=("b",)))
    watched = Watched(WEB, hinted, Node("n2", zone="b"))
    assert set(watched.backends()) == {1, 2}
    watched.put(Node("n1", zone="a"))
    assert set(watched.backends()) == {1}


# --- states ---


def state(word: BackendState, name: str = "s", **more: Any) -> StateOverride:
    given = {"address": None if "pod" in more else L3n4Addr(ONE, 8080), "state": word} | more
    return StateOverride(name, **given)


QUARANTINED, MAINTENANCE = BackendState.QUARANTINED, BackendState.MAINTENANCE


def test_a_backend_state_is_of_every_node_or_of_the_one_it_names() -> None:
    watched = Watched(WEB, piece(Endpoint(ONE)))
    for node, word in (("", "maintenance"), ("n2", "active"), ("n1", "maintenance")):
        watched.put(state(MAINTENANCE, node=node))
        assert watched.backends() == {1: (100, word)}
    assert watched.resolver.overrides() == {L3n4Addr(ONE, 8080): MAINTENANCE}
    assert watched.resolver.effective_overrides().state_of(L3n4Addr(ONE, 8080), "") is MAINTENANCE
    watched.drop(state(MAINTENANCE))
    assert watched.backends() == {1: (100, "active")}
    assert watched.resolver.overrides() == {}


def test_a_backend_state_that_moves_to_another_backend_leaves_the_first_one() -> None:
    watched = Watched(WEB, piece(Endpoint(ONE), Endpoint(TWO, pod="d/q")), state(QUARANTINED))
    assert watched.backends() == {1: (100, "quarantined"), 2: (100, "active")}
    watched.put(state(QUARANTINED, pod="d/q"))
    assert watched.backends() == {1: (100, "active"), 2: (100, "quarantined")}
    watched.put(state(QUARANTINED, address=L3n4Addr(TWO, 8080)))
    assert watched.backends() == {1: (100, "active"), 2: (100, "quarantined")}


@pytest.mark.parametrize("of_pod", [False, True])
def test_a_backend_state_reaches_the_backend_of_a_host_port(of_pod: bool) -> None:
    here = pod(node="n1", host_ports=(HostPort(7000, 8080, L4Type.TCP, NODE_IP),))
    watched = Watched(here)
    assert watched.backends(7000) == {1: (100, "active")}
    watched.put(state(MAINTENANCE, **({"pod": "d/p"} if of_pod else {})))
    assert watched.backends(7000) == {1: (100, "maintenance")}
    watched.drop(state(MAINTENANCE))
    assert watched.backends(7000) == {1: (100, "active")}


def test_backend_states_that_contradict_each_other_are_named_without_any_backend() -> None:
    first, second = (
        state(MAINTENANCE, "a", origin=Origin("a.yaml", 1, 2)),
        state(QUARANTINED, "b", origin=Origin("b.yaml")),
    )
    watched = Watched(first, second)
    (text,) = watched.messages()
    assert text.startswith(
        "b.yaml: BackendState b: spec.state: BackendState a (a.yaml:2) sets maintenance for 10.244.0.1:8080/TCP"
    )
    watched.drop(first)
    assert watched.messages() == []


# --- Endpoints, host ports, and everything at once ---


def test_endpoints_count_as_long_as_there_is_no_slice() -> None:
    legacy = EndpointSlice(
        "d",
        "web",
        "web",
        Family.IPV4,
        ports=(SlicePort("", L4Type.TCP, 8080),),
        endpoints=(Endpoint(TWO),),
        legacy=True,
    )
    watched = Watched(WEB)
    assert watched.backends() == {}
    watched.put(Endpoints("d", "web", slices=(legacy,)))
    assert set(watched.backends()) == {2}
    watched.put(piece(Endpoint(ONE)))
    assert set(watched.backends()) == {1}
    watched.drop(piece())
    assert set(watched.backends()) == {2}
    watched.put(pod(weight=5, ips=(TWO,)))
    assert watched.weights() == {2: 5}
    watched.drop(Endpoints("d", "web"))
    assert watched.backends() == {}


def test_a_host_port_goes_with_its_pod() -> None:
    here = pod(node="n1", host_ports=(HostPort(7000, 8080, L4Type.TCP, NODE_IP),))
    for gone in (None, pod(node="n1"), pod(node="n1", weight=5), pod(node="n2", host_ports=here.host_ports)):
        watched = Watched(here)
        assert watched.frontends() == ["192.0.2.1:7000"]
        if gone is None:
            watched.drop(here)
        else:
            watched.put(gone)
        assert watched.frontends() == []


def test_a_pod_that_lost_its_host_port_says_so_no_more() -> None:
    ports = (HostPort(7000, 8080, L4Type.TCP, NODE_IP),)
    old, new = (
        pod("old", node="n1", host_ports=ports, created=1.0),
        pod("new", node="n1", host_ports=ports, created=2.0),
    )
    watched = Watched(old, new)
    (text,) = watched.messages()
    assert text.startswith(
        "Pod d/new: spec.containers.ports.hostPort: 192.0.2.1:7000/TCP is held by the older Pod d/old"
    )
    watched.drop(new)
    assert watched.messages() == []
    watched.put(new)
    assert len(watched.messages()) == 1
    watched.drop(old)
    assert watched.messages() == []
    assert watched.frontends() == ["192.0.2.1:7000"]


def test_a_whole_snapshot_takes_the_place_of_everything() -> None:
    watched = Watched(
        WEB, piece(Endpoint(ONE)), pod(node="n1", host_ports=(HostPort(7000, 8080, L4Type.TCP, NODE_IP),))
    )
    assert len(watched.frontends()) == 4
    watched.resolver.replace(ObjectSnapshot(services={"d/web": WEB}))
    assert len(watched.frontends()) == 3
    assert watched.backends() == {}
    watched.resolver.replace(ObjectSnapshot())
    assert watched.frontends() == []
    assert watched.messages() == []


def test_generations_go_up_by_one_and_nothing_is_the_first_one() -> None:
    watched = Watched()
    found = [watched.resolver.resolve().state.generation]
    for obj in (WEB, piece(Endpoint(ONE)), piece(Endpoint(TWO))):
        watched.put(obj)
        found.append(watched.resolver.resolve().state.generation)
        found.append(watched.resolver.resolve().state.generation)
    assert found == [0, 1, 1, 2, 2, 3, 3]
    assert watched.resolver.node_name == "n1"
