"""The owner of a contested frontend: by kind, by age, else the served Service; in any order of events, and over restarts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.service import SVCType
from lbagent.objects.records import ObjectSnapshot, Service, ServicePort
from lbagent.resolve import Options, Resolver, resolve
from lbagent.resolve.frontends import WantedFrontend
from lbagent.resolve.ownership import Ownership
from tests.resolve.watched import Watched

DNS, NODE, VIP = (parse_ip(text) for text in ("10.96.0.10", "192.168.0.1", "203.0.113.7"))
X, Y, Z = (L3n4Addr(DNS, number) for number in (1, 2, 3))
EXTERNAL = SVCType.EXTERNAL_IPS
SERVED = "(not both have a creationTimestamp to compare); the other frontends stay"


def service(name: str, created: float = 0.0, **fields: object) -> Service:
    port = ServicePort("", L4Type.TCP, 80, fields.pop("node_port", 0))  # type: ignore[arg-type]
    namespace, _, name = name.rpartition("/")
    return Service(namespace or "d", name, created=created, families=(4,), ports=(port,), **fields)  # type: ignore[arg-type]


def owners(watched: Watched) -> dict[str, str]:
    return {frontend: str(svc.name) for frontend, svc in watched.rows().items()}


# --- one pass ---


def claim(
    held: Ownership, name: str, created: float | None, *frontends: L3n4Addr, kind: SVCType = EXTERNAL
) -> set[str]:
    """Add a Service with claims (None: remove it); return the other Services that the pass concerns."""
    about = None if created is None else service(name, created)
    held.update(f"d/{name}", about, [WantedFrontend(each, kind, ()) for each in frontends])
    return held.decide() - {f"d/{name}"}


def test_the_older_one_has_a_frontend_and_the_next_inherits_it() -> None:
    held = Ownership()
    assert claim(held, "new", 2.0, X, Y) == set()
    assert claim(held, "undated", 0.0, X) == set(), "nothing changes for the one that has it"
    assert claim(held, "old", 1.0, X) == {"d/new", "d/undated"}
    assert [held.owner(each) for each in (X, Y, Z)] == ["d/old", "d/new", None]
    assert claim(held, "old", 1.0, X) == set(), "as before"
    assert claim(held, "old", 1.0, X, Z) == set(), "what it contests is as before"
    assert claim(held, "new", 2.0, Y) == set()
    assert claim(held, "old", 1.0, Z) == {"d/undated"}
    assert held.owner(X) == "d/undated"
    assert claim(held, "undated", None) == set()
    assert held.owner(X) is None
    assert claim(held, "old", None) == set()
    assert (held.owner(Z), held.owner(Y)) == (None, "d/new")


def test_another_age_is_another_order() -> None:
    held = Ownership()
    claim(held, "one", 1.0, X)
    claim(held, "two", 2.0, X)
    assert held.owner(X) == "d/one"
    assert claim(held, "one", 3.0, X) == {"d/two"}
    assert held.owner(X) == "d/two"


def test_another_kind_is_another_order() -> None:
    held = Ownership()
    claim(held, "old", 1.0, X)
    assert claim(held, "new", 2.0, X, kind=SVCType.LOAD_BALANCER) == {"d/old"}
    assert held.owner(X) == "d/new"
    assert claim(held, "old", 1.0, X, kind=SVCType.NODE_PORT) == {"d/new"}
    assert held.owner(X) == "d/old"
    claim(held, "new", 2.0, X, kind=SVCType.CLUSTER_IP)
    assert held.owner(X) == "d/old", "of one kind the older"


def test_a_frontend_changes_hands_within_one_pass() -> None:
    """The updates of a pass come in any order: the one that leaves is no longer served, those that come are of one time."""
    for names in (("gone", "b", "a"), ("b", "a", "gone"), ("a", "gone", "b")):
        held = Ownership()
        claim(held, "gone", 0.0, X)
        for name in names:
            there = service(name) if name != "gone" else None
            held.update(f"d/{name}", there, [WantedFrontend(X, EXTERNAL, ())] if there else [])
        assert held.decide() >= {"d/a", "d/b"}
        assert held.owner(X) == "d/a"


# --- kinds ---


def test_externalips_take_nothing_that_another_service_was_given() -> None:
    evil = service("evil/evil", 1.0, external_ips=(DNS, VIP, NODE))
    watched = Watched(evil, node_ips=(NODE,))
    assert owners(watched) == dict.fromkeys(
        ("10.96.0.10:80/TCP", "203.0.113.7:80/TCP", "192.168.0.1:80/TCP"), "evil/evil"
    )
    watched.put(service("t/dns", 2.0, cluster_ips=(DNS,)))
    watched.put(service("t/web", 3.0, ingress=(VIP,)))
    watched.put(service("t/node", 4.0, node_port=80))
    assert owners(watched) == {
        "10.96.0.10:80/TCP": "t/dns",
        "10.96.0.10:0/NONE": "t/dns",
        "203.0.113.7:80/TCP": "t/web",
        "0.0.0.0:80/TCP": "t/node",
        "192.168.0.1:80/TCP": "t/node",
    }
    kept = "; the other frontends stay"
    fields = "Service evil/evil: spec.externalIPs"
    assert watched.messages() == [
        f"{fields}[0]: 10.96.0.10:80/TCP is held by Service t/dns as its ClusterIP: it precedes any externalIP{kept}",
        f"{fields}[1]: 203.0.113.7:80/TCP is held by Service t/web as its LoadBalancer address: it precedes any externalIP{kept}",
        f"{fields}[2]: 192.168.0.1:80/TCP is held by Service t/node as its NodePort: it precedes any externalIP{kept}",
    ]
    contests = watched.resolver.resolve().contests
    assert [(each.frontend.with_protocol(), each.loser, each.winner) for each in contests] == [
        ("10.96.0.10:80/TCP", "evil/evil", "t/dns"),
        ("203.0.113.7:80/TCP", "evil/evil", "t/web"),
        ("192.168.0.1:80/TCP", "evil/evil", "t/node"),
    ]
    watched.drop(service("t/web", 3.0, ingress=(VIP,)))
    assert owners(watched)["203.0.113.7:80/TCP"] == "evil/evil"
    watched.drop(evil)
    assert watched.resolver.resolve().contests == ()
    assert watched.messages() == []


def test_a_clusterip_precedes_a_balancer_address_that_is_older() -> None:
    watched = Watched(service("a", 1.0, ingress=(DNS,)), service("b", 2.0, cluster_ips=(DNS,)))
    assert owners(watched)["10.96.0.10:80/TCP"] == "d/b"
    (message,) = watched.messages()
    assert message == (
        "Service d/a: status.loadBalancer.ingress: 10.96.0.10:80/TCP is held by Service d/b as its ClusterIP: it precedes any"
        " LoadBalancer address; the other frontends stay"
    )


def test_a_bind_of_this_host_precedes_a_balancer_address_on_it() -> None:
    bound = service("apilb/api", binds=(NODE,))
    watched = Watched(service("a", 1.0, ingress=(NODE,)), service("b", 1.0, external_ips=(NODE,)), bound)
    assert owners(watched) == {"192.168.0.1:80/TCP": "apilb/api"}


# --- age ---


def test_of_one_age_the_name_decides() -> None:
    watched = Watched(service("b", 1.0, external_ips=(VIP,)))
    watched.put(service("a", 1.0, external_ips=(VIP,)))
    assert owners(watched) == {"203.0.113.7:80/TCP": "d/a"}
    (message,) = watched.messages()
    assert message == (
        "Service d/b: spec.externalIPs[0]: 203.0.113.7:80/TCP is held by Service d/a, which is of the same age and the first by"
        " namespace/name; the other frontends stay"
    )


def test_without_timestamps_the_served_one_stays() -> None:
    served = service("web", cluster_ips=(DNS,))
    watched = Watched(served)
    watched.resolver.resolve()
    watched.put(service("a-copy", cluster_ips=(DNS,)), service("dated", 1.0, cluster_ips=(DNS,)))
    assert set(owners(watched).values()) == {"d/web"}
    assert watched.messages() == [
        f"Service d/{name}: spec.clusterIPs[0]: 10.96.0.10:80/TCP is served by Service d/web {SERVED}"
        for name in ("a-copy", "dated")
    ]
    watched.drop(served)
    assert set(owners(watched).values()) == {"d/dated"}, "none is served: a creationTimestamp first"
    watched.put(served)
    assert set(owners(watched).values()) == {"d/dated"}


def test_who_was_served_before_is_an_input() -> None:
    """After a restart, or with other options: the Service that had the frontend keeps it, unless kind or age decide otherwise."""
    both = {each.key: each for each in (service("a", cluster_ips=(DNS,)), service("b", cluster_ips=(DNS,)))}
    objects = ObjectSnapshot(services=both)
    options = Options("n1")

    def owner(**previous: object) -> set[str]:
        return {str(svc.name) for svc in resolve(objects, options, **previous).state.services}  # type: ignore[arg-type]

    assert owner() == {"d/a"}, "nothing was served: namespace/name"
    assert owner(previous_owner=lambda _: "d/b") == {"d/b"}
    assert owner(previous_owner=lambda _: "d/gone") == {"d/a"}
    dated = {"d/a": service("a", 1.0, cluster_ips=(DNS,)), "d/b": service("b", 2.0, cluster_ips=(DNS,))}
    assert {
        str(svc.name) for svc in resolve(ObjectSnapshot(services=dated), options, lambda _: "d/b").state.services
    } == {"d/a"}, "the creationTimestamp decides"

    old = Resolver(options)
    old.set_previous_owner(lambda _: "d/b")
    frontend = L3n4Addr(DNS, 80, L4Type.TCP)
    assert old.owner_of(frontend) == "d/b", "also by a resolver that never resolved"
    new = Resolver(options)
    new.replace(objects)
    new.set_previous_owner(old.owner_of)
    assert {str(svc.name) for svc in new.resolve().state.services} == {"d/b"}
    assert new.owner_of(frontend) == "d/b"
    new.replace(objects)
    assert {str(svc.name) for svc in new.resolve().state.services} == {"d/b"}, (
        "a snapshot in place of all that is known"
    )
    early = Resolver(options)
    early.set_previous_owner(lambda _: "d/b")
    early.replace(objects)
    assert {str(svc.name) for svc in early.resolve().state.services} == {"d/b"}, "whatever comes first"


# --- any order of events ---

NAMES = tuple("abcdef")
KINDS = ("cluster_ips", "ingress", "external_ips")
RANK = {"cluster_ips": 0, "ingress": 1, "external_ips": 2}


def drawn(rng: random.Random, name: str, *, dated: bool) -> tuple[Service, tuple[int, float, str]]:
    """Return a Service that claims one frontend, and its place in the order of precedence."""
    kind, created = rng.choice(KINDS), rng.choice((1.0, 2.0, 3.0)) if dated else 0.0
    return service(name, created, **{kind: (VIP,)}), (RANK[kind], created, name)


def holder(watched: Watched) -> str | None:
    return next((svc.name.name for svc in watched.resolver.resolve().state.services if not svc.wildcard), None)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_with_timestamps_any_order_of_events_gives_the_same_winner(rng: random.Random, length: int) -> None:
    watched, places = Watched(), {}
    for _ in range(length):
        name = rng.choice(NAMES)
        if name in places and rng.random() < 0.3:
            watched.drop(watched.known["Service", f"d/{name}"])
            del places[name]
        else:
            obj, places[name] = drawn(rng, name, dated=True)
            watched.put(obj)
        if rng.random() < 0.6:
            assert holder(watched) == (min(places, key=places.__getitem__) if places else None)
    assert holder(watched) == (min(places, key=places.__getitem__) if places else None)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 15))
def test_without_timestamps_no_addition_takes_a_frontend_from_the_served_one(rng: random.Random, length: int) -> None:
    """Only a better kind does, and then that one stays."""
    watched, ranks, served = Watched(), {}, None
    names = rng.sample(range(100), length)
    while names:
        added = [names.pop() for _ in range(min(len(names), rng.randint(1, 3)))]
        for number in added:
            obj, (ranks[f"s{number:02}"], _, _) = drawn(rng, f"s{number:02}", dated=False)
            watched.put(obj)
        best = min(ranks.values())
        if served is None or ranks[served] != best:
            served = min(name for name, rank in ranks.items() if rank == best)
        assert holder(watched) == served
        if rng.random() < 0.3:  # another resolver takes over, as after a restart
            again = Watched(*watched.known.values())
            again.resolver.set_previous_owner(watched.resolver.owner_of)
            watched = again
