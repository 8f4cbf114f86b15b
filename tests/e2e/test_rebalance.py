"""`backend rebalance` under real traffic: after a scale-up the clients of a full backend connect again, and evenly."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.e2e.conftest import opened
from tests.lab.traffic import Datagrams, Talkers

pytestmark = pytest.mark.early

VIPS = {4: VIP4, 6: VIP6}
DNS4 = ("10.96.0.53",)


@pytest.fixture(scope="module", params=["xdp", "tc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with opened(request.param, []) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


def rebalance(made: Cluster, name: str, *words: str) -> Any:
    return made.agent.cli("backend", "rebalance", f"{made.web().namespace}/{name}", *words, check=False)


@pytest.mark.parametrize("version", [4, 6])
def test_after_a_scale_up(served: Cluster, version: int) -> None:
    """No more than the rate, none of a backend that is within, and no datagram is touched."""
    served.serve(served.web("b1"), served.dns("b1"))
    talkers: list[Talkers] = [served.talkers(1, VIPS[version]) for _ in range(24)]
    datagrams = Datagrams(served.client, DNS4, 53, 2)
    served.serve(served.web("b1", "b2"), served.dns("b1", "b2"))
    plan = rebalance(served, "web", "--dry-run", "-o", "json")
    assert plan.returncode == 0, plan.stderr
    rows = {row["address"]: row for row in json.loads(plan.stdout)}
    mine = {name: row for name, row in rows.items() if ("[" in name) == (version == 6)}
    assert sorted(row["share"] for row in mine.values()) == [12, 12]
    assert sorted(row["flows"] for row in mine.values()) == [0, 24]
    assert sum(row["to_reset"] for row in mine.values()) == 24 - 13
    assert {word for each in talkers for word in each.ask()} == {"b1"}, "a dry run resets nothing"
    began = time.monotonic()
    done = rebalance(served, "web", "--rate", "5", "-o", "json")
    assert time.monotonic() - began > 2, "eleven flows, five a second"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert lines[-1]["state"] == "within"
    answers = Counter(word.split(":")[0] for each in talkers for word in each.ask())
    assert answers == {"b1": 13, "ConnectionResetError": 11}
    assert set(datagrams.ask()) == {"b1"}
    for each in talkers:
        each.close()
    datagrams.close()


def test_what_cannot_be(served: Cluster) -> None:
    assert rebalance(served, "nobody").returncode == 3
    assert rebalance(served, "dns").returncode == 4
    assert rebalance(served, "web", "--to-within", "x%").returncode == 2
    assert rebalance(served, "web", "--rate", "0").returncode == 2
