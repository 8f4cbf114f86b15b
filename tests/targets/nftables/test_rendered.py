"""The rule set of a State, as `lbagent render` prints it."""

from __future__ import annotations

from lbagent.model.address import parse_ip
from lbagent.targets.nftables.chains import TableSettings
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.rendered import ruleset_json, ruleset_text, unsupported
from tests.targets.nftables.made import row, wildcard

ROWS = (
    row("10.96.0.1:80", "10.0.0.1:8080", "192.0.2.1:8080"),
    wildcard("10.96.0.1"),
    row("[fd00::1]:80", "[fd01::1]:80", session_affinity=True),
    row("127.0.0.1:81", "10.0.0.1:8080", loopback_hostport=True),
)
PLACE = NodePlace("here", (), node_ips=[parse_ip("192.0.2.1")])


def test_text() -> None:
    text = ruleset_text(ROWS, PLACE, TableSettings())
    assert text == ruleset_text(list(ROWS), PLACE, TableSettings())
    assert "elements = { 192.0.2.1 }" in text  # local4
    assert "goto client6-1" in text
    assert "@affinity6 {" not in text


def test_json() -> None:
    assert {"table": {"family": "inet", "name": "lbagent", "comment": "lbagent 1"}} in ruleset_json(
        ROWS, PLACE, TableSettings()
    )["nftables"]


def test_what_is_not_served() -> None:
    ((name, reason),) = unsupported(ROWS, PLACE, TableSettings())
    assert str(name) == "default/web"
    assert "127.0.0.1:81/TCP" in reason
