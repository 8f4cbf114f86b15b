"""Which Service gets which address: order, matching pools, requests, sharing, and kept addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from lbagent.model.address import L4Type, format_ip, parse_ip
from lbagent.model.family import Family
from lbagent.pools.address_request import AddressRequest, Allocation, read_preference
from lbagent.pools.allocate import allocate
from lbagent.pools.read_pools import parse_pools

V4, V6 = Family.IPV4, Family.IPV6
OFFICE = "pools: [{name: office, addresses: [10.0.0.1-10.0.0.4, fd00::1-fd00::4]}]"
TWO = """
pools:
- {name: first, addresses: [10.0.0.1-10.0.0.2], priority: 1}
- {name: by-name-b, addresses: [10.2.0.1-10.2.0.9]}
- {name: by-name-a, addresses: [10.1.0.1]}
- {name: reserved, addresses: [10.3.0.0/24], autoAssign: false, priority: 9}
- {name: lab, addresses: [10.4.0.1-10.4.0.9], namespaces: [lab], priority: 8}
- {name: web, addresses: [10.5.0.1-10.5.0.9], serviceSelector: {tier: web}, priority: 7}
"""


def service(
    name: str, created: float = 9, *, preference: dict[str, str] | None = None, ip: str = "", **more: Any
) -> AddressRequest:
    held = tuple(map(parse_ip, more.pop("held", ())))
    return AddressRequest(
        more.pop("namespace", "default"),
        name,
        created,
        preference=read_preference(preference or {}, ip),
        held=held,
        **more,
    )


def given(text: str, requests: Iterable[AddressRequest], taken: dict[str, str] | None = None) -> dict[str, Allocation]:
    pools = parse_pools(text, "pools.yaml").pools
    return allocate(pools, requests, {parse_ip(address): whose for address, whose in (taken or {}).items()})


def addresses(found: dict[str, Allocation]) -> dict[str, list[str]]:
    return {key: [format_ip(each) for each in allocation.addresses] for key, allocation in found.items()}


def test_the_oldest_gets_the_lowest() -> None:
    found = given(OFFICE, [service("b", 2), service("a", 2), service("z", 1)])
    assert addresses(found) == {"default/z": ["10.0.0.1"], "default/a": ["10.0.0.2"], "default/b": ["10.0.0.3"]}
    assert {each.pool for each in found.values()} == {"office"}


def test_one_of_unknown_age_is_the_youngest() -> None:
    found = given(OFFICE, [service("a", 0), service("b", 2)])
    assert addresses(found) == {"default/a": ["10.0.0.2"], "default/b": ["10.0.0.1"]}


def test_pools_by_priority_and_name() -> None:
    found = given(TWO, [service(f"s{number}", number + 1) for number in range(4)])
    assert [each.pool for each in found.values()] == ["first", "first", "by-name-a", "by-name-b"]


def test_namespaces_and_selectors() -> None:
    found = given(TWO, [service("a", namespace="lab"), service("b", labels={"tier": "web"}), service("c")])
    assert {key: each.pool for key, each in found.items()} == {"lab/a": "lab", "default/b": "web", "default/c": "first"}


def test_addresses_of_nodes_and_of_others_are_not_given() -> None:
    found = given(OFFICE, [service("a"), service("b")], {"10.0.0.1": "node n1", "10.0.0.3": "Service x/y"})
    assert addresses(found) == {"default/a": ["10.0.0.2"], "default/b": ["10.0.0.4"]}


def test_what_is_held_is_kept_by_whoever_has_it() -> None:
    found = given(
        OFFICE, [service("old", 1), service("young", 2, held=["10.0.0.1"]), service("mid", 1.5, held=["10.0.0.3"])]
    )
    assert addresses(found) == {
        "default/old": ["10.0.0.2"],
        "default/mid": ["10.0.0.3"],
        "default/young": ["10.0.0.1"],
    }


def test_an_address_of_no_pool_is_kept_and_named() -> None:
    found = given(OFFICE, [service("a", held=["192.0.2.7"])])
    assert addresses(found) == {"default/a": ["192.0.2.7"]}
    assert found["default/a"].astray == (parse_ip("192.0.2.7"),)
    assert found["default/a"].pool == ""


def test_two_that_hold_one_address_the_younger_gives_way() -> None:
    found = given(OFFICE, [service("young", 2, held=["10.0.0.1"]), service("old", 1, held=["10.0.0.1"])])
    assert addresses(found) == {"default/old": ["10.0.0.1"], "default/young": ["10.0.0.2"]}


def test_a_full_pool_says_its_numbers_and_the_oldest_waits_first() -> None:
    requests = [service(f"s{number}", number + 1) for number in range(6)]
    found = given(OFFICE, requests)
    assert found["default/s4"].addresses == ()
    assert found["default/s5"].problem == "no IPv4 address is free: office: 4 of 4 in use"
    held = [service(each.name, each.created, held=addresses(found)[each.key]) for each in requests if each.name != "s1"]
    again = given(OFFICE, held)
    assert addresses(again)["default/s4"] == ["10.0.0.2"]
    assert addresses(again)["default/s5"] == []


@pytest.mark.parametrize(
    ("families", "require_all", "expected", "problem"),
    [
        ((V4, V6), False, ["10.0.0.1", "fd00::1"], ""),
        ((V6, V4), True, ["fd00::1", "10.0.0.1"], ""),
        ((V6,), False, ["fd00::1"], ""),
    ],
)
def test_families(families: tuple[Family, ...], require_all: bool, expected: list[str], problem: str) -> None:
    found = given(OFFICE, [service("a", families=families, require_all=require_all)])["default/a"]
    assert [format_ip(each) for each in found.addresses] == expected
    assert found.problem == problem


ONE_EACH = "pools: [{name: four, addresses: [10.0.0.1]}, {name: six, addresses: [fd00::1]}]"


def test_families_of_two_pools() -> None:
    found = given(ONE_EACH, [service("a", families=(V6, V4), require_all=True)])["default/a"]
    assert [format_ip(each) for each in found.addresses] == ["fd00::1", "10.0.0.1"]
    assert found.pool == "six,four"


def test_both_or_none_where_both_are_required() -> None:
    four = service("four", 1)
    both = given(ONE_EACH, [four, service("both", 2, families=(V4, V6), require_all=True)])["default/both"]
    assert both.addresses == ()
    assert both.problem == "no IPv4 address is free: four: 1 of 1 in use"
    prefers = given(ONE_EACH, [four, service("prefers", 2, families=(V4, V6))])["default/prefers"]
    assert [format_ip(each) for each in prefers.addresses] == ["fd00::1"]


def test_a_second_family_for_which_there_is_no_pool_is_no_problem() -> None:
    found = given("pools: [{name: four, addresses: [10.0.0.1]}]", [service("a", families=(V4, V6))])["default/a"]
    assert (len(found.addresses), found.problem) == (1, "")


def test_a_family_that_is_added_later_comes_from_the_same_pool() -> None:
    text = "pools: [{name: a, addresses: [10.0.0.1, fd00::1]}, {name: b, addresses: [10.0.0.9, fd00::9]}]"
    found = given(text, [service("s", held=["10.0.0.9"], families=(V4, V6))])
    assert addresses(found) == {"default/s": ["10.0.0.9", "fd00::9"]}


@pytest.mark.parametrize(
    ("preference", "ip", "expected"),
    [
        ({}, "10.2.0.5", "10.2.0.5"),
        ({"lbagent.io/load-balancer-ips": "10.2.0.5"}, "10.2.0.6", "10.2.0.5"),
        ({"metallb.universe.tf/loadBalancerIPs": "10.2.0.5"}, "", "10.2.0.5"),
        ({"metallb.io/loadBalancerIPs": "10.2.0.5", "metallb.universe.tf/loadBalancerIPs": "10.2.0.6"}, "", "10.2.0.5"),
        ({"kube-vip.io/loadbalancerIPs": "10.2.0.5"}, "", "10.2.0.5"),
        ({"lbagent.io/load-balancer-ips": "10.2.0.5", "kube-vip.io/loadbalancerIPs": "10.2.0.6"}, "", "10.2.0.5"),
        ({"lbagent.io/address-pool": "by-name-b"}, "", "10.2.0.1"),
        ({"metallb.io/address-pool": "by-name-b"}, "", "10.2.0.1"),
        ({"metallb.universe.tf/address-pool": "by-name-b"}, "", "10.2.0.1"),
        ({"lbagent.io/address-pool": "reserved"}, "", "10.3.0.1"),
        ({"lbagent.io/address-pool": "reserved"}, "10.3.0.77", "10.3.0.77"),
        ({"lbagent.io/load-balancer-ips": " 10.3.0.77 "}, "", "10.3.0.77"),
    ],
)
def test_wishes(preference: dict[str, str], ip: str, expected: str) -> None:
    found = given(TWO, [service("a", preference=preference, ip=ip)])["default/a"]
    assert ([format_ip(each) for each in found.addresses], found.problem) == ([expected], "")


@pytest.mark.parametrize(
    ("preference", "ip", "problem"),
    [
        ({}, "10.9.9.9", "10.9.9.9 is requested, and no pool has it"),
        ({}, "fd00::1", "fd00::1 is requested, and the Service has no such IP family"),
        ({}, "10.3.0.0", "10.3.0.0 is requested, and pool reserved does not allocate it (avoidBuggyIPs)"),
        ({}, "10.4.0.1", "10.4.0.1 is requested, and pool lab is not for this Service (namespaces, serviceSelector)"),
        ({}, "10.0.0.1", "10.0.0.1 is requested, and Service default/older has it"),
        ({}, "10.2.0.9", "10.2.0.9 is requested, and it is in use: node n1"),
        ({}, "office", "spec.loadBalancerIP: 'office' is not an IP address"),
        (
            {"lbagent.io/load-balancer-ips": "10.0.0.1,10.0.0.2"},
            "",
            "lbagent.io/load-balancer-ips: '10.0.0.1,10.0.0.2' has two addresses of one IP family",
        ),
        (
            {"lbagent.io/address-pool": "first"},
            "10.2.0.1",
            "10.2.0.1 is requested, and pool first too; the address is of pool by-name-b",
        ),
        (
            {"lbagent.io/address-pool": "lab"},
            "",
            "pool lab is requested, and is not for this Service (namespaces, serviceSelector)",
        ),
        (
            {"lbagent.io/address-pool": "non"},
            "",
            "pool non is requested, and there is no such pool; there are: reserved, lab, web, first, by-name-a, by-name-b",
        ),
        ({"lbagent.io/address-pool": "by-name-a"}, "", "no IPv4 address is free: by-name-a: 1 of 1 in use"),
    ],
)
def test_a_wish_that_cannot_be_met_gives_nothing_else(preference: dict[str, str], ip: str, problem: str) -> None:
    older = [service("older", 1, held=["10.0.0.1"]), service("oldest", 0.5, held=["10.1.0.1"])]
    found = given(TWO, [*older, service("a", 2, preference=preference, ip=ip)], {"10.2.0.9": "node n1"})["default/a"]
    assert (found.addresses, found.problem) == ((), problem)


def test_a_new_wish_moves_a_service_and_one_that_cannot_be_met_does_not() -> None:
    moved = given(TWO, [service("a", held=["10.0.0.1"], ip="10.2.0.5")])
    assert addresses(moved) == {"default/a": ["10.2.0.5"]}
    stays = given(TWO, [service("a", held=["10.0.0.1"], ip="10.9.9.9")])
    assert addresses(stays) == {"default/a": ["10.0.0.1"]}
    assert "no pool has it" in stays["default/a"].problem
    other = given(TWO, [service("a", held=["10.0.0.1"], preference={"lbagent.io/address-pool": "by-name-b"})])
    assert addresses(other) == {"default/a": ["10.2.0.1"]}


def ports(*numbers: int) -> frozenset[tuple[L4Type, int]]:
    return frozenset((L4Type.TCP, number) for number in numbers)


KEY = {"lbagent.io/allow-shared-ip": "k"}


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        ({"preference": KEY, "ports": ports(443)}, True),
        ({"preference": {"metallb.io/allow-shared-ip": "k"}, "ports": ports(443)}, True),
        ({"preference": KEY, "ports": frozenset({(L4Type.UDP, 80)})}, True),
        ({"preference": KEY, "ports": ports(443, 80)}, False),
        ({"preference": {"lbagent.io/allow-shared-ip": "other"}, "ports": ports(443)}, False),
        ({"ports": ports(443)}, False),
        ({"preference": KEY, "ports": ports(443), "pods": "app=web"}, False),
    ],
)
def test_sharing(other: dict[str, Any], shared: bool) -> None:
    found = addresses(given(OFFICE, [service("a", 1, preference=KEY, ports=ports(80)), service("b", 2, **other)]))
    assert found == {"default/a": ["10.0.0.1"], "default/b": ["10.0.0.1" if shared else "10.0.0.2"]}


def test_policy_local_shares_where_the_pods_are_the_same() -> None:
    a = service("a", 1, preference=KEY, ports=ports(80), pods="app=web")
    same = addresses(given(OFFICE, [a, service("b", 2, preference=KEY, ports=ports(81), pods="app=web")]))
    assert same["default/b"] == ["10.0.0.1"]
    other = addresses(given(OFFICE, [a, service("b", 2, preference=KEY, ports=ports(81), pods="app=db")]))
    assert other["default/b"] == ["10.0.0.2"]


def test_a_pool_wished_for_that_lost_a_family_takes_no_address_away() -> None:
    text = "pools: [{name: a, addresses: [10.0.0.2-10.0.0.3]}, {name: b, addresses: [fd00::1-fd00::2]}]"
    held = service("s", preference={"lbagent.io/address-pool": "a"}, families=(V4, V6), held=["10.0.0.2", "fd00::1"])
    found = given(text, [held])["default/s"]
    assert [format_ip(each) for each in found.addresses] == ["10.0.0.2", "fd00::1"]
    assert found.problem == ""


def test_no_pool_at_all() -> None:
    assert given("", [service("a")])["default/a"].problem == "there is no pool"
    only = "pools: [{name: r, addresses: [10.0.0.1], autoAssign: false}]"
    assert given(only, [service("a")])["default/a"].problem.startswith("no pool is for this Service")
