"""Differences of rule sets: what they lead to, in which order, and that every piece of a large load is correct by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import Backend
from lbagent.model.family import Family
from lbagent.model.service import CIDR, SVC, Algorithm, ServiceName, SVCType
from lbagent.targets.nftables.chains import TableSettings
from lbagent.targets.nftables.map_specs import MAPS
from lbagent.targets.nftables.rule_set import Elements, RuleSet, RuleSetDiff, apply, compare, in_chunks
from tests.targets.nftables.made import WEB, row, rule_set

NAMES = [ServiceName("default", name) for name in ("a", "b", "c", "d")]


@st.composite
def rows_of(draw: st.DrawFn, number: int) -> list[SVC]:
    """Return the rows of one Service, none where it is gone. Services share backends, never frontends."""
    out: list[SVC] = []
    for port in range(draw(st.integers(0, 3))):
        family = draw(st.sampled_from((4, 6)))
        protocol = draw(st.sampled_from((L4Type.TCP, L4Type.UDP)))
        kind = draw(st.sampled_from((SVCType.CLUSTER_IP, SVCType.LOAD_BALANCER)))
        address = f"10.96.{number}.1" if family == 4 else f"fd00:{number}::1"
        frontend = L3n4Addr(address, 80 + port, protocol)
        ranges = (CIDR.parse("10.0.0.0/8"), CIDR.parse("10.2.0.0/16")) if family == 4 else (CIDR.parse("fd00::/8"),)
        check = kind is SVCType.LOAD_BALANCER and draw(st.booleans())
        scopes = [Scope.EXTERNAL, *([Scope.INTERNAL] if kind is SVCType.LOAD_BALANCER and draw(st.booleans()) else [])]
        affinity, algorithm = draw(st.booleans()), draw(st.sampled_from((Algorithm.RANDOM, Algorithm.LEAST_CONN)))
        for scope in scopes:
            hosts = draw(st.lists(st.integers(1, 5), unique=True, max_size=5))
            prefix = "10.0.0." if family == 4 else "fd01::"
            backends = tuple(
                Backend(0, L3n4Addr(f"{prefix}{host}", 8080, protocol), local=host < 3, weight=host * 10)
                for host in sorted(hosts)
            )
            out.append(
                SVC(
                    frontend.with_scope(scope), 0, NAMES[number], port_name=f"p{port}", type=kind, selectable=backends,
                    algorithm=algorithm, session_affinity=affinity, check_source_range=check,
                    source_ranges=ranges if check else (), no_local_backend=draw(st.booleans()),
                )
            )  # fmt: skip
    return out


states = st.tuples(*(rows_of(number) for number in range(len(NAMES))))


def made(state: Sequence[Sequence[SVC]]) -> RuleSet:
    """Return a rule set that was made at once."""
    rules = RuleSet(TableSettings(), lambda each: each.local)
    for name, rows in zip(NAMES, state, strict=True):
        rules.update(name, rows)
    return rules


@given(st.lists(states, min_size=2, max_size=4))
@settings(deadline=None, max_examples=40)
def test_a_difference_makes_one_rule_set_of_another(sequence: list[Sequence[Sequence[SVC]]]) -> None:
    rules = made(sequence[0])
    elements, chains = rules.elements(), rules.chains()
    for state in sequence[1:]:
        merged = RuleSetDiff()
        for name, rows in zip(NAMES, state, strict=True):
            merged.merge(rules.update(name, rows))
        wanted = made(state)
        elements = apply(elements, merged)
        assert elements == rules.elements() == wanted.elements()
        for chain in merged.gone_chains:
            del chains[chain]
        chains |= merged.new_chains
        assert chains == rules.chains() == wanted.chains()


@given(states, states)
@settings(deadline=None, max_examples=40)
def test_comparing_two_rule_sets_gives_the_same_difference(
    one: Sequence[Sequence[SVC]], two: Sequence[Sequence[SVC]]
) -> None:
    before, after = made(one).elements(), made(two).elements()
    assert apply(before, compare(before, after)) == after
    assert not compare(after, after)


@given(states)
@settings(deadline=None, max_examples=40)
def test_each_prefix_of_a_large_load_is_a_rule_set_of_some_services(state: Sequence[Sequence[SVC]]) -> None:
    rules = RuleSet(TableSettings(), lambda each: each.local)
    elements: Elements = rules.elements()
    chains = set(rules.chains())
    changes = [rules.update(name, rows) for name, rows in zip(NAMES, state, strict=True)]
    for chunk in in_chunks(changes, most=1):
        elements = apply(elements, chunk)
        chains |= chunk.new_chains.keys()
        assert_whole(elements, chains)
    assert elements == made(state).elements()


@given(states, states)
@settings(deadline=None, max_examples=40)
def test_what_a_packet_meets_between_the_two_transactions_is_whole(
    one: Sequence[Sequence[SVC]], two: Sequence[Sequence[SVC]]
) -> None:
    """The first transaction of a change leaves the slots that a packet may still look for."""
    rules = made(one)
    before, chains = rules.elements(), set(rules.chains())
    for name, rows in zip(NAMES, two, strict=True):
        change = rules.update(name, rows)
        kept = {spec: dict(content) for spec, content in apply(before, change).items()}
        for spec, content in change.last_slots().items():
            kept[spec] |= content
        assert_whole(kept, chains | change.new_chains.keys())
        for spec, content in before.items():  # a packet that met the old verdict
            if MAPS[spec].has_slot:
                assert content.keys() <= kept[spec].keys()
        before = apply(before, change)
        chains = (chains | change.new_chains.keys()) - set(change.gone_chains)


def assert_whole(elements: Elements, chains: set[str]) -> None:
    """Each verdict has its chain, and each chain that selects finds a backend in each of its slots."""
    for name in ("frontends4", "frontends6", "internal4", "internal6"):
        digit = name[-1]
        for key, element in elements[name].items():
            word, _, chain = str(element.value).partition(" ")
            if word == "drop":
                continue
            assert chain in chains
            if chain.removesuffix(digit).removeprefix("allow-").removeprefix("deny-") in ("refused", "ended"):
                continue
            count = int(chain.removesuffix("-inside").rpartition("-")[2])
            first = 1 << 16 if chain.endswith("-inside") else 0
            slots = elements[f"backends{digit}"]
            for slot in range(first, first + count):
                assert key + slot.to_bytes(4, "little") in slots
            if chain.startswith("sticky") or "-sticky-" in chain:
                assert key in elements[f"sticky{digit}"]


def test_a_slot_that_goes_is_last() -> None:
    rules = rule_set(row("10.96.0.1:80", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"))
    change = rules.update(WEB, [row("10.96.0.1:80", "10.0.0.1:80", "10.0.0.3:80")])
    texts = [
        MAPS[name].element_text(key, each) for name, found in change.last_slots().items() for key, each in found.items()
    ]
    assert texts == ["10.96.0.1 . tcp . 80 . 2 : 10.0.0.3 . 80"]
    assert list(change.new_chains) == ["random4-2"]
    assert change.gone_chains == ["random4-3"]


def test_an_unchanged_service_changes_nothing() -> None:
    rules = rule_set(row("10.96.0.1:80", "10.0.0.1:80"))
    assert not rules.update(WEB, [row("10.96.0.1:80", "10.0.0.1:80")])


def test_one_family_alone() -> None:
    rules = rule_set(
        row("10.96.0.1:80", "10.0.0.1:80"), row("[fd00::1]:80", "[fd01::1]:80"), families=frozenset({Family.IPV6})
    )
    assert not rules.elements()["frontends4"]
    assert rules.elements()["frontends6"]


def test_devices_whose_pattern_nft_does_not_know() -> None:
    rules = rule_set(pod_devices=("cali*", "veth?"))
    assert len(rules.set_node(["veth1", "veth2"])) == 2
    change = rules.set_node(["veth2", "veth3"])
    assert (len(change.added["pod_devices"]), len(change.deleted["pod_devices"])) == (1, 1)
    texts = [rule.text for rule in rules.chains()["prerouting"].rules]
    assert texts == ['iifname "cali*" goto inside', "iifname @pod_devices goto inside", "goto services"]


@pytest.mark.parametrize(
    ("ranges", "masqueraded"), [((), ["ipv4", "ipv6"]), (("10.244.0.0/16",), ["ipv4"]), (("fd00::/56",), ["ipv6"])]
)
def test_egress_snat_is_of_the_families_of_its_ranges(ranges: tuple[str, ...], masqueraded: list[str]) -> None:
    rules = rule_set(egress_snat=True, cluster_cidrs=tuple(map(CIDR.parse, ranges)))
    texts = [each.text for each in rules.chains()["egress"].rules]
    assert [text.split()[2] for text in texts if "masquerade" in text] == masqueraded
    assert texts[0] == "tcp flags != syn / fin,syn,rst,ack return"
    assert "udp dport 4789 return" in texts
