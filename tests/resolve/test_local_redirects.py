"""Local redirects among other objects: any order of changes, Pods and BackendStates that come and go, and conflicts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.service import SVCType
from lbagent.objects.records import (
    Endpoint,
    EndpointSlice,
    HostPort,
    KubeObject,
    LocalRedirect,
    Pod,
    RedirectPort,
    Service,
    ServicePort,
    SlicePort,
    StateOverride,
)
from tests.resolve.watched import Watched

VIP, ADDRESS = bytes((10, 96, 0, 1)), bytes((192, 0, 2, 1))
OUTSIDE, INSIDE = "10.96.0.1:53/TCP", "10.96.0.1:53/TCP/i"
AT_ADDRESS, AT_ADDRESS_INSIDE = "192.0.2.1:53/TCP", "192.0.2.1:53/TCP/i"
TCP, UDP = L4Type.TCP, L4Type.UDP


def service(name: str = "dns", namespace: str = "d", address: bytes = VIP, **more: Any) -> Service:
    ports = (ServicePort("t", TCP, 53), ServicePort("u", UDP, 53, index=1))
    fields = {"families": (Family.IPV4,), "cluster_ips": (address,), "ports": ports} | more
    return Service(namespace, name, **fields)


def endpoints(*hosts: int, name: str = "dns", namespace: str = "d") -> EndpointSlice:
    found = tuple(Endpoint(bytes((10, 1, 0, host)), node="n2") for host in hosts)
    ports = (SlicePort("t", TCP, 53), SlicePort("u", UDP, 53))
    return EndpointSlice(namespace, f"{name}-1", name, Family.IPV4, ports=ports, endpoints=found)


def pod(host: int = 5, **more: Any) -> Pod:
    fields = {"node": "n1", "ips": (bytes((10, 1, 1, host)),), "ready": True, "labels": {"app": "cache"}} | more
    return Pod(fields.pop("namespace", "d"), f"cache-{host}", **fields)


def policy(
    name: str = "p", *, address: bytes | None = None, kind: str = "LocalRedirectPolicy", **more: Any
) -> LocalRedirect:
    ports = (RedirectPort(5353, TCP, "t"), RedirectPort(5353, UDP, "u"))
    fields = {"selector": {"app": "cache"}, "backend_ports": ports, "namespace": "d"} | more
    if address is None:
        fields["service"] = "dns"
    else:
        fields["frontend_ports"] = (RedirectPort(53, TCP, "t"),)
    return LocalRedirect(kind, name=name, address=address, **fields)


def test_the_inside_has_the_pods_and_the_outside_the_service() -> None:
    watched = Watched(service(), endpoints(1, 2), pod(5), pod(6), policy())
    assert watched.hosts(OUTSIDE) == [[1, 2], [], []]
    assert watched.hosts(INSIDE) == [[5, 6], [], []]
    row = watched.rows()[INSIDE]
    assert row.type is SVCType.LOCAL_REDIRECT
    assert {str(each.address) for each in row.selectable} == {"10.1.1.5:5353", "10.1.1.6:5353"}
    assert all(each.local for each in row.selectable)
    assert watched.messages() == []


@pytest.mark.parametrize(
    "more",
    [
        {"ready": False},
        {"terminating": True},
        {"node": "n2"},
        {"finished": True},
        {"namespace": "other"},
        {"labels": {"app": "x"}},
        {"ips": ()},
    ],
)
def test_pods_that_get_nothing(more: dict[str, Any]) -> None:
    """Then the inside has what it would have without the policy."""
    watched = Watched(service(), endpoints(1), pod(**more), policy())
    assert watched.hosts(INSIDE) == watched.hosts(OUTSIDE) == [[1], [], []]
    assert watched.rows()[INSIDE].type is SVCType.CLUSTER_IP
    dropping = Watched(service(), endpoints(1), pod(**more), policy(drops_when_empty=True))
    assert dropping.hosts(INSIDE)[0] == []
    assert dropping.rows()[INSIDE].no_local_backend


def test_any_order_of_changes_gives_the_same_rows() -> None:
    other = service("web", address=ADDRESS)
    objects: list[KubeObject] = [
        *(service(), endpoints(1), pod(5), pod(6, ready=False), policy(), policy("q", address=ADDRESS, created=5.0)),
        *(policy("r", kind="CiliumLocalRedirectPolicy", created=9.0), other, endpoints(3, name="web")),
    ]
    wanted = None
    for seed in range(30):
        rng = random.Random(seed)
        watched = Watched()
        for each in rng.sample(objects, len(objects)):
            watched.put(each)
            if rng.random() < 0.5:
                watched.resolver.resolve()
            if rng.random() < 0.3:
                watched.drop(each)
                watched.put(each)
        found = watched.rows(), sorted(watched.messages())
        wanted = wanted or found
        assert found == wanted, seed


def test_a_policy_that_goes_leaves_nothing() -> None:
    redirect, at_address = policy(), policy("q", address=ADDRESS)
    watched = Watched(service(), endpoints(1), pod(), redirect, at_address)
    assert INSIDE in watched.rows()
    assert AT_ADDRESS in watched.rows()
    watched.drop(redirect)
    watched.drop(at_address)
    assert set(watched.rows()) == {"10.96.0.1:0/NONE", OUTSIDE, "10.96.0.1:53/UDP"}
    assert watched.messages() == []


def test_what_the_operator_sets_for_the_pod_counts() -> None:
    watched = Watched(service(), endpoints(1), pod(), policy())
    assert watched.hosts(INSIDE) == [[5], [], []]
    override = StateOverride("s", None, BackendState.MAINTENANCE, pod="d/cache-5")
    watched.put(override)
    assert watched.hosts(INSIDE)[0] == [1]
    watched.drop(override)
    assert watched.hosts(INSIDE) == [[5], [], []]
    watched.put(StateOverride("a", L3n4Addr.parse("10.1.1.5:5353"), BackendState.QUARANTINED))
    assert watched.hosts(INSIDE)[0] == [1]


def test_connections_to_a_pod_that_is_not_ready_stay_and_datagrams_do_not() -> None:
    watched = Watched(service(), endpoints(1), pod(), policy(), keep_existing=True)
    assert watched.hosts(INSIDE) == [[5], [], []]
    watched.put(pod(ready=False))
    assert watched.hosts(INSIDE) == [[1], [], [5]]
    assert watched.hosts("10.96.0.1:53/UDP/i") == [[1], [], []]
    watched.put(pod(terminating=True))
    assert watched.hosts(INSIDE) == [[1], [], [5]]
    watched.drop(pod())
    assert watched.hosts(INSIDE) == [[1], [], []]


def test_a_pod_that_another_service_serves_keeps_its_connections() -> None:
    """A backend gets an entry by the other Service: the redirect, which left it out, has it then, too."""
    watched = Watched(
        service(), endpoints(1), pod(ready=False), policy(), policy("q", address=ADDRESS), keep_existing=True
    )
    assert watched.hosts(INSIDE) == [[1], [], []]
    other = EndpointSlice(
        "d", "web-1", "web", Family.IPV4, ports=(SlicePort("t", TCP, 5353),),
        endpoints=(Endpoint(bytes((10, 1, 1, 5)), node="n1"),),
    )  # fmt: skip
    watched.put(service("web", address=bytes((10, 96, 0, 2))), other)
    assert watched.hosts(INSIDE) == [[1], [], [5]]
    assert watched.hosts(AT_ADDRESS_INSIDE) == [[], [], [5]]


def test_the_older_policy_has_a_frontend() -> None:
    watched = Watched(service(), endpoints(1), pod(5), pod(6, labels={"app": "y"}))
    watched.put(policy("a", created=2.0), policy("z", created=1.0, selector={"app": "y"}))
    assert watched.hosts(INSIDE) == [[6], [], []]
    (message,) = watched.messages()
    assert "LocalRedirectPolicy d/a" in message
    assert "is held by the older LocalRedirectPolicy d/z" in message
    watched.put(policy("b", kind="CiliumLocalRedirectPolicy", created=0.5))
    assert watched.hosts(INSIDE) == [[5], [], []]
    assert sum("held by the older CiliumLocalRedirectPolicy d/b" in each for each in watched.messages()) == 2


def test_a_service_of_another_namespace_takes_the_address_of_a_policy() -> None:
    watched = Watched(pod(), policy(address=ADDRESS))
    assert watched.hosts(AT_ADDRESS_INSIDE) == [[5], [], []]
    assert watched.rows()[AT_ADDRESS].passes_untouched
    foreign = service("web", "other", ADDRESS)
    watched.put(foreign, endpoints(9, name="web", namespace="other"))
    assert watched.hosts(AT_ADDRESS) == [[9], [], []]
    assert AT_ADDRESS_INSIDE not in watched.rows()
    assert "of Service other/web, which is in another namespace" in watched.messages()[0]
    watched.drop(foreign)
    assert watched.hosts(AT_ADDRESS_INSIDE) == [[5], [], []]


def test_an_address_of_a_service_of_its_namespace_is_redirected() -> None:
    watched = Watched(service(external_ips=(ADDRESS,)), endpoints(1), pod(), policy(address=ADDRESS))
    assert watched.hosts(AT_ADDRESS) == [[1], [], []]
    assert watched.hosts(AT_ADDRESS_INSIDE) == [[5], [], []]
    assert watched.hosts(OUTSIDE) == [[1], [], []]
    assert INSIDE not in watched.rows()


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ((pod(7, namespace="other", ips=(ADDRESS,)),), "is at an address of Pod other/cache-7"),
        (
            (pod(7, ips=(bytes((10, 1, 1, 7)),), host_ports=(HostPort(53, 80, TCP, ADDRESS),)),),
            "is the hostPort of a Pod",
        ),
        ((service(cluster_ips=(ADDRESS,), ports=(ServicePort("x", TCP, 80),)),), "is no port of Service d/dns"),
    ],
)
def test_addresses_that_are_refused(others: tuple[KubeObject, ...], problem: str) -> None:
    watched = Watched(*others, pod(), policy(address=ADDRESS))
    assert AT_ADDRESS_INSIDE not in watched.rows()
    assert any(problem in each for each in watched.messages())


def test_an_address_of_the_node_is_refused() -> None:
    watched = Watched(pod(), policy(address=ADDRESS), node_ips=(ADDRESS,))
    assert watched.rows() == {}
    assert "192.0.2.1, an address of this node" in watched.messages()[0]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"service": "none"}, "there is no Service d/none"),
        ({"frontend_ports": (RedirectPort(54, TCP),)}, "Service d/dns has no port 54/TCP"),
        ({"backend_ports": (RedirectPort(1, TCP, "x"),)}, "no port of the Service has a counterpart"),
        (
            {"frontend_ports": (RedirectPort(53, TCP),), "backend_ports": (RedirectPort(1, UDP),)},
            "53/TCP has no counterpart",
        ),
    ],
)
def test_a_policy_without_effect_is_named(more: dict[str, Any], problem: str) -> None:
    watched = Watched(service(), endpoints(1), pod(), LocalRedirect(**_fields(policy()) | more))
    assert INSIDE not in watched.rows()
    assert any(problem in each for each in watched.messages())


def _fields(redirect: LocalRedirect) -> dict[str, Any]:
    return {field: getattr(redirect, field) for field in redirect.__struct_fields__}


def test_ports_without_names_go_together_by_their_protocol() -> None:
    backends = (RedirectPort(1, TCP), RedirectPort(2, UDP))
    watched = Watched(service(), endpoints(1), pod(), policy(backend_ports=backends))
    assert [str(each.address) for each in watched.rows()[INSIDE].selectable] == ["10.1.1.5:1"]
    assert [str(each.address) for each in watched.rows()["10.96.0.1:53/UDP/i"].selectable] == ["10.1.1.5:2"]


def test_its_own_pods_skip_it() -> None:
    watched = Watched(service(), endpoints(1), pod(5), pod(6, ready=False), policy(skips_backends=True))
    row = watched.rows()[INSIDE]
    assert [str(each) for each in row.source_ranges] == ["10.1.1.5/32", "10.1.1.6/32"]
    assert row.source_ranges_deny
    assert watched.rows()[OUTSIDE].source_ranges == ()
