"""`bgp peers`."""

from __future__ import annotations

import json

from lbagent.announce.bgp.speaker import BgpPeerRow
from tests.api.serving import Agent
from tests.cli.conftest import Run


def test_peers(lb: Run, agent: Agent) -> None:
    agent.peers = [
        BgpPeerRow("172.31.77.1", 64513, "established", "up", 3),
        BgpPeerRow("fd00:77::1", 64513, "active", "off", 0, "it refuses connections to TCP port 179"),
    ]
    done = lb("bgp", "peers")
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()] == [
        ["ADDRESS", "ASN", "STATE", "BFD", "ADVERTISED", "REASON"],
        ["172.31.77.1", "64513", "established", "up", "3", "-"],
        ["fd00:77::1", "64513", "active", "off", "0", *["it", "refuses", "connections", "to", "TCP", "port", "179"]],
    ]
    rows = json.loads(lb("bgp", "peers", "-o", "json").out)
    assert rows[0] == {"address": "172.31.77.1", "asn": 64513, "state": "established", "bfd": "up", "advertised": 3}
    assert rows[1]["reason"].startswith("it refuses")
    assert lb("bgp", "peers", "-o", "name").out == "172.31.77.1\nfd00:77::1\n"


def test_no_peers(lb: Run, agent: Agent) -> None:
    done = lb("bgp", "peers")
    assert (done.code, done.out) == (0, "")
    assert "no BGP peer: the pools file has no section bgp" in done.err
    assert lb("bgp", "peers", "-o", "json").out == "[]\n"


def test_no_agent(lb: Run, no_agent: None) -> None:
    assert lb("bgp", "peers").code == 5
