"""Which way to a backend: the rule of `local`, the source address, the next hop, the packet size."""

from __future__ import annotations

import socket

import pytest

from lbagent.model.cooperative import run_whole
from lbagent.model.extra_snat_sources import ExtraSnatAddress, ExtraSnatSources
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.net.paths import LOOPBACK, NO_OUTPUT, RECENT, Hop, PathFinder, PathNeeds, PathSettings, gateways
from lbagent.targets.bpf.checks.device_checks import unattached_outputs
from tests.net.builders import ADDRESSES, CNI0, DOWN, ETH0, ROUTES, VLAN, address, backend, ip, network, route

INDEX = {
    (ETH0, ip("10.0.0.254")): 11,
    (ETH0, ip("10.0.0.253")): 12,
    (ETH0, ip("10.0.0.7")): 13,
    (ETH0, ip("fe80::1")): 14,
    (VLAN, ip("10.61.0.1")): 15,
}
NODE = PathSettings("me", (), ("cni*", "veth*"))
ETH0_4 = frozenset({ip("10.0.0.1"), ip("10.0.0.9")})  # its addresses


def finder(settings: PathSettings = NODE, **more: object) -> PathFinder:
    return PathFinder(network(**more), settings, lambda hop: INDEX.get(hop, 0))  # type: ignore[arg-type]


def test_a_neighbour_on_the_link() -> None:
    assert finder()(backend("10.0.0.7")) == PathInfo(ip("10.0.0.1"), 13, 1500, kept=ETH0_4, keeps_pod=True)


def test_pods_keep_their_address_towards_other_nodes() -> None:
    """Where there are --pod-devices, and without --masquerade-all; of a backend on this node every client keeps its address."""
    here, there = ("10.244.0.5", "10.0.0.1"), ("10.0.0.7", "192.0.2.9", "10.81.0.9", "2001:db8::9")
    assert [finder()(backend(where)).keeps_pod for where in (*here, *there)] == [False] * 2 + [True] * 4
    for settings in (PathSettings("me"), PathSettings("me", (), NODE.pod_devices, masquerade_all=True)):
        assert not any(finder(settings)(backend(where)).keeps_pod for where in (*here, *there))


def test_extra_snat_source_addresses() -> None:
    """They are those of the family; one that no device has is known as such."""
    extra_snat = ExtraSnatSources((ip("10.0.0.9"), b"", ip("10.0.0.1"), ip("203.0.113.5")), (ip("fd00::5"),))
    find = finder(PathSettings("me", (), ("cni*",), extra_snat))
    nine, one = ExtraSnatAddress(1, ip("10.0.0.9")), ExtraSnatAddress(3, ip("10.0.0.1"))
    missing = ExtraSnatAddress(4, ip("203.0.113.5"), present=False)
    for where in ("10.0.0.7", "10.81.0.9", "10.244.0.5"):
        assert find(backend(where)).extra_snat == (nine, one, missing)
    assert find(backend("2001:db8::9")).extra_snat == (ExtraSnatAddress(1, ip("fd00::5"), present=False),)
    assert find(backend("10.0.0.1")).extra_snat == (), "a process of this node is reached without translation"


def test_a_extra_snat_address_is_the_first_one_only_where_there_is_no_other() -> None:
    """The kernel lists a new IPv6 address before the others."""
    new_first = (address("fd00::5/64", ETH0), address("10.0.0.5/24", ETH0), *ADDRESSES)
    settings = PathSettings("me", (), (), ExtraSnatSources((ip("10.0.0.5"), ip("10.244.0.1")), (ip("fd00::5"),)))
    find = finder(settings, addresses=new_first)
    assert find(backend("10.0.0.7")).snat == ip("10.0.0.1")
    assert find(backend("2001:db8::9")).snat == ip("fd00::1")
    assert find(backend("10.244.0.5")).snat == ip("10.244.0.1"), "the only one on its device"
    assert finder(PathSettings("me"), addresses=new_first)(backend("10.0.0.7")).snat == ip("10.0.0.5")


# --- a path keeps its source ---


def kept(where: str, node: str = "", settings: PathSettings = NODE, **more: object) -> set[str]:
    found = finder(settings, **more)(backend(where, node)).kept
    return {socket.inet_ntop(socket.AF_INET6 if len(raw) == 16 else socket.AF_INET, raw) for raw in found}


def test_a_path_keeps_any_usable_address_of_its_device_or_of_loopback() -> None:
    more = (
        address("192.0.2.77/32", LOOPBACK),
        address("10.0.0.5/24", ETH0, source=False, deprecated=True),
        address("10.0.0.6/24", ETH0, source=False),  # tentative, or of the link alone
        address("fd00::5/64", ETH0, source=False, deprecated=True),
        *ADDRESSES,
    )
    for where in ("10.0.0.7", "192.0.2.9"):
        assert kept(where, addresses=more) == {"10.0.0.1", "10.0.0.9", "10.0.0.5", "192.0.2.77"}
    assert kept("2001:db8::9", addresses=more) == {"fd00::1", "fd00::5"}
    assert kept("10.60.1.1", addresses=more) == {
        "10.0.0.1", "10.0.0.9", "10.0.0.5", "192.0.2.77", "10.244.0.1",
    }, "no address on its device"  # fmt: skip
    assert kept("10.244.0.5", "other", addresses=more) == {"10.244.0.1", "192.0.2.77"}
    assert kept("10.244.0.5", "me") == {"10.0.0.1", "10.0.0.9", "10.244.0.1"}, "a pod of this node: any will do"
    assert kept("10.0.0.7", routes=()) == {"10.0.0.1", "10.0.0.9", "10.244.0.1"}


def test_a_path_whose_source_a_setting_names_keeps_no_other() -> None:
    assert kept("10.81.0.1") == set(), "the route has a src"
    assert kept("10.0.0.7", settings=PathSettings("me", (ip("10.0.0.1"),))) == {"10.0.0.1"}
    both = (ip("10.0.0.1"), ip("10.0.0.9"), ip("10.244.0.1"))
    assert kept("10.0.0.7", settings=PathSettings("me", both)) == {"10.0.0.1", "10.0.0.9"}, "it names both"
    assert kept("10.0.0.7", settings=PathSettings("me", (ip("10.0.0.9"),))) != set(), "it does not name the first one"
    connected = (route("10.0.0.0/24", ETH0, prefsrc="10.0.0.1", connected=True),)
    assert finder(routes=connected)(backend("10.0.0.7")).snat == ip("10.0.0.1")
    assert kept("10.0.0.7", routes=connected) == {"10.0.0.1", "10.0.0.9"}, "the kernel's own word is no setting"


def test_behind_a_gateway() -> None:
    assert finder()(backend("192.0.2.9")) == PathInfo(ip("10.0.0.1"), 11, 1500, kept=ETH0_4, keeps_pod=True)
    six = PathInfo(ip("fd00::1"), 14, 1500, kept=frozenset({ip("fd00::1")}), keeps_pod=True)
    assert finder()(backend("2001:db8::9")) == six


@pytest.mark.parametrize(
    ("where", "node", "local", "host"),
    [
        ("10.0.0.7", "me", True, False),  # by its nodeName
        ("10.0.0.7", "other", False, False),
        ("10.244.0.5", "", True, False),  # leaves through a --pod-device
        ("10.244.0.5", "other", False, False),  # nodeName beats the route
        ("10.0.0.9", "", True, True),  # an address of the node
        ("10.0.0.1", "me", True, True),
        ("127.0.0.1", "", True, True),
        ("fd00::1", "", True, True),
        ("10.0.0.7", "", False, False),
    ],
)
def test_local(where: str, node: str, local: bool, host: bool) -> None:
    info = finder()(backend(where, node))
    assert (info.local, info.host) == (local, host)
    assert bool(info.snat) != host  # also a pod of this node may need it: when it meets itself


def test_without_a_pod_device_a_pod_behind_a_bridge_is_remote() -> None:
    info = finder(PathSettings("me"))(backend("10.244.0.5"))
    assert not info.local
    assert info.snat == ip("10.244.0.1")


@pytest.mark.parametrize("where", ["10.70.1.1", "10.90.1.1", "10.91.1.1"])
def test_the_fib_is_asked_where_the_table_alone_cannot_say(where: str) -> None:
    """Device that is down, several next hops, unreachable."""
    assert finder()(backend(where)).nexthop == 0


def test_a_vlan_has_next_hops_which_tc_alone_uses() -> None:
    assert finder()(backend("10.60.1.1")).nexthop == 15


def test_policy_rules_of_a_family_make_its_hops_unknown() -> None:
    found = finder(policy4=True)
    assert found(backend("10.0.0.7")).nexthop == 0
    assert found(backend("10.0.0.7")).snat == ip("10.0.0.1")
    assert found(backend("2001:db8::9")).nexthop == 14


def test_the_routes_own_packet_size_and_source() -> None:
    assert finder()(backend("10.80.0.1")).mtu == 1400
    assert finder()(backend("10.81.0.1")).snat == ip("10.0.0.9")


def test_node_ip_is_preferred_on_the_output_device_only() -> None:
    settings = PathSettings("me", (ip("10.0.0.9"), ip("10.244.0.1")), ())
    assert finder(settings)(backend("192.0.2.1")).snat == ip("10.0.0.1")  # shares the gateway's subnet
    assert finder(settings, routes=(route("0.0.0.0/0", ETH0, "172.16.0.1"),))(backend("192.0.2.1")).snat == ip(
        "10.0.0.9"
    )
    assert finder(settings, routes=())(backend("192.0.2.1")).snat == ip("10.0.0.9")


def test_a_node_without_an_address_of_the_family() -> None:
    only4 = tuple(a for a in ADDRESSES if len(a.address) == 4)
    assert finder(addresses=only4)(backend("2001:db8::9")).snat == b""


def test_a_deprecated_or_link_local_address_is_no_source() -> None:
    addresses = (address("fd00::5/64", ETH0, source=False), address("fd00::6/64", ETH0))
    assert finder(addresses=addresses)(backend("fd00::7")).snat == ip("fd00::6")


def test_gateways_come_with_the_shortest_prefixes_first_and_all_of_a_route() -> None:
    balanced = route(
        "172.16.0.0/12", ETH0, "10.0.0.251", simple=False, others=((ETH0, ip("10.0.0.252")), (DOWN, ip("10.71.0.1")))
    )
    found = gateways(network(routes=(route("10.80.0.0/16", ETH0, "10.0.0.253"), balanced, *ROUTES[:2], *ROUTES[-1:])))
    wanted = [(ETH0, "10.0.0.254"), (ETH0, "fe80::1"), (ETH0, "10.0.0.251"), (ETH0, "10.0.0.252"), (ETH0, "10.0.0.253")]
    assert found == [(index, ip(address)) for index, address in wanted]  # nothing behind a device that is down


def test_the_neighbours_to_keep_resolved() -> None:
    found = finder()
    for where in ("10.0.0.7", "192.0.2.1", "192.0.2.2", "10.244.0.5", "10.60.0.1"):
        found(backend(where))
    expected: set[Hop] = {(ETH0, ip("10.0.0.7")), (ETH0, ip("10.0.0.254")), (VLAN, ip("10.61.0.1"))}
    assert found.hops == expected
    assert CNI0 not in {hop[0] for hop in found.hops}


@pytest.mark.parametrize(
    ("where", "node", "output"),
    [
        ("10.0.0.7", "", ETH0),
        ("192.0.2.9", "", ETH0),
        ("2001:db8::9", "", ETH0),
        ("10.60.1.1", "", VLAN),
        ("10.90.1.1", "", ETH0),  # several next hops
        ("10.244.0.5", "other", CNI0),
        ("10.244.0.5", "", NO_OUTPUT),
        ("10.0.0.7", "me", NO_OUTPUT),
        ("10.0.0.9", "", NO_OUTPUT),
        ("10.70.1.1", "", None),  # its device is down
        ("10.91.1.1", "", None),
    ],
)
def test_the_device_by_which_packets_leave(where: str, node: str, output: int | None) -> None:
    found = finder()
    assert found.output(backend(where, node)) == output
    assert (found.hops, found.outputs, found.forwards, found.unusable) == (set(), set(), set(), {})


def test_remote_outputs_without_a_program_are_named() -> None:
    found = finder()
    for where in ("10.0.0.7", "10.244.0.5", "10.60.0.1"):
        found(backend(where))
    assert unattached_outputs(found.network, found.outputs, ["eth0"]) == []  # the VLAN's frames pass eth0
    assert unattached_outputs(found.network, found.outputs, ["cni0"]) == ["eth0", "eth0.7"]


def test_equal_answers_are_one_object() -> None:
    found = finder()
    assert found(backend("192.0.2.1")) is found(backend("192.0.2.2"))


def test_an_answer_that_is_kept_is_that_of_the_address_and_its_node() -> None:
    found = finder()
    assert [found(backend("10.0.0.7", node)).local for node in ("other", "me", "other", "me")] == [
        False,
        True,
        False,
        True,
    ]


def test_few_answers_are_kept() -> None:
    found = finder()
    for number in range(3 * RECENT):
        assert found(backend(f"192.0.{number >> 8}.{number & 255}")).nexthop == 11
    assert len(found._recent) <= RECENT


def test_what_no_backend_needs_any_more_is_forgotten() -> None:
    """Hops, devices, families and addresses without a way; what a plan under way asks meanwhile stays."""
    find = finder()
    near, dark, six = backend("10.0.0.7"), backend("203.0.113.9"), backend("2001:db8::9")
    for each in (near, dark, six, backend("10.81.0.9"), backend("10.61.0.9")):
        find(each)
    find.settle()
    whole = PathNeeds(set(find.hops), dict(find.unusable), set(find.forwards), set(find.outputs))
    run_whole(find.recounting([near, dark, six, backend("10.81.0.9"), backend("10.61.0.9")]))
    assert find.needs == whole
    work = find.recounting([near])
    next(work)
    assert find.needs == whole, "nothing is forgotten before the recount is complete"
    find(six)
    run_whole(work)
    assert find.hops == {(ETH0, ip("10.0.0.7")), (ETH0, ip("fe80::1"))}
    assert find.forwards == {Family.IPV4, Family.IPV6}
    assert find.unusable == {}
    find.settle()
    run_whole(find.recounting([near]))
    assert find.needs == PathNeeds({(ETH0, ip("10.0.0.7"))}, {}, {Family.IPV4}, {ETH0})


def test_a_plan_that_began_before_the_recount_is_covered() -> None:
    """Its backends are not in use yet when the recount reads those that are."""
    find = finder()
    find(backend("10.0.0.7"))
    find.settle()
    find(backend("10.81.0.9"))
    planned = set(find.hops)
    run_whole(find.recounting([backend("10.0.0.7")]))
    assert find.hops == planned


def test_a_plan_that_ends_during_the_recount_is_covered() -> None:
    find = finder()
    find(backend("10.0.0.7"))
    find.settle()
    find(backend("10.81.0.9"))
    planned = set(find.hops)
    work = find.recounting([backend("10.0.0.7")])
    next(work)
    find.settle()
    run_whole(work)
    assert find.hops == planned
