"""Why a session is down: the sentence of each error, and which error counts."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from lbagent.announce.bgp.bird_config import PeerSession
from lbagent.announce.bgp.bird_control import Protocol
from lbagent.announce.bgp.session_faults import fault
from lbagent.model.address import parse_ip
from lbagent.pools.announcement import BgpPeer

NOW = datetime(2026, 11, 23, 2, 0, 0)
PEER = BgpPeer(parse_ip("10.1.0.1"), 64513)


def line(text: str, kind: str = "RMT", *, age_s: float = 10.0, name: str = "peer_0a010001: ") -> str:
    return f"{NOW - timedelta(seconds=age_s)}.123 <{kind}> {name}{text}"


def words(
    *log: str, state: str = "active", error: str = "", peer: BgpPeer = PEER, password: str = "", missing: bool = False
) -> str:
    found = None if missing else Protocol("peer_0a010001", "BGP", state, "", error)
    return fault(PeerSession(peer, password=password), found, log, NOW)


def test_a_session_that_is_up_has_no_fault() -> None:
    assert words(line("Error: Bad peer AS: 1"), state="established", error="Socket: Connection closed") == ""
    assert words(missing=True) == "BIRD has no session with it yet"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("Error: Bad peer AS: 64999", "wrong ASN: it has 64999, the pools file has 64513"),
        ("Received: Bad peer AS", "wrong ASN: it expects another `localASN` of this node"),
        ("Received: Administrative shutdown", "it refuses the session: Administrative shutdown"),
        ("Received: Hold timer expired", "it ended the session: Hold timer expired"),
        ("Socket: Connection refused", "it refuses connections to TCP port 179"),
        ("Socket: No route to host", "no host with this address answers"),
        ("Socket: Network is unreachable", "no route to it"),
        ("Socket: Connection reset by peer", "it closes the connection without a reason"),
        ("Error: No listening socket", "the TCP port of this node (`port`) is in use"),
        ("BFD session down", "BFD reports that the path to it is down"),
        ("Socket: Something new", "Socket: Something new"),
    ],
)
def test_the_words_of_an_error(error: str, text: str) -> None:
    assert text in words(error=error)


def test_states_that_last_without_an_error() -> None:
    assert "in no network of a device that is up" in words(state="idle")
    far = BgpPeer(PEER.address, 64513, multihop=2)
    assert words(state="idle", peer=far) == "being set up (idle)"
    assert "it requires a password" in words(state="connect")
    assert "its password differs" in words(state="connect", password="x")
    assert words(state="openconfirm") == "being set up (openconfirm)"


def test_the_reason_of_the_first_try_outlives_hang_ups() -> None:
    hang_up = "Socket: Connection reset by peer"
    first = line("Error: Bad peer AS: 64999")
    assert "wrong ASN" in words(first, error=hang_up)
    assert "wrong ASN" not in words(line("Error: Bad peer AS: 64999", age_s=700), error=hang_up)
    assert "wrong ASN" not in words(first, line("State changed to up", "TRACE"), error=hang_up)
    assert "wrong ASN" not in words(first, line("Restarting protocol peer_0a010001", "INFO", name=""), error=hang_up)
    assert "wrong ASN" not in words(first, line("Started", "INFO", name=""), error=hang_up)
    assert "wrong ASN" not in words(line("Error: Bad peer AS: 64999", name="peer_0a010002: "), error=hang_up)
    assert "refuses connections" in words(first, error="Socket: Connection refused")
    assert "wrong ASN" in words(first, line("State changed to start", "TRACE"), "no line of a log", error=hang_up)
