"""The forms for people and nft."""

from __future__ import annotations

import json

from lbagent.targets.nftables.nft_text import difference_text, priority_text, table_json, table_text
from tests.targets.nftables.made import WEB, row, rule_set, wildcard

ROWS = (
    row("10.96.0.1:80", "10.0.0.1:8080", "10.0.0.2:8080"),
    wildcard("10.96.0.1"),
    row("[fd00::1]:80", "[fd01::1]:80"),
)


def test_the_same_rules_give_the_same_text() -> None:
    again = rule_set(*reversed(ROWS))
    assert table_text(rule_set(*ROWS)) == table_text(again)


def test_the_text_replaces_the_table() -> None:
    text = table_text(rule_set(*ROWS, table="lb2", priority=-7))
    assert text.startswith('table inet lb2\ndelete table inet lb2\ntable inet lb2 {\n\tcomment "lbagent 1"\n')
    assert "type nat hook prerouting priority dstnat - 7; policy accept;" in text
    assert "type nat hook output priority -107; policy accept;" in text
    assert '10.96.0.1 . tcp . 80 comment "default/web http" : goto random4-2' in text


def test_priorities() -> None:
    assert [priority_text("prerouting", each) for each in (-100, -105, -90, -200)] == [
        "dstnat",
        "dstnat - 5",
        "dstnat + 10",
        "-200",
    ]
    assert priority_text("postrouting", 95) == "srcnat - 5"
    assert priority_text("input", 95) == "95"


def test_a_difference_is_one_script() -> None:
    rules = rule_set(*ROWS)
    change = rules.update(WEB, [row("10.96.0.1:80", "10.0.0.1:8080"), wildcard("10.96.0.1")])
    lines = difference_text("lbagent", change).splitlines()
    assert lines[0] == "add chain inet lbagent random4-1"
    assert "delete element inet lbagent backends4 { 10.96.0.1 . tcp . 80 . 1 }" in lines
    assert (
        'add element inet lbagent frontends4 { 10.96.0.1 . tcp . 80 comment "default/web http" : goto random4-1 }'
        in lines
    )
    assert lines[-1] == "delete chain inet lbagent random6-1"
    assert (
        difference_text("lbagent", rules.update(WEB, [row("10.96.0.1:80", "10.0.0.1:8080"), wildcard("10.96.0.1")]))
        == ""
    )


def test_json() -> None:
    found = json.loads(json.dumps(table_json(rule_set(*ROWS))))["nftables"]
    maps = {item["map"]["name"]: item["map"] for item in found if "map" in item}
    assert maps["frontends4"]["elem"] == [
        [
            {"elem": {"val": {"concat": ["10.96.0.1", "tcp", 80]}, "comment": "default/web http"}},
            {"goto": {"target": "random4-2"}},
        ]
    ]
    assert [{"concat": ["10.96.0.1", "tcp", 80, 1]}, {"concat": ["10.0.0.2", 8080]}] in maps["backends4"]["elem"]
    assert maps["backends4"]["type"] == ["ipv4_addr", "inet_proto", "inet_service", "integer"]


def test_switches() -> None:
    text = table_text(rule_set(external_clusterip=False, reject_rate=0, pod_devices=("pod*",), masquerade_all=True))
    assert "meta l4proto @protocols ip daddr @cluster_ips4 drop" in text
    assert "limit rate" not in text
    assert 'iifname "pod*" goto inside' in text
    assert 'iifname "pod*" return' not in text
