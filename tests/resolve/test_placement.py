"""An address has one node, also in several objects: their common node, or none if they contradict each other."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.address import L4Type
from lbagent.objects.records import (
    Endpoint,
    Endpoints,
    EndpointSlice,
    HostPort,
    ObjectChange,
    Origin,
    Pod,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.resolve import Options, Resolver
from lbagent.resolve.placement import Placement, contradiction_messages
from tests.objects.kinds import kind_of

HERE, THERE, ELSEWHERE = "here", "there", "elsewhere"
ADDRESS = bytes([10, 1, 0, 1])


class Folder:
    """A resolver that follows single changes; `placed` is its node of the address in each Service."""

    def __init__(self) -> None:
        self.resolver = Resolver(Options(HERE, keep_existing=True))
        self.objects: dict[tuple[str, str], object] = {}

    def put(self, *objects) -> None:
        changes = [ObjectChange(kind_of(o), o.key, self.objects.get((kind_of(o), o.key)), o) for o in objects]
        self.objects.update({(kind_of(o), o.key): o for o in objects})
        self.resolver.update(changes)

    def drop(self, obj) -> None:
        self.resolver.update([ObjectChange(kind_of(obj), obj.key, self.objects.pop((kind_of(obj), obj.key)), None)])

    def placed(self) -> dict[str, tuple[str, bool]]:
        rows = self.resolver.resolve().state.services
        return {svc.name.name: (svc.backends[0].node_name, svc.backends[0].local) for svc in rows if svc.backends}

    def warnings(self) -> list[str]:
        messages = self.resolver.resolve().messages
        assert all(message.warning for message in messages)
        return [str(message) for message in messages]


def service(name: str) -> Service:
    number = ord(name[0])
    port = ServicePort("http", L4Type.TCP, 80)
    return Service(
        "shop",
        name,
        Origin("f.yaml", number, number),
        1.0,
        families=(4,),
        cluster_ips=(bytes([10, 96, 0, number]),),
        ports=(port,),
    )


def piece(name: str, node: str, number: int = 1, *, port: int = 8080) -> EndpointSlice:
    origin = Origin("f.yaml", 1000 + ord(name[0]), 10 * ord(name[0]) + number)
    ports = (SlicePort("http", L4Type.TCP, port),)
    return EndpointSlice("shop", f"{name}-{number}", name, 4, origin, ports, (Endpoint(ADDRESS, node=node),))


@pytest.fixture
def folder() -> Folder:
    made = Folder()
    made.put(service("a"), service("b"))
    return made


def test_the_node_all_agree_on(folder: Folder) -> None:
    folder.put(piece("a", THERE), piece("b", THERE))
    assert folder.placed() == {"a": (THERE, False), "b": (THERE, False)}
    assert folder.warnings() == []


def test_two_services_place_one_address_on_two_nodes(folder: Folder) -> None:
    """Neither is used and both are reported, in any order; when one is gone, the other one applies again."""
    folder.put(piece("a", THERE))
    assert folder.placed() == {"a": (THERE, False)}
    folder.put(piece("b", HERE))
    assert folder.placed() == {"a": ("", False), "b": ("", False)}
    (text,) = folder.warnings()
    assert text.startswith("f.yaml:981: EndpointSlice shop/b-1: endpoints: 10.1.0.1 is on node here here")
    assert "on node there in EndpointSlice shop/a-1 (f.yaml:971)" in text
    assert "its address and route" in text
    folder.drop(piece("b", HERE))
    assert folder.placed() == {"a": (THERE, False)}
    assert folder.warnings() == []


@pytest.mark.parametrize("port", [8080, 9090], ids=["same port", "another port"])
def test_slices_of_one_service(folder: Folder, port: int) -> None:
    folder.put(piece("a", HERE), piece("a", THERE, 2, port=port))
    assert folder.placed() == {"a": ("", False)}
    assert len(folder.warnings()) == 1
    folder.put(piece("a", HERE, 2, port=port))
    assert folder.placed() == {"a": (HERE, True)}


def test_a_slice_without_a_node_takes_the_one_that_is_named(folder: Folder) -> None:
    folder.put(piece("a", ""), piece("b", HERE))
    assert folder.placed() == {"a": (HERE, True), "b": (HERE, True)}
    assert folder.warnings() == []
    folder.drop(piece("b", HERE))
    assert folder.placed() == {"a": ("", False)}


def test_an_address_of_this_node_is_local_though_its_node_is_contested(folder: Folder) -> None:
    folder.resolver = Resolver(Options(HERE, node_ips=(ADDRESS,)))
    folder.objects.clear()
    folder.put(service("a"), service("b"), piece("a", ELSEWHERE), piece("b", THERE))
    assert folder.placed() == {"a": ("", True), "b": ("", True)}


def test_a_move_contradicts_nothing(folder: Folder) -> None:
    folder.put(piece("a", THERE))
    folder.placed()
    folder.put(piece("a", ELSEWHERE))
    assert folder.placed() == {"a": (ELSEWHERE, False)}
    assert folder.warnings() == []


def test_endpoints_count_only_without_slices(folder: Folder) -> None:
    legacy = Endpoints(
        "shop",
        "a",
        Origin("e.yaml"),
        (
            EndpointSlice(
                "shop",
                "a",
                "a",
                4,
                ports=(SlicePort("http", L4Type.TCP, 8080),),
                endpoints=(Endpoint(ADDRESS, node=ELSEWHERE),),
                legacy=True,
            ),
        ),
    )
    folder.put(legacy, piece("b", HERE))
    assert folder.placed() == {"a": ("", False), "b": ("", False)}
    folder.put(piece("a", HERE))
    assert folder.placed() == {"a": (HERE, True), "b": (HERE, True)}
    folder.drop(piece("a", HERE))
    assert folder.placed() == {"a": ("", False), "b": ("", False)}


def test_a_pod_with_a_host_port_is_on_this_node(folder: Folder) -> None:
    pod = Pod(
        "shop",
        "p",
        Origin("p.yaml"),
        node=HERE,
        ips=(ADDRESS,),
        host_ports=(HostPort(7000, 8080, L4Type.TCP, bytes([192, 0, 2, 1])),),
    )
    folder.put(pod, piece("a", HERE))
    assert folder.placed() == {"a": (HERE, True), "p": (HERE, True)}
    folder.put(piece("a", THERE))
    assert folder.placed() == {"a": ("", False), "p": ("", False)}
    assert folder.warnings() == [], "a slice alone contradicts no other"
    folder.drop(pod)
    assert folder.placed() == {"a": (THERE, False)}


def test_a_pod_that_has_a_weight_alone_is_on_no_node(folder: Folder) -> None:
    folder.put(Pod("shop", "p", Origin("p.yaml"), node=ELSEWHERE, ips=(ADDRESS,), weight=100), piece("a", HERE))
    assert folder.placed() == {"a": (HERE, True)}


def test_a_warning_names_two_slices_that_name_a_node(folder: Folder) -> None:
    """Not those of an address whose other objects have no node, and no unused Endpoints."""
    legacy = EndpointSlice(
        "shop", "b", "b", 4, Origin("f.yaml", 1), endpoints=(Endpoint(ADDRESS, node=ELSEWHERE),), legacy=True
    )
    folder.put(Endpoints("shop", "b", Origin("f.yaml", 1), (legacy,)))
    folder.put(piece("a", "", 1), piece("a", HERE, 2), piece("b", THERE, 1), piece("b", "", 2))
    (text,) = folder.warnings()
    assert text.startswith(
        "f.yaml:981: EndpointSlice shop/b-1: endpoints: 10.1.0.1 is on node there here, and on node here in"
    )
    assert "in EndpointSlice shop/a-2 (f.yaml:972)" in text


def test_as_many_contradictions_are_named_as_can_be_read() -> None:
    def placed(node: str, hosts: range) -> EndpointSlice:
        endpoints = tuple(Endpoint(bytes([10, 1, host >> 8, host & 255]), node=node) for host in hosts)
        return EndpointSlice("shop", node, "a", 4, endpoints=endpoints)

    def named(contested: range) -> list[str]:
        addresses = {bytes([10, 1, host >> 8, host & 255]) for host in contested}
        slices = [placed(HERE, range(600)), placed(THERE, contested)]
        return [message.problem.split()[0] for message in contradiction_messages(addresses, slices)]

    assert named(range(500, 502)) == ["10.1.1.244", "10.1.1.245"], "those that all agree on take no room"
    assert named(range(300)) == [f"10.1.0.{host}" for host in range(200)]


def test_an_address_that_nothing_is_said_about_any_more_is_new_again() -> None:
    placement = Placement()
    one, two = [(ADDRESS, HERE)], [(ADDRESS, THERE)]
    assert placement.update((), one) == set(), "the first to say something contradicts nothing"
    assert placement.update((), one) == set()
    assert placement.update((), two) == {ADDRESS}
    assert placement.contested == {ADDRESS}
    assert placement.update(one, ()) == set()
    assert placement.update(one, ()) == {ADDRESS}
    assert (placement.contested, placement.decided) == (set(), {})
    assert placement.update(two, ()) == set()
    assert placement.update((), one) == set()


ADDRESSES = [bytes([n]) for n in range(3)]
CLAIMS = st.sets(st.tuples(st.sampled_from(ADDRESSES), st.sampled_from(["", "n1", "n2"])), max_size=5)


@given(st.lists(st.tuples(st.integers(0, 3), CLAIMS), max_size=12))
def test_any_order_of_changes(steps) -> None:
    """`decided` is equal to a new count of all claims, and each change of it is returned."""
    placement, objects = Placement(), defaultdict(set)
    for number, claims in steps:
        before = dict(placement.decided)
        told = placement.update(objects[number], claims)
        objects[number] = claims
        nodes = defaultdict(set)
        for address, node in itertools.chain.from_iterable(objects.values()):
            nodes[address].add(node)
        expected = {}
        for address, names in nodes.items():
            if len(names) > 1:
                named = names - {""}
                expected[address] = named.pop() if len(named) == 1 else ""
        assert placement.decided == expected
        changed = {each for each in ADDRESSES if before.get(each) != expected.get(each)}
        assert changed <= told
