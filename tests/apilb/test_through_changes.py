"""No connection fails, and none gets to a removed server, while servers are added and removed, files are edited, the agent is restarted and HAProxy reloaded.

`make bench-apilb` makes 10,000 connections by each in the same way; here are a few hundred.
"""

from __future__ import annotations

import time

import pytest

from bench.apilb import through_changes
from bench.apilb.changing_sides import Change, HaproxySide, NativeSide
from bench.apilb.through_changes import Connection, ConnectionsSeen
from tests.lab.debian_packages import HAPROXY, unpacked


def _measured(kind: type[NativeSide | HaproxySide], changes: int) -> None:
    found = through_changes.measure(300, cycles=1, sides=[kind])[kind.name]
    assert found["connections"] >= 300
    assert found["failures"] == []
    assert found["to_removed"] == 0
    assert sum(found["changes"].values()) == changes
    assert set(found["servers"]) == {"a", "b", "c"}
    assert found["removed_s"] > 0, "a server was out for a while, so that a connection to it had been seen"


@pytest.mark.root
@pytest.mark.bpf
def test_native_mode() -> None:
    _measured(NativeSide, 15)


@pytest.mark.root
@pytest.mark.bpf
def test_haproxy() -> None:
    unpacked("haproxy", HAPROXY)
    _measured(HaproxySide, 10)


def test_only_a_connection_that_lies_between_removal_and_addition_is_one_to_a_removed_server() -> None:
    seen = ConnectionsSeen()
    before = time.monotonic()
    seen.make(Change("server removed", lambda names: None, "bc"))
    removed = time.monotonic()
    seen.connections += [Connection(removed, time.monotonic(), name) for name in "ab"]
    inside = seen.connections[0]
    assert seen.to_removed() == [inside]
    seen.connections.append(Connection(before, time.monotonic(), "a"))  # made while the removal was under way
    seen.make(Change("agent restarted", lambda names: None, "bc"))
    seen.make(Change("server added", lambda names: None))
    seen.connections.append(Connection(removed, time.monotonic(), "a"))  # it may have been answered after the addition
    assert seen.to_removed() == [inside]
