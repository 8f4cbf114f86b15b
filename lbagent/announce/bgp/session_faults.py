"""Why a BGP session is not established: a sentence from BIRD's state, its last error and the end of its log. Pure.

BIRD drops an error at the next attempt, and after one refusal a router closes the next connections without a reason: the
error of the first attempt is in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from lbagent.announce.bgp.bird_config import PeerSession
from lbagent.announce.bgp.bird_control import Protocol

RECENT = timedelta(minutes=10)  # routers wait up to 5 minutes between two attempts
LOG_BYTES = 64 << 10  # bytes that are read of the end of the log
# `2026-11-23 01:49:09.981 <RMT> peer_0a010001: Error: Bad peer AS: 64513`
_LOG_LINE = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?) <(?P<class>\w+)> (?P<text>.*)")
_BAD_PEER_AS = re.compile(r"Bad peer AS: (\d+)")


def fault(session: PeerSession, found: Protocol | None, log: Iterable[str], now: datetime) -> str:
    """Return why a session is not established and the remedy; '' when it is. `now` is local time, as in the log."""
    if found is None:
        return "BIRD has no session with it yet"
    if found.is_up:
        return ""
    errors = [*recent_errors(session.name, log, now), *filter(None, (found.last_error,))]
    last = next((each for each in reversed(errors) if not _is_hang_up(each)), errors[-1] if errors else "")
    if words := _protocol_words(session, last):
        return words
    return _socket_words(session, last) or _state_words(session, found, last) or last or f"being set up ({found.state})"


def is_given_up(found: Protocol | None) -> bool:
    """Return whether BIRD stopped retrying: the port of the node was in use."""
    return found is not None and found.state == "down" and "No listening socket" in found.last_error


def _socket_words(session: PeerSession, error: str) -> str:
    """Return a sentence for an error of the kernel or of BFD; '' for other errors."""
    if "No listening socket" in error:
        return "the TCP port of this node (`port`) is in use; another BGP daemon runs here, see `ss -tlnp`"
    if "Connection refused" in error:
        port = session.peer.port
        return f"it refuses connections to TCP port {port}: no BGP there, or this node is not its neighbor"
    if "No route to host" in error or "unreachable" in error.lower():
        return "no route to it, or no host with this address answers"
    if _is_hang_up(error):
        return "it closes the connection without a reason: this node with our ASN is not its neighbor, or it waits after an error"
    if "BFD" in error:
        return f"BFD reports that the path to it is down ({error})"
    return ""


def _state_words(session: PeerSession, found: Protocol, error: str) -> str:
    """Return a sentence for a state without an error that lasts; '' for other states."""
    if found.state == "idle" and session.peer.multihop <= 1 and not error:
        return "it is in no network of a device that is up; set `multihop` to 2 or more for a router further away"
    if found.state in ("connect", "active") and not error:
        has = "its password differs" if session.password else "it requires a password"
        return f"no answer at TCP port {session.peer.port}: {has}, there is no BGP, or packets are filtered"
    return ""


def _is_hang_up(error: str) -> bool:
    return "reset by peer" in error or "Connection closed" in error


def _protocol_words(session: PeerSession, error: str) -> str:
    """Return a sentence for an error in a BGP message (NOTIFICATION, RFC 4271 6); '' for other errors."""
    peer = session.peer
    if match := _BAD_PEER_AS.search(error):
        return f"wrong ASN: it has {match[1]}, the pools file has {peer.asn}"
    if "Bad peer AS" in error:
        return "wrong ASN: it expects another `localASN` of this node"
    if not error.startswith("Received:"):
        return ""
    said = error.removeprefix("Received:").strip()
    if said in ("Administrative shutdown", "Peer de-configured", "Connection rejected", "Administrative reset"):
        return f"it refuses the session: {said}"
    return f"it ended the session: {said}"


def recent_errors(name: str, log: Iterable[str], now: datetime) -> list[str]:
    """Return the lines of the log about a session since its restart, at most RECENT ago; oldest first."""
    found: list[str] = []
    for line in log:
        match = _LOG_LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        text = match["text"]
        if text in (f"Restarting protocol {name}", f"{name}: State changed to up", "Started"):
            found.clear()
        elif match["class"] == "TRACE" or not text.startswith(f"{name}: "):
            continue
        elif abs(now - datetime.fromisoformat(match["time"])) <= RECENT:
            found.append(text.removeprefix(f"{name}: "))
    return found
