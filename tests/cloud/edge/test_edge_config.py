"""The configuration of provider edge: its meaning, and one message for an error."""

from __future__ import annotations

import pytest

from lbagent.cloud.edge.edge_config import EdgeConfig, NodeChoice, Protocol, read_edge_config
from lbagent.cloud.edge.edge_provider import EdgeProvider
from lbagent.errors import ConfigError
from lbagent.http.http_client import Url


def test_nothing_is_the_default() -> None:
    for text in ("", "# nothing\n", "{}", "---\n"):
        assert read_edge_config(text) == EdgeConfig()
    assert EdgeProvider(None).name == "edge"


def test_all_of_it() -> None:
    text = (
        "gateway: http://192.168.1.1:5000/rootDesc.xml\nnode: first-ready\nlease: 2h\npoll: 10s\n"
        "externalIP: 203.0.113.9\nprotocols: [nat-pmp]\nacceptLabels: true\n"
    )
    assert read_edge_config(text) == EdgeConfig(
        Url("192.168.1.1", 5000, "/rootDesc.xml"),
        NodeChoice.FIRST_READY,
        7200,
        10.0,
        "203.0.113.9",
        (Protocol.NAT_PMP,),
        True,
    )
    assert read_edge_config("lease: 0").lease_s == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gateway: {", "1: not YAML"),
        ("\ngatway: x", "2: gatway: unknown key; did you mean 'gateway'?"),
        ("gateway: https://192.168.1.1/", "1: gateway: 'https://192.168.1.1/' is no URL like http://"),
        ("poll: 5s\nnode: any", "2: node: unknown value 'any'; one of exact-one, self, first-ready is possible"),
        ("lease: 1y", "1: lease: '1y' is no time like"),
        ("lease: 60s", "1: lease: '60s' is less than 90s (three times `poll`); 0 is without an end"),
        ("poll: 1s\nlease: 20", "2: lease: 20 is less than 30s"),
        ("lease: 700000", "1: lease: '700000s' is not in 0s-604800s"),
        ("poll: 0s", "1: poll: '0s' is not in 1s-3600s"),
        ("externalIP: 2001:db8::1", "1: externalIP: '2001:db8::1' is not an IPv4 address"),
        ("protocols: []", "1: protocols: at least one of upnp, nat-pmp is needed"),
        ("protocols:\n- upnp\n- pcp", "3: protocols[1]: unknown value 'pcp'; one of upnp, nat-pmp is possible"),
        ("protocols: [upnp, upnp]", "1: protocols[1]: 'upnp' is given twice"),
        ("acceptLabels: maybe", "1: acceptLabels: 'maybe' is not true or false"),
        ("[]", "1: a mapping is wanted, not a list"),
        ("{}\n---\n{}", " one document is wanted, not 2"),
    ],
)
def test_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as found:
        EdgeProvider(text)
    assert str(found.value).startswith(f"--config:{message}"), found.value
