"""Which addresses are announced, how, and from which nodes: by Services, endpoints, pools and the node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.announce.desired_vips import DesiredVips, node_refusal
from lbagent.model.address import L4Type, parse_ip
from lbagent.model.family import Family
from lbagent.model.service import CIDR
from lbagent.objects.records import (
    FIELD_OF_KIND,
    Endpoint,
    Endpoints,
    EndpointSlice,
    Node,
    ObjectSnapshot,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.pools.announcement import L2Settings
from lbagent.pools.label_selector import LabelSelector, Requirement
from lbagent.pools.read_pools import parse_pools

POOLS = parse_pools(
    """\
pools:
- {name: lan, addresses: [10.0.0.0/28, "fd00::/120"], announce: [l2]}
- {name: both, addresses: [10.0.1.0/28], announce: [bgp, l2]}
- {name: none, addresses: [10.0.2.0/28], announce: []}
bgp: {localASN: 64512, peers: []}
""",
    "pools.yaml",
)
OTHER_POOLS = parse_pools("pools: [{name: lan, addresses: [10.0.0.0/28], announce: [l2]}]", "pools.yaml")
A, B, NONE, ELSEWHERE = (parse_ip(text) for text in ("10.0.0.1", "10.0.1.1", "10.0.2.1", "192.0.2.1"))


def service(name: str, *ingress: bytes, **more: object) -> Service:
    ports = (ServicePort("", L4Type.TCP, 80),)
    return Service("ns", name, ingress=ingress, ports=ports, **more)  # type: ignore[arg-type]


def piece(name: str, *endpoints: Endpoint) -> EndpointSlice:
    ports = (SlicePort("", L4Type.TCP, 80),)
    return EndpointSlice("ns", f"{name}-x", name, Family.IPV4, ports=ports, endpoints=endpoints)


def found(*objects: Service | EndpointSlice | Endpoints, external_ips: bool = True):  # type: ignore[no-untyped-def]
    snapshot = ObjectSnapshot(
        services={each.key: each for each in objects if isinstance(each, Service)},
        slices={each.key: each for each in objects if isinstance(each, EndpointSlice)},
        endpoints={each.key: each for each in objects if isinstance(each, Endpoints)},
    )
    wanted = DesiredVips(external_ips=external_ips)
    assert wanted.update(snapshot, POOLS) == wanted.vips.keys()
    return wanted.vips


def test_addresses_of_pools_that_say_how_are_wanted() -> None:
    vips = found(service("web", A, B, NONE, ELSEWHERE))
    assert {address: (vip.pool, vip.modes) for address, vip in vips.items()} == {
        A: ("lan", ("l2",)),
        B: ("both", ("l2", "bgp")),
    }


def test_external_addresses_are_wanted_where_they_are_served() -> None:
    web = service("web", external_ips=(A,))
    assert found(web).keys() == {A}
    assert found(web, external_ips=False) == {}


def test_external_addresses_outside_of_the_ranges_are_not_wanted_also_from_the_next_look_on() -> None:
    objects = ObjectSnapshot(services={"ns/web": service("web", external_ips=(A, B))})
    wanted = DesiredVips(external_ips=True, external_ip_ranges=(CIDR.parse("10.0.0.0/28"),))
    wanted.update(objects, POOLS)
    assert wanted.vips.keys() == {A}
    wanted.use_external_ips(external_ips=True, external_ip_ranges=(CIDR.parse("10.0.1.0/28"),))
    assert wanted.update(objects, POOLS) == {A, B}
    assert wanted.vips.keys() == {B}
    wanted.use_external_ips(external_ips=False, external_ip_ranges=())
    wanted.update(objects, POOLS)
    assert wanted.vips == {}
    assert wanted.update(objects, POOLS) == set()


def test_externalips_decide_nothing_about_an_address_that_another_service_was_given() -> None:
    """Its policy Local applies, with the nodes of its endpoints."""
    web = service("web", A, external_local=True)
    evil = service("evil", external_ips=(A, B))
    endpoint, others = piece("web", Endpoint(b"\1\2\3\4", node="a")), piece("evil", Endpoint(b"\1\2\3\5", node="b"))
    vips = found(web, evil, endpoint, others)
    assert vips[A].nodes == {"a"}
    assert vips[A].services == ("ns/evil", "ns/web")
    assert vips[B].nodes is None


def test_a_service_of_another_proxy_is_left_to_it() -> None:
    assert found(service("web", A, ignored="it is another proxy's")) == {}


def test_without_an_endpoint_policy_cluster_admits_each_node_and_nothing_is_withheld() -> None:
    vip = found(service("web", B), piece("web", Endpoint(b"\1\2\3\4", ready=False)))[B]
    assert (vip.admits("n"), vip.has_endpoint, vip.is_withheld("n", is_served=False)) == (True, False, False)
    vip = found(service("web", B), piece("web", Endpoint(b"\1\2\3\4")))[B]
    assert (vip.admits("n"), vip.has_endpoint, vip.is_withheld("n", is_served=False)) == (True, True, True)
    assert not vip.is_withheld("n", is_served=True)


def test_a_node_that_policy_local_does_not_admit_withholds_nothing() -> None:
    vip = found(service("web", A, external_local=True), piece("web", Endpoint(b"\1\2\3\4", node="a")))[A]
    assert (vip.is_withheld("a", is_served=False), vip.is_withheld("b", is_served=False)) == (True, False)


@pytest.mark.parametrize(
    ("conditions", "admitted"),
    [  # KEP-1669: (ready, serving, terminating) of the last endpoint of the node
        ((True, True, False), True),
        ((False, True, True), True),
        ((False, False, True), False),
        ((False, True, False), False),
        ((True, True, True), True),  # publishNotReadyAddresses
    ],
)
def test_policy_local_admits_the_node_of_an_endpoint_that_terminates_and_serves(
    conditions: tuple[bool, bool, bool], admitted: bool
) -> None:
    ready, serving, terminating = conditions
    endpoint = Endpoint(b"\1\2\3\4", ready=ready, serving=serving, terminating=terminating, node="a")
    ready_elsewhere = Endpoint(b"\1\2\3\5", node="b")
    vip = found(service("web", A, external_local=True), piece("web", endpoint, ready_elsewhere))[A]
    assert (vip.admits("a"), vip.admits("b")) == (admitted, True)


def test_families_are_judged_by_their_own_endpoints() -> None:
    six = parse_ip("fd00::1")
    here = piece("web", Endpoint(b"\1\2\3\4", node="a"))
    there = replace(here, name="web-6", family=Family.IPV6, endpoints=(Endpoint(bytes(15) + b"\1", node="b"),))
    vips = found(service("web", A, six, external_local=True), here, there)
    assert [(vips[each].admits("a"), vips[each].admits("b")) for each in (A, six)] == [(True, False), (False, True)]
    assert not found(service("web", A, six), here)[six].has_endpoint


def test_a_slice_without_a_port_of_the_service_does_not_count() -> None:
    other = replace(piece("web", Endpoint(b"\1\2\3\4", node="a")), ports=(SlicePort("admin", L4Type.TCP, 81),))
    vip = found(service("web", A, external_local=True), other)[A]
    assert (vip.has_endpoint, vip.admits("a")) == (False, False)


def test_policy_local_admits_the_nodes_of_ready_endpoints() -> None:
    endpoints = piece("web", Endpoint(b"\1\2\3\4", node="a"), Endpoint(b"\1\2\3\5", ready=False, node="b"))
    vip = found(service("web", A, external_local=True), endpoints)[A]
    assert (vip.admits("a"), vip.admits("b")) == (True, False)
    shared = found(service("web", A, external_local=True), service("dns", A), endpoints)[A]
    assert (shared.admits("b"), shared.services) == (True, ("ns/dns", "ns/web"))


def test_an_endpoints_object_counts_where_there_is_no_slice() -> None:
    old = Endpoints("ns", "web", slices=(piece("web", Endpoint(b"\1\2\3\4", node="a")),))
    assert found(service("web", A, external_local=True), old)[A].admits("a")
    assert not found(service("web", A, external_local=True), old, piece("web"))[A].admits("a")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, ""),
        ({"excluded": True}, "exclude-from-external"),
        ({"leaves": True}, "being removed"),
        ({"cordoned": True}, "cordoned"),
        ({"shuts_down": True}, "shutting down"),
        ({"labels": {"role": "edge"}}, ""),
    ],
)
def test_a_node_that_is_not_to_announce(fields: dict[str, object], word: str) -> None:
    refusal = node_refusal(Node("n", **fields), L2Settings())  # type: ignore[arg-type]
    assert word in str(refusal) if word else refusal is None
    assert node_refusal(None, L2Settings()) is None


def test_the_selector_of_nodes_is_for_layer_2() -> None:
    settings = L2Settings(node_selector=LabelSelector((Requirement("role", "In", frozenset(("edge",))),)))
    assert "nodeSelector" in str(node_refusal(Node("n"), settings))
    assert node_refusal(Node("n"), settings, for_l2=False) is None
    assert node_refusal(Node("n", labels={"role": "edge"}), settings) is None


ADDRESSES = st.lists(st.sampled_from([A, B, NONE, ELSEWHERE]), max_size=2, unique=True).map(tuple)
ENDPOINTS = st.lists(
    st.builds(
        Endpoint,
        address=st.just(A),
        ready=st.booleans(),
        terminating=st.booleans(),
        node=st.sampled_from(["", "n", "m"]),
    ),
    max_size=2,
)
SERVICES = st.builds(
    lambda name, ingress, more, local, ignored: service(
        name, *ingress, external_ips=more, external_local=local, ignored="it is another proxy's" * ignored
    ),
    st.sampled_from("abc"), ADDRESSES, ADDRESSES, st.booleans(), st.booleans(),
)  # fmt: skip
SLICES = st.builds(
    lambda name, owner, found: replace(piece(owner, *found), name=name),
    st.sampled_from("xy"), st.sampled_from("abc"), ENDPOINTS,
)  # fmt: skip
OLD_ENDPOINTS = st.builds(
    lambda name, found: Endpoints("ns", name, slices=(piece(name, *found),)), st.sampled_from("abc"), ENDPOINTS
)
CHANGES = st.one_of(
    SERVICES, SLICES, OLD_ENDPOINTS, st.tuples(st.sampled_from(["services", "slices", "endpoints"]), st.integers(0, 5)), st.just(OTHER_POOLS)
)  # fmt: skip


def changed(objects: ObjectSnapshot, change: object) -> ObjectSnapshot:
    """Return the objects with one added, changed or removed."""
    if isinstance(change, tuple):
        left = dict(getattr(objects, change[0]))
        for key in list(left)[change[1] : change[1] + 1]:
            del left[key]
        return replace(objects, **{change[0]: left})
    field = FIELD_OF_KIND[type(change).__name__]
    return replace(objects, **{field: {**getattr(objects, field), change.key: change}})  # type: ignore[attr-defined]


@given(st.lists(st.lists(CHANGES, max_size=3), max_size=8))
def test_what_was_followed_is_what_is_found_anew(steps: list[list[object]]) -> None:
    objects, pools, wanted = ObjectSnapshot(), POOLS, DesiredVips(external_ips=True)
    for step in steps:
        before = dict(wanted.vips)
        for change in step:
            if change is OTHER_POOLS:
                pools = OTHER_POOLS if pools is POOLS else POOLS
            else:
                objects = changed(objects, change)
        news, fresh = wanted.update(objects, pools), DesiredVips(external_ips=True)
        fresh.update(objects, pools)
        assert wanted.vips == fresh.vips
        assert news >= {each for each in before.keys() | fresh.vips.keys() if before.get(each) != fresh.vips.get(each)}


def test_only_what_is_another_than_before_is_news() -> None:
    web, dns = service("web", A), service("dns", B)
    objects = ObjectSnapshot(services={web.key: web, dns.key: dns})
    wanted = DesiredVips(external_ips=True)
    assert wanted.update(objects, POOLS) == {A, B}
    assert wanted.update(replace(objects, nodes={"n": Node("n")}), POOLS) == set()
    again = replace(web)
    assert wanted.update(replace(objects, services={web.key: again, dns.key: dns}), POOLS) == set()
    ready = piece("dns", Endpoint(A, ready=True))
    assert wanted.update(replace(objects, slices={ready.key: ready}), POOLS) == {B}
    assert wanted.update(ObjectSnapshot(), POOLS) == {A, B}
    assert wanted.vips == {}
