"""What differs, with its Service and frontend."""

from __future__ import annotations

from lbagent.targets.nftables.findings import findings
from lbagent.targets.nftables.map_specs import Element
from tests.targets.nftables.made import row, rule_set, wildcard

SLOT = "10.96.0.1 . tcp . 80"
ROWS = (row("10.96.0.1:80", "10.0.0.1:8080", "10.0.0.2:8080"), wildcard("10.96.0.1"))


def test_each_kind() -> None:
    wanted, found = rule_set(*ROWS).elements(), rule_set(*ROWS).elements()
    assert not list(findings(found, wanted))
    slots = found["backends4"]
    first, second = sorted(slots)
    gone = slots.pop(first)
    slots[second] = Element(bytes(gone.value or b""))
    slots[first[:-4] + b"\7\0\0\0"] = gone
    texts = sorted(map(str, findings(found, wanted)))
    assert texts == [
        f"default/web 10.96.0.1:80/TCP: differs: backends4: {SLOT} . 1 : 10.0.0.1 . 8080, wanted {SLOT} . 1 : 10.0.0.2 . 8080",
        "default/web 10.96.0.1:80/TCP: missing: backends4: 10.96.0.1 . tcp . 80 . 0 : 10.0.0.1 . 8080",
        "default/web 10.96.0.1:80/TCP: stale: backends4: 10.96.0.1 . tcp . 80 . 7 : 10.0.0.1 . 8080",
    ]


def test_what_belongs_to_no_frontend() -> None:
    wanted = rule_set(*ROWS).elements()
    found = rule_set(ROWS[0]).elements()
    (only,) = findings(found, wanted)
    assert (only.kind, only.service, only.frontend) == ("missing", None, None)
    assert str(only) == 'missing: cluster_ips4: 10.96.0.1 comment "default/web"'
