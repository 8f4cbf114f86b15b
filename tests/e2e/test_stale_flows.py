"""Endpoints that are gone from their slices while clients talk to them: `lbagent.io/stale-flows` under real traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import DNS, VIP4, VIP6, Cluster
from tests.e2e.conftest import opened
from tests.lab.netns import Stopwatch, wait_for
from tests.lab.traffic import Datagrams, Talkers

pytestmark = pytest.mark.early

WORD = "lbagent.io/stale-flows"
RESET = "ConnectionResetError"


@pytest.fixture(scope="module", params=["xdp", "tc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with opened(request.param, ["--sweep-interval", "1"]) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


def gone(made: Cluster, name: str) -> dict[str, dict[str, Any]]:
    """Return the backends of a host that the agent shows as gone from their slices. Earlier tests leave UDP flows of others."""
    hosts = [f"[{e.address}]:" if ":" in e.address else f"{e.address}:" for e in made.endpoints(name)]
    rows = [row for row in made.agent.api.backends() if row.get("gone")]
    return {row["address"]: row for row in rows if row["address"].startswith(tuple(hosts))}


def talk(made: Cluster, word: str, name: str) -> tuple[list[Talkers], Datagrams]:
    """Serve both Services from one backend, with that word, and begin conversations of both families."""
    notes: dict[str, Any] = {"annotations": {WORD: word}}
    made.serve(made.web(name, **notes), made.dns(name, **notes))
    talkers = [made.talkers(4, vip) for vip in (VIP4, VIP6)]
    return talkers, Datagrams(made.client, DNS, 53, 2)


def leave(made: Cluster, word: str, name: str) -> None:
    notes: dict[str, Any] = {"annotations": {WORD: word}}
    made.serve(made.web(name, **notes), made.dns(name, **notes))


@pytest.mark.parametrize("name", ["b1", "b3"])
def test_kept_flows_go_on_until_they_end(served: Cluster, name: str) -> None:
    """b3 is a pod of this node. Both protocols stay, new flows go elsewhere, and the backend goes with its last flow."""
    talkers, datagrams = talk(served, "keep", name)
    leave(served, "keep", "b2")
    for _ in range(3):
        assert {word for each in talkers for word in each.ask()} == {name}
        assert set(datagrams.ask()) == {name}
        time.sleep(1)
    assert set(served.http(20)) == set(served.ask_dns(20)) == {"b2"}
    wait_for(lambda: len(gone(served, name)) == 4, "those of both families and protocols")
    rows = gone(served, name).values()
    assert {row["state"] for row in rows} == {"terminating"}
    assert all(row["flows"] for row in rows)
    assert served.agent.cli("verify", check=False).returncode == 0
    for each in talkers:
        each.close()
    wait_for(lambda: all("UDP" in each for each in gone(served, name)), "the end of what was kept for connections", 90)
    assert set(datagrams.ask()) == {name}
    datagrams.close()


def test_reset_is_the_rule_without_a_word(served: Cluster) -> None:
    """TCP is reset, UDP moves with its next datagram."""
    talkers, datagrams = talk(served, "reset", "b1")
    leave(served, "reset", "b2")
    assert all(word.startswith(RESET) for each in talkers for word in each.ask())
    assert set(datagrams.ask()) == {"b2"}
    assert not gone(served, "b1")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_drain_gives_them_its_seconds(served: Cluster, *, restarts: bool) -> None:
    """Also if the agent is killed in the middle, and another one starts: the time continues meanwhile."""
    seconds = 30 if restarts else 12  # a start takes some on a busy machine
    word = f"drain={seconds}"
    talkers, datagrams = talk(served, word, "b1")
    leave(served, word, "b2")
    left = Stopwatch()
    if restarts:
        served.agent.kill()
        served.agent.start()
    assert {found for each in talkers for found in each.ask()} == {"b1"}
    assert set(datagrams.ask()) == {"b1"}
    assert left.real_s < seconds, "the machine was too slow to see anything"
    wait_for(lambda: not gone(served, "b1"), "the end of the time", 60)
    assert left.real_s > seconds - 1.5
    assert left.s < seconds + 20
    assert all(found.startswith(RESET) for each in talkers for found in each.ask())
    assert set(datagrams.ask()) == {"b2"}


def test_an_endpoint_that_comes_back_has_its_flows(served: Cluster) -> None:
    talkers, datagrams = talk(served, "keep", "b1")
    leave(served, "keep", "b2")
    wait_for(lambda: bool(gone(served, "b1")), "the backends that are gone")
    leave(served, "keep", "b1")
    assert not gone(served, "b1")
    assert {word for each in talkers for word in each.ask()} == {"b1"}
    assert set(datagrams.ask()) == {"b1"}
    assert set(served.http(20)) == {"b1"}


def test_the_service_of_a_flow_decides(served: Cluster) -> None:
    """Two Services have one backend: when it is gone for both, one keeps its connections and the other resets them."""
    from tests.lab.manifests import Manifest

    others = ("10.96.8.1", "fd00:96::801")
    served.serve(served.web("b1", annotations={WORD: "keep"}))
    other = Manifest("other", others, served.endpoints("b1"), port=80)
    served.serve(other)
    mine = [served.talkers(2, vip) for vip in (VIP4, VIP6)]
    theirs = [served.talkers(2, vip) for vip in others]
    served.serve(Manifest("other", others, served.endpoints("b3"), port=80))
    assert {word for each in theirs for word in each.ask()} == {"b1"}, "the backend lives"
    served.serve(served.web("b2", annotations={WORD: "keep"}))

    def are_reset() -> bool:
        return all(word.split(":")[0] != "b1" for each in theirs for word in each.ask())

    wait_for(are_reset, "the end of the connections of the other Service", 60)
    assert {word for each in mine for word in each.ask()} == {"b1"}
