"""Two hundred nodes with the real decisions, over a network and an API server that delay everything at random."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest

from lbagent.liveness.chosen_peers import ChosenPeers
from lbagent.liveness.dead_nodes import DeadNodes, Suspicions
from lbagent.liveness.observed_nodes import Attempt, ObservedNodes

pytestmark = [pytest.mark.long]
NODES, OBSERVERS, TICK_S, ASK_S = 200, 8, 0.1, 0.4
NAMES = [f"worker-{number}" for number in range(NODES)]
EVERY = frozenset(NAMES)
Reaches = Callable[[str, str], bool]


@functools.cache
def peers_of(name: str) -> frozenset[str]:
    chosen = ChosenPeers(name, OBSERVERS)
    chosen.update(EVERY)
    return chosen.peers


class Cluster:
    """`reaches` is whether a packet gets from one node to another, and back."""

    def __init__(self, seed: int, *, api_delay_s: float) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.api_delay_s = api_delay_s
        self.reaches: Reaches = lambda _one, _other: True
        self.observed = {name: ObservedNodes(0.0) for name in NAMES}
        self.decisions = {name: DeadNodes(name) for name in NAMES}
        self.phase = {name: self.rng.uniform(0, ASK_S) for name in NAMES}
        self.powered = set(NAMES)
        self.sent: dict[str, frozenset[str]] = dict.fromkeys(NAMES, frozenset())
        self.on_the_way: list[tuple[float, str, str, bool]] = []
        self.published: dict[str, set[str]] = {}
        self.died: dict[str, dict[str, float]] = {name: {} for name in NAMES}  # when each declared whom dead first
        for name in NAMES:
            self.observed[name].use(sorted(peers_of(name)))

    def run(self, seconds: float, *, busy: float = 0.0) -> None:
        """`busy`: the share of ticks that an agent misses, for want of a processor."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self._deliver()
            for name in filter(self.powered.__contains__, NAMES):
                if self.rng.random() >= busy:
                    self._tick(name)

    def _tick(self, name: str) -> None:
        observed = self.observed[name]
        observed.look(self.now)
        if (self.now + self.phase[name]) % ASK_S < TICK_S:
            for peer in observed.names:
                doubtful = observed.is_doubtful(peer, self.now)
                for kind in (Attempt.ECHO, Attempt.ICMP, Attempt.TCP) if doubtful else (Attempt.ECHO,):
                    observed.asked(peer, kind, self.now)
                if peer in self.powered and self.reaches(name, peer) and self.rng.random() > 0.02:
                    observed.answered(peer, Attempt.ECHO, self.now)
        self._publish(name, observed.suspected())
        suspicions = Suspicions(
            EVERY, self.published, OBSERVERS, silent=observed.silent(self.now),
            without_agent=observed.without_agent(self.now), is_cut_off=observed.is_cut_off,
        )  # fmt: skip
        decision = self.decisions[name]
        decision.decide(suspicions, self.now)
        for dead in decision.dead:
            self.died[name].setdefault(dead, self.now)

    def _publish(self, name: str, suspects: frozenset[str]) -> None:
        for node in sorted(suspects ^ self.sent[name]):
            at = self.now + self.rng.uniform(0.02, self.api_delay_s)
            self.on_the_way.append((at, node, name, node in suspects))
        self.sent[name] = suspects

    def _deliver(self) -> None:
        due = [each for each in self.on_the_way if each[0] <= self.now]
        self.on_the_way = [each for each in self.on_the_way if each[0] > self.now]
        for _, node, by, is_suspected in sorted(due):
            observers = self.published.setdefault(node, set())
            (observers.add if is_suspected else observers.discard)(by)


def parted(part: set[str]) -> Reaches:
    return lambda one, other: (one in part) == (other in part)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_without_power_is_dead_for_all_others_in_time(seed: int) -> None:
    cluster = Cluster(seed, api_delay_s=0.1)
    cluster.run(3)
    dead = NAMES[seed]
    cluster.powered.discard(dead)
    cut_at = cluster.now
    cluster.run(5)
    late = {name: died[dead] - cut_at for name, died in cluster.died.items() if name != dead}
    assert len(late) == NODES - 1
    assert max(late.values()) <= 2.9
    assert all(died.keys() <= {dead} for died in cluster.died.values())


@pytest.mark.parametrize("api_delay_s", [0.1, 3.0])
def test_a_cut_that_takes_a_third_makes_none_dead(api_delay_s: float) -> None:
    """On neither side, while it begins, lasts, and ends; each side reaches the API server."""
    cluster = Cluster(7, api_delay_s=api_delay_s)
    cluster.run(3)
    cluster.reaches = parted(set(NAMES[: NODES // 3 + 1]))
    cluster.run(9)
    panics = sum(decision.is_panic for decision in cluster.decisions.values())
    cluster.reaches = lambda _one, _other: True
    cluster.run(9)
    assert all(not died for died in cluster.died.values())
    assert panics > 0.9 * NODES
    assert not any(decision.is_panic for decision in cluster.decisions.values())


def test_a_cut_that_takes_a_tenth_makes_these_dead_and_no_other() -> None:
    """For the others. Those that are cut off blame none."""
    cluster = Cluster(8, api_delay_s=0.1)
    cluster.run(3)
    part = set(NAMES[: NODES // 10])
    cluster.reaches = parted(part)
    cluster.run(6)
    assert all(died.keys() <= part for died in cluster.died.values())
    outside = [cluster.died[name] for name in EVERY - part if not cluster.observed[name].is_cut_off]
    assert all(died.keys() == part for died in outside)
    assert len(outside) >= 0.98 * len(EVERY - part), "of one or two nodes nearly all peers are behind the cut"


def test_agents_that_get_little_time_blame_no_node() -> None:
    cluster = Cluster(9, api_delay_s=0.5)
    cluster.run(3)
    cluster.run(20, busy=0.9)
    assert all(not died for died in cluster.died.values())
