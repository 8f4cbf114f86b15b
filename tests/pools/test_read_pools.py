"""The pools file: its valid values, and one message with line and field for an invalid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbagent.errors import ConfigError
from lbagent.model.address import parse_ip
from lbagent.pools.read_pools import parse_pools, read_pools

WHOLE = """\
pools:
- {name: office, addresses: [172.31.77.200-172.31.77.220, 172.31.78.0/28, "fd00:77::200/124"], announce: [l2], priority: 0,
   autoAssign: true, avoidBuggyIPs: true, namespaces: [], serviceSelector: {}}
- {name: lab, addresses: [10.9.0.0/24], announce: [l2, bgp], priority: 5, autoAssign: false, avoidBuggyIPs: false,
   namespaces: [lab], serviceSelector: {matchLabels: {tier: web}, matchExpressions: [{key: old, operator: DoesNotExist}]}}
l2: {leaseDuration: 2s, restartGrace: 1m, devices: [eth0], probe: false, conflict: yield, nodeSelector: {edge: "yes"}}
bgp: {localASN: 64512, port: 1179, gracefulRestart: false, communities: ["64512:100", "64512:1:2"], peers: [{address: 172.31.77.1,
  asn: 64513, port: 179, bfd: {interval: 300ms, multiplier: 3}, passwordFile: F, holdTime: 90s, multihop: 1, nodeSelector: {}}]}
"""


def test_all_that_a_file_may_say() -> None:
    found = parse_pools(WHOLE, "pools.yaml")
    lab, office = found.pools  # the higher priority first
    assert (lab.name, lab.announce, lab.priority, lab.auto_assign, lab.avoid_buggy_ips) == (
        "lab", {"l2", "bgp"}, 5, False, False,
    )  # fmt: skip
    assert (office.name, office.announce, office.auto_assign, office.avoid_buggy_ips) == ("office", {"l2"}, True, True)
    assert lab.serves("lab", {"tier": "web"})
    assert not lab.serves("lab", {"tier": "web", "old": ""})
    assert not lab.serves("lab", {"tier": "db"})
    assert not lab.serves("default", {"tier": "web"})
    assert office.serves("default", {})
    assert [found.pool_of(parse_ip(each)) for each in ("172.31.78.15", "10.9.0.255", "10.9.1.0", "fd00:77::20f")] == [
        office, lab, None, office,
    ]  # fmt: skip
    l2, bgp = found.l2, found.bgp
    assert (l2.lease_duration_s, l2.restart_grace_s, l2.devices, l2.probe) == (2, 60, ("eth0",), False)
    assert not l2.defends
    assert l2.node_selector.matches({"edge": "yes"})
    assert not l2.node_selector.matches({"edge": "no"})
    assert bgp is not None
    assert (bgp.local_asn, bgp.port, bgp.graceful_restart) == (64512, 1179, False)
    assert bgp.communities == ((64512, 100), (64512, 1, 2))
    (peer,) = bgp.peers
    assert (peer.address, peer.asn, peer.port, peer.password_file) == (bytes((172, 31, 77, 1)), 64513, 179, "F")
    assert (peer.hold_time_s, peer.multihop) == (90, 1)
    assert peer.bfd is not None
    assert (peer.bfd.interval_s, peer.bfd.multiplier) == (pytest.approx(0.3), 3)


@pytest.mark.parametrize("text", ["", "---\n", "pools: []\n", "{}"])
def test_a_file_without_pools(text: str) -> None:
    found = parse_pools(text, "pools.yaml")
    assert found.pools == ()
    assert (found.l2.lease_duration_s, found.l2.restart_grace_s, found.l2.probe, found.l2.defends) == (
        2,
        30,
        True,
        True,
    )
    assert found.bgp is None


def test_defaults_of_a_pool() -> None:
    (pool,) = parse_pools("pools:\n- name: a\n  addresses: [10.0.0.1]\n", "f").pools
    assert (pool.announce, pool.priority, pool.auto_assign, pool.avoid_buggy_ips) == ({"l2"}, 0, True, True)


A = "pools:\n- name: a\n  addresses: [10.0.0.0/24]\n"
BGP = "bgp:\n  localASN: 64512\n  peers:\n  - address: 10.0.0.1\n    asn: 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pools: 3", "f:1: pools: 3 is not a list"),
        ("- a", "f:1: a mapping is wanted, not a list"),
        ("pool:\n- name: a", "f:2: pool: unknown key; did you mean 'pools'?"),
        ("pools:\n- name: a\n  addresess: []", "f:3: pools[0].addresess: unknown key; did you mean 'addresses'?"),
        ("pools:\n- name: a", "f:2: pools[0].addresses: it is missing"),
        ("pools:\n- name: a\n  addresses: []", "f:3: pools[0].addresses: a pool has at least one range"),
        ("pools:\n- name: ''\n  addresses: [10.0.0.1]", "f:2: pools[0].name: '' is not a name"),
        ("pools:\n- name: a,b\n  addresses: [10.0.0.1]", "f:2: pools[0].name: 'a,b' is not a name"),
        ("pools:\n- name: a\n  addresses:\n  - 10.0.0.1\n  - x", "f:5: pools[0].addresses[1]: 'x' is not an address, range or network"),
        ("pools:\n- name: a\n  addresses:\n  - 10.0.0.9-10.0.0.1", "f:4: pools[0].addresses[0]: '10.0.0.9-10.0.0.1': end is below start"),
        ("pools:\n- name: a\n  addresses:\n  - 10.0.0.0/24\n  - 10.0.0.255", "f:5: pools[0].addresses[1]: '10.0.0.255' overlaps 10.0.0.0-10.0.0.255 of the same pool"),
        (f"{A}- name: b\n  addresses: [10.0.0.255-10.0.1.0]", "f:5: pools[1].addresses: 10.0.0.255-10.0.1.0 overlaps 10.0.0.0-10.0.0.255 of pool a"),
        (f"{A}- name: a\n  addresses: [10.0.1.0]", "f:4: pools[1].name: 'a' is given twice"),
        (f"{A}  announce: [arp]", "f:4: pools[0].announce[0]: unknown value 'arp'; one of l2, bgp is possible"),
        (f"{A}l2: {{conflict: fight}}", "f:4: l2.conflict: unknown value 'fight'; one of defend, yield is possible"),
        (f"{A}  announce: [bgp]", "f:4: pools[0].announce[0]: the section bgp with localASN and peers is missing"),
        (f"{A}  priority: high", "f:4: pools[0].priority: 'high' is not a whole number"),
        (f"{A}  autoAssign: 1", "f:4: pools[0].autoAssign: 1 is not true or false"),
        (f"{A}  namespaces: [1]", "f:4: pools[0].namespaces[0]: 1 is not a text"),
        (f"{A}  serviceSelector:\n    matchLabels: [x]", "f:5: pools[0].serviceSelector.matchLabels: a mapping is wanted, not a list"),
        (f"{A}  serviceSelector: {{matchExpressions: [{{key: a, operator: Is}}]}}", "f:4: pools[0].serviceSelector.matchExpressions[0].operator: unknown value 'Is'; one of In, NotIn, Exists, DoesNotExist is possible"),
        (f"{A}  serviceSelector: {{matchExpressions: [{{operator: In}}]}}", "f:4: pools[0].serviceSelector.matchExpressions[0].key: it is missing"),
        (f"{A}  serviceSelector: {{matchExpressions: [{{key: 1, operator: In}}]}}", "f:4: pools[0].serviceSelector.matchExpressions[0].key: 1 is not a text"),
        (f"{A}  serviceSelector: {{matchExpressions: [{{key: a, operator: In}}]}}", "f:4: pools[0].serviceSelector.matchExpressions[0].values: In has at least one value"),
        (f"{A}  serviceSelector: {{app: 1}}", "f:4: pools[0].serviceSelector.app: 1 is not a text"),
        ("l2:\n  leaseDuration: soon", "f:2: l2.leaseDuration: 'soon' is no time like 2s, 300ms or 1h"),
        ("l2:\n  leaseDuration: 500ms", "f:2: l2.leaseDuration: '500ms' is not in 1s-3600s"),
        ("l2:\n  leaseDuration: [2]", "f:2: l2.leaseDuration: a time is wanted, not a list"),
        ("bgp: {}", "f:1: bgp.localASN: it is missing"),
        ("bgp:\n  localASN: 0", "f:2: bgp.localASN: 0 is not in 1-4294967295"),
        (f"{BGP}    holdTime: 2s", "f:6: bgp.peers[0].holdTime: '2s' is neither 0s nor at least 3s (RFC 4271)"),
        (f"{BGP}    port: 70000", "f:6: bgp.peers[0].port: 70000 is not in 1-65535"),
        (f"{BGP}    bfd: {{interval: 1ms}}", "f:6: bgp.peers[0].bfd.interval: '1ms' is not in 0.01s-60s"),
        (f"{BGP}  - address: 10.0.0.1\n    asn: 2", "f:6: bgp.peers[1].address: '10.0.0.1' is given twice"),
        ("bgp:\n  localASN: 1\n  peers: [{address: 10.0.0, asn: 1}]", "f:3: bgp.peers[0].address: '10.0.0' is not an IP address"),
        ("bgp: {localASN: 1, communities: [no-export]}", "f:1: bgp.communities[0]: 'no-export' is not a community like 64512:100 or 64512:1:2"),
        ("bgp: {localASN: 1, communities: ['70000:1']}", "f:1: bgp.communities[0]: '70000:1' has a number over 65535"),
        ("pools: [\n", "f:1: not YAML: while parsing a flow node did not find expected node content"),
        ("a: 1\n---\nb: 2\n", "f: one document is wanted, not 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_pools(text, "f")
    assert str(refused.value) == message
    assert refused.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.yaml: No such file or directory"):
        read_pools(str(tmp_path / "none.yaml"))
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"pools: [\xff]")
    with pytest.raises(ConfigError, match="latin.yaml"):
        read_pools(str(path))
    path.write_text(A)
    assert [pool.name for pool in read_pools(str(path)).pools] == ["a"]
