"""Each check of the BPF data plane by itself, over parts that have only what it reads."""

from __future__ import annotations

from types import SimpleNamespace as Some

import pytest
from msgspec.structs import replace

from lbagent.bpf.hooks import TC_EGRESS, XDP
from lbagent.bpf.load.attach import Attachment
from lbagent.checks import check_runner
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.reasons import INTENDED_DROPS, Reason
from lbagent.maps.specs import Sizes, map_specs
from lbagent.model.address import L3n4Addr, format_ip
from lbagent.model.backend import Backend
from lbagent.model.check import Finding, Severity
from lbagent.model.extra_snat_sources import ExtraSnatSources
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.net.paths import gateways
from lbagent.net.snapshot import EMPTY, Link
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.checks import drop_checks, snat_checks
from lbagent.targets.bpf.checks.snat_ports import short_in_state
from tests.checks.looking import Look
from tests.net.builders import ETH0 as INDEX0
from tests.net.builders import address as on_device
from tests.net.builders import network as node_network
from tests.sync.rig import SMALL, FixedPaths

check_maps, check_tables, check_sweeps = Look("map-nearly-full"), Look("table-overflows"), Look("sweep-failed")
check_devices = Look("device-missing", "device-not-attached")
check_snat_addresses = Look("snat-address-missing")
NO_IDS = {"id_usage": dict}
ETH0, ETH1 = Link(2, "eth0", b"\2" * 6, 1500, True), Link(3, "eth1", b"\3" * 6, 1500, True)


def brief(found) -> list[tuple[str, str]]:
    return [(each.name, each.subject) for each in found]


class Counters:
    def __init__(self) -> None:
        self.packets = dict.fromkeys(Reason, 0)

    def counters(self, reasons) -> list[tuple[int, int]]:
        return [(self.packets[reason], 0) for reason in reasons]


def test_every_drop_is_intended_or_watched() -> None:
    """A new kind of drop is watched unless a list names it as requested by a rule."""
    drops = {reason for reason in Reason if reason.name.startswith("DROP_")}
    assert {reason.name for reason in INTENDED_DROPS} == {
        "DROP_NO_BACKEND", "DROP_SOURCE_RANGE", "DROP_NO_LOCAL_BACKEND", "DROP_NOT_ROUTABLE", "DROP_MALFORMED",
        "DROP_FLOW_LIMIT", "DROP_FLOW_RATE", "DROP_SCTP_UNKNOWN",
    }  # fmt: skip
    assert set(drop_checks._UNWANTED) == drops - INTENDED_DROPS


def test_drops_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(drop_checks.time, "monotonic", lambda: now)
    maps, check = Counters(), Look("drops-grow")
    components = Some(maps=maps)
    maps.packets[Reason.DROP_NO_NEIGHBOR] = 500  # of an earlier agent
    assert brief(check(components)) == []
    now += 3
    maps.packets[Reason.DROP_NO_NEIGHBOR] += 2
    maps.packets[Reason.DROP_SOURCE_RANGE] += 1000
    maps.packets[Reason.DROP_RACE] += 3
    (found,) = check(components)
    assert brief([found]) == [("drops-grow", "drop_no_neighbor")]
    assert found.severity is Severity.DEGRADED, "a dead endpoint of one Service"
    assert found.text == "2 packets were dropped in the last 3 s: drop_no_neighbor"
    maps.packets[Reason.DROP_RACE] += 30
    now += 3
    found = list(check(components))
    assert brief(found) == [("drops-grow", "drop_race"), ("drops-grow", "drop_no_neighbor")]
    assert [each.severity for each in found] == ["fault", "degraded"]
    for _ in range(12):
        now += 3
        left = brief(check(components))
    assert left == []


def test_a_map_that_is_nearly_full() -> None:
    components = Some(
        usage=lambda: {"lb4_service": (90, 100), "lb6_service": (89, 100), "lb6_flow": (100, 100)},
        sweeper=None,
        **NO_IDS,
    )
    found = list(check_maps(components))
    assert brief(found) == [("map-nearly-full", "lb4_service"), ("map-nearly-full", "lb6_flow")]
    assert found[0].text == "map lb4_service is nearly full: 90 of 100 entries (90%)"
    assert (found[0].remedy, found[1].remedy) == (
        "raise --max-service-slots",
        "raise --flow6-table-size",
    )
    assert list(check_tables(components)) == []


def test_every_map_that_may_be_nearly_full_says_what_is_true_of_its_size() -> None:
    """An option is named only where it sizes the map; for a fixed size the text states it."""
    usage = {**BpfTarget.open(MemoryMaps(SMALL), FixedPaths(), "me").usage(), "lb_nexthop": (1, 1)}
    full = {name: (size, size) for name, (_, size) in usage.items()} | {"lb4_flow": (9, 9), "lb6_flow": (9, 9)}
    advice = {each.subject: each.remedy for each in check_maps(Some(usage=lambda: full, **NO_IDS))}
    assert advice.keys() == full.keys()
    before, after = (
        Sizes(),
        Sizes(flow4=1 << 21, flow6=1 << 21, services=1 << 20, backends=1 << 18, source_ranges=1 << 17),
    )
    is_sized = {
        name: f"--{spec}" for name, spec in (
            ("lb4_flow", "flow-table-size"), ("lb6_flow", "flow6-table-size"), ("lb4_service", "max-service-slots"),
            ("lb6_service", "max-service-slots"), ("lb_affinity_match", "max-service-slots"),
            ("lb4_backend", "max-backends"), ("lb6_backend", "max-backends"),
            ("lb4_source_range", "max-source-ranges"), ("lb6_source_range", "max-source-ranges"),
        )
    }  # fmt: skip
    for name, remedy in advice.items():
        assert remedy == f"raise {is_sized[name]}" if name in is_sized else "fixed" in remedy and "--" not in remedy
        if name in map_specs(before):
            specs = [map_specs(sizes)[name] for sizes in (before, after)]
            assert (specs[0] != specs[1]) is (name in is_sized), name
    assert advice["lb4_reverse_nat"].startswith("65,536 service ids, fixed")


def test_a_table_that_turned_flows_away() -> None:
    components = Some(
        sweeper=Some(full=lambda: [Reason.FWD_NO_STATE, Reason.DROP_SNAT_EXHAUSTED], failure="why: raise --x")
    )
    found = list(check_tables(components))
    assert brief(found) == [("table-overflows", "fwd_no_state"), ("table-overflows", "drop_snat_exhausted")]
    assert [(each.text, each.remedy, each.severity) for each in found] == [
        ("the flow table had no room for new flows", "raise --flow-table-size", "fault"),
        (
            "no SNAT port was free for new flows",
            "raise --snat-ports or --snat-table-size, or give a further --snat-address",
            "degraded",
        ),
    ]


def test_a_failed_sweep_has_a_name_of_its_own() -> None:
    """The error is text, whatever its words; the subject stays."""
    components = Some(sweeper=Some(full=list, failure="test run of sweep4: raise --x: Bad file descriptor"))
    (found,) = check_sweeps(components)
    assert brief([found]) == [("sweep-failed", "flow tables")]
    assert found.text == "the flow tables are not swept: test run of sweep4: raise --x: Bad file descriptor"
    assert list(check_tables(components)) == []
    components.sweeper.failure = ""
    assert list(check_sweeps(components)) == []


def test_next_hops_are_named_when_they_stay_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(check_runner.time, "monotonic", lambda: now)
    there, away = (2, bytes([10, 7, 0, 2])), (2, bytes([10, 7, 0, 9]))
    network = replace(EMPTY, links={2: ETH0}, neighbours={there: b"\2" * 6})
    components = Some(follower=Some(network=network, finder=Some(hops={there, away})))
    check = Look("next-hop-unresolved")
    assert brief(check(components)) == []  # it was requested a moment ago
    now += 3
    (found,) = check(components)
    assert brief([found]) == [("next-hop-unresolved", "10.7.0.9 eth0")]
    assert "ip neigh show 10.7.0.9" in found.remedy
    assert found.severity is Severity.DEGRADED
    components.follower.finder.hops = {there}
    assert brief(check(components)) == []
    components.follower.finder.hops = {(2, bytes([10, 7, 1, number])) for number in range(25)}
    list(check(components))
    now += 3
    many = list(check(components))
    assert len(many) == 21
    assert many[-1].text == "5 more next hops do not answer"


def test_backends_without_a_route_are_named_when_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's device goes before its endpoint does; addresses that are no backends any more do not count."""
    now = 100.0
    monkeypatch.setattr(check_runner.time, "monotonic", lambda: now)
    backend = Backend(1, L3n4Addr.parse("10.0.0.1:80"))
    services = (SVC(L3n4Addr.parse("10.96.0.1:80"), 7, ServiceName("shop", "web"), selectable=(backend,)),)
    unusable = {bytes([10, 0, 0, 1]): "no route", bytes([10, 0, 0, 2]): "no route"}
    network = Some(finder=Some(unusable=unusable), network=node_network())
    components = Some(follower=network, state=State(1, services))
    check = Look("path-unusable")
    assert brief(check(components)) == []
    now += 3
    (found,) = check(components)
    assert brief([found]) == [("path-unusable", "10.0.0.1")]
    assert found.severity is Severity.DEGRADED
    up = node_network()
    network.network = replace(up, links={index: replace(link, up=False) for index, link in up.links.items()})
    (found,) = check(components)
    assert found.severity is Severity.FAULT, "the device of its route is down"
    unusable.clear()
    assert brief(check(components)) == []
    unusable[bytes([10, 0, 0, 1])] = "its device is down"
    assert brief(check(components)) == []


def devices(*links: Link, problems: dict[str, str] | None = None, attached: tuple[str, ...] = ()) -> list[Finding]:
    hooks = tuple(Attachment.on_device(name, hook) for name in attached for hook in (XDP, TC_EGRESS))
    missing = {name: text for name, text in (problems or {}).items() if name == "eth0"}
    names = () if missing else ("eth0",)
    keeper = Some(
        problems=problems or {},
        attached=hooks,
        last_index={"eth0": 2},
        renamed={},
        chosen=Some(names=names, missing=missing),
    )
    network = Some(network=replace(EMPTY, links={link.index: link for link in links}), finder=Some(outputs=()))
    return list(check_devices(Some(devices=keeper, follower=network, config=Some(serves_sockets_alone=False))))


def test_devices() -> None:
    gone = {"eth0": "device eth0 is gone; programs are attached again when it comes back"}
    assert devices(ETH0, attached=("eth0",)) == []
    (found,) = devices(problems=gone)
    assert brief([found]) == [("device-missing", "eth0")]
    assert "renamed" not in found.text
    (found,) = devices(replace(ETH0, name="lan0"), ETH1, problems=gone)
    assert found.text == f"{gone['eth0']}; it was renamed to lan0"
    assert "--device lan0" in found.remedy
    assert brief(devices(ETH0)) == [("device-not-attached", "eth0")]
    assert brief(devices(ETH0, attached=("eth0",), problems={"devices": "why"})) == [("device-not-attached", "devices")]


def short_of_ports(state: State, flows: dict[int, int], ports: int, sources: int = 1) -> list[Finding]:
    """As the agent finds them, on a node of which the network is not known."""
    check = snat_checks.CHECKS[0]
    found = short_in_state(state, flows, ports, lambda _: (b"",) * sources)
    return [check.finding(snat_checks.short_of_ports(each, ports)) for each in found]


def test_backends_short_of_snat_ports() -> None:
    """Nine tenths of the ports held: the backend and its Services are named; a backend of this node needs none."""
    remote, few, local = (Backend(n, L3n4Addr.parse(f"10.0.0.{n}:80"), local=n == 3) for n in (1, 2, 3))
    services = (
        SVC(L3n4Addr.parse("10.96.0.1:80"), 7, ServiceName("shop", "web"), selectable=(remote, few, local)),
        SVC(L3n4Addr.parse("10.96.0.2:80"), 8, ServiceName("shop", "api"), selectable=(remote,)),
    )
    (found,) = short_of_ports(State(1, services), {1: 900, 2: 899, 3: 5000}, 1000)
    assert brief([found]) == [("snat-ports-short", "10.0.0.1:80/TCP")]
    assert found.text == "backend 10.0.0.1:80/TCP (shop/api, shop/web) is short of SNAT ports: 900 flows, 1000 ports"
    assert found.remedy == (
        "raise --snat-ports, add further addresses of this node to --snat-address, or give the service more backends"
    )
    flows = {1: 2700, 2: 2699}
    (found,) = short_of_ports(State(1, services), flows, 1000, 3)
    assert found.text.endswith(": 2700 flows, 1000 ports with each of 3 source addresses")
    (found,) = short_of_ports(State(1, services), {1: 4500}, 1000, 5)
    assert found.remedy == "raise --snat-ports, or give the service more backends"


def test_a_source_address_that_the_node_lacks() -> None:
    """It is named, with what to do, until a device has it."""
    network = node_network(addresses=(on_device("10.0.0.7/24", INDEX0),))
    components = Some(
        follower=Some(network=network), extra_snat=ExtraSnatSources((bytes((10, 0, 0, 7)), bytes((10, 0, 0, 8))))
    )
    (found,) = check_snat_addresses(components)
    assert brief([found]) == [("snat-address-missing", "10.0.0.8")]
    assert found.text == "no device of this node has 10.0.0.8 (--snat-address): it is not used"
    assert "ip address add" in found.remedy


def test_a_gateway_that_does_not_answer_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the node's; and it is named however many endpoints are dead beside it."""
    now = 100.0
    monkeypatch.setattr(check_runner.time, "monotonic", lambda: now)
    network = replace(node_network(), neighbours={})
    (gateway, *_) = gateways(network)
    dead = {(gateway[0], bytes([1, 7, 0, number])) for number in range(25)}
    components = Some(follower=Some(network=network, finder=Some(hops={gateway, *dead})))
    check = Look("next-hop-unresolved")
    list(check(components))
    now += 3
    found = list(check(components))
    assert [each.severity for each in found] == ["fault"] + ["degraded"] * 20
    assert found[0].subject.startswith(format_ip(gateway[1]))
