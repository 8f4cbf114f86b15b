"""Simulated nodes, Leases and a link: after any events, no two nodes answer for an address for over a second, and in the end one does.

The machines, the lives of nodes and the hashing are the real code; server, link and time are simulated. A node's
program answers for `GRACE_S` longer than its agent lives. Nodes lose the API server, and their cable with and without an event; agents are
killed and stopped at any moment; a node dies as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.announce.l2.duplicate_probes import DuplicateProbes
from lbagent.announce.l2.vip_machine import Act, LeaseStatus, Order, VipMachine, VipSettings, is_overdue
from lbagent.announce.leader.node_lives import NodeLives
from lbagent.model.rendezvous import preferred_node

ADDRESS = b"\n\0\0\1"
STEP_S, DURATION_S, RENEW_S, GRACE_S = 0.05, 2.0, 1.0, 6.0
MOST_TOGETHER_S = 1.0
NAMES = ("a", "b", "c")


@dataclass
class Server:
    """Leases, with a version each; a write of an old version is refused."""

    holder: str = ""
    version: int = 0
    renewed: dict[str, tuple[int, bool]] = field(
        default_factory=dict
    )  # of nodes: a counter, and whether it may announce


@dataclass
class SimulatedNode:
    name: str
    began: float
    online: bool = True  # the API server reaches it
    linked: bool = True  # frames reach it
    runs: bool = True  # its agent
    stopped: bool = False  # SIGSTOP: it does not notice the time
    eligible: bool = True
    answers_until: float = -1.0  # its program answers

    def __post_init__(self) -> None:
        self.start(self.began)

    def start(self, now: float) -> None:
        self.runs, self.stopped = True, False
        self.lives = NodeLives(self.name, DURATION_S)
        self.machine = VipMachine(VipSettings(self.name, GRACE_S), now, answers=self.answers_until > now)
        self.questions = DuplicateProbes()
        self.known: dict[str, tuple[int, bool]] = {}
        self.holder, self.version = "", -1
        self.next_renewal = now


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server()
        self.nodes = {name: SimulatedNode(name, 0.0) for name in NAMES}
        self.together_s = 0.0
        self.worst_s = 0.0

    def answering(self) -> list[SimulatedNode]:
        """Return the nodes from which a client on the link gets answers."""
        return [node for node in self.nodes.values() if node.linked and node.answers_until > self.now]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            for node in self.nodes.values():
                if node.runs and not node.stopped:
                    self._turn(node)
            self.together_s = self.together_s + STEP_S if len(self.answering()) > 1 else 0.0
            self.worst_s = max(self.worst_s, self.together_s)

    def _turn(self, node: SimulatedNode) -> None:
        if node.online:
            if self.now >= node.next_renewal:
                node.next_renewal = self.now + RENEW_S
                count = self.server.renewed.get(node.name, (0, False))[0]
                self.server.renewed[node.name] = (count + 1, node.eligible)
            for name, (count, eligible) in self.server.renewed.items():
                node.known[name] = (count, eligible)
                node.lives.see(name, str(count), DURATION_S, self.now)
            node.holder, node.version = self.server.holder, self.server.version
        if node.answers_until < self.now:
            node.machine.lapse(self.now)
        self._do(node, list(node.machine.step(self.now, self._view(node))))
        is_asking = node.machine.doubts(self.now) or (node.machine.answers and not node.lives.is_fresh(self.now))
        self._do(node, [Order(Act.PROBE) for _ in node.questions.due(self.now, [ADDRESS] * is_asking)])
        if node.machine.answers:
            node.answers_until = self.now + GRACE_S
        elif node.answers_until > self.now:
            node.answers_until = -1.0

    def _view(self, node: SimulatedNode) -> LeaseStatus:
        others = {
            name for name in node.lives.alive(self.now) if name != node.name and node.known.get(name, (0, False))[1]
        }
        dead_s = node.lives.dead_s(node.holder, self.now) if node.holder else -1.0
        if is_overdue(dead_s):
            others.discard(node.holder)
        return LeaseStatus(
            node.eligible,
            elects=True,
            fresh=node.lives.is_fresh(self.now),
            holder=node.holder,
            holder_dead_s=dead_s,
            preferred=preferred_node(ADDRESS, others | {node.name} if node.eligible else others),
        )

    def _do(self, node: SimulatedNode, orders: list[Order]) -> None:
        for order in orders:
            match order.act:
                case Act.PROBE if node.linked:
                    for other in self.answering():
                        if other is not node:
                            self._do(node, list(node.machine.sighted(self.now, b"", other.name)))
                case Act.REPEAT if node.linked:
                    for other in self.nodes.values():
                        if other is not node and other.linked and other.runs and not other.stopped:
                            self._do(other, list(other.machine.sighted(self.now, b"", node.name)))
                            if not other.machine.answers:
                                other.answers_until = -1.0
                case Act.CLAIM:
                    self._do(node, list(node.machine.claimed(self.now, done=self._write(node, node.name))))
                case Act.GIVE:
                    node.machine.given(self.now, done=self._write(node, order.who))
                case _:
                    pass

    def _write(self, node: SimulatedNode, holder: str) -> bool:
        if not node.online or node.version != self.server.version:
            return False
        self.server.holder, self.server.version = holder, self.server.version + 1
        node.holder, node.version = holder, self.server.version
        return True

    # --- events ---

    def happen(self, what: str, node: SimulatedNode) -> None:
        match what:
            case "kill":
                node.runs = False
            case "stop":
                node.stopped = not node.stopped
            case "start" if not node.runs:
                node.start(self.now)
            case "cordon":
                node.eligible = not node.eligible
            case "server":
                node.online = not node.online
            case "cable":  # behind a switch: the device has a carrier still
                node.online = node.linked = not node.linked
            case "crash":  # of the whole node: nothing of it answers
                node.runs, node.answers_until = False, -1.0
            case "outage":
                for each in self.nodes.values():
                    each.online = False
            case _:
                pass

    def settle(self) -> None:
        """End all faults."""
        for node in self.nodes.values():
            node.online, node.linked, node.stopped = True, True, False
            if not node.runs:
                node.start(self.now)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("kill", "start", "stop", "cordon", "server", "cable", "crash", "outage")),
        st.sampled_from(NAMES),
        st.sampled_from((0.05, 0.3, 1.0, 2.5, 4.0, 9.0)),
    ),
    max_size=12,
)


def test_a_node_whose_agent_dies_while_it_is_cut_off_is_back() -> None:
    """Long after the takeover: its program answers, and no agent can stop it. The one with an agent gives way until it has ended."""
    for cut_off_s in (4.0, 8.0, 30.0, 200.0):
        for dead_s in (0.05, 1.0, 4.0, 5.9):
            world, leader = led()
            world.happen("cable", leader)
            world.run(cut_off_s)
            world.happen("kill", leader)
            world.run(dead_s)
            world.happen("cable", leader)
            world.run(25)
            assert world.worst_s <= MOST_TOGETHER_S + STEP_S / 2, (cut_off_s, dead_s)
            assert len(world.answering()) == 1


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_two_nodes_never_answer_for_over_a_second_and_one_does_in_the_end(events: list[tuple[str, str, float]]) -> None:
    world = World()
    world.run(3)
    for what, name, seconds in events:
        world.happen(what, world.nodes[name])
        world.run(seconds)
    world.settle()
    world.run(25)
    assert world.worst_s <= MOST_TOGETHER_S + STEP_S / 2
    may = [node.name for node in world.nodes.values() if node.eligible]
    answering = [node.name for node in world.answering()]
    assert answering == ([preferred_node(ADDRESS, may)] if may else [])


SWEEP = [round(0.3 * step, 1) for step in range(40)]  # seconds; GRACE_S and DURATION_S are in there


def led() -> tuple[World, SimulatedNode]:
    """Return a world without faults, and its leader."""
    world = World()
    world.run(5)
    (leader,) = world.answering()
    return world, leader


@pytest.mark.long
@pytest.mark.parametrize("back", [None, 0.5, 4.0])
@pytest.mark.parametrize("last", ["kill", "stop"])
@pytest.mark.parametrize("first", ["server", "cordon"])
def test_an_agent_that_ends_around_the_moment_in_which_another_node_takes_over(
    first: str, last: str, back: float | None
) -> None:
    """It receives nothing, while its program keeps answering; it may return without the API server."""
    for seconds in SWEEP:
        world, leader = led()
        world.happen(first, leader)
        world.run(seconds)
        world.happen(last, leader)
        if back is not None:
            world.run(back)
            world.happen("start" if last == "kill" else "stop", leader)
        world.run(4 * GRACE_S)
        assert world.worst_s <= MOST_TOGETHER_S + STEP_S / 2, (seconds, world.worst_s)
        assert world.answering()
        world.settle()
        world.run(25)
        assert len(world.answering()) == 1, seconds


def test_a_cable_that_is_back_before_the_api_server_is() -> None:
    world, leader = led()
    world.happen("cable", leader)
    world.run(3 * GRACE_S)
    (heir,) = world.answering()
    assert heir is not leader
    leader.linked = True
    world.run(10)
    assert world.worst_s <= MOST_TOGETHER_S + STEP_S / 2
    assert world.answering() == [heir]


@pytest.mark.parametrize("away", [DURATION_S + 0.5, GRACE_S - 0.5])
def test_a_node_that_is_back_without_an_agent_is_noticed(away: float) -> None:
    """Its agent was killed and its cable pulled, another node took over, and the cable is back while its programs still answer."""
    world, leader = led()
    world.happen("kill", leader)
    world.happen("cable", leader)
    world.run(away)
    (heir,) = world.answering()
    assert heir is not leader
    world.happen("cable", leader)
    world.run(4 * GRACE_S)
    assert world.worst_s <= MOST_TOGETHER_S + STEP_S / 2
    assert world.answering() == [heir]


def test_an_agent_that_was_stopped_for_longer_than_its_programs_answer_begins_anew() -> None:
    world, leader = led()
    world.happen("stop", leader)
    world.run(3 * GRACE_S)
    (heir,) = world.answering()
    assert heir is not leader
    leader.online = False
    world.happen("stop", leader)
    world.run(10)
    assert world.worst_s <= STEP_S
    assert world.answering() == [heir]


def test_a_node_that_crashes_is_replaced_within_its_lease_and_a_probe() -> None:
    world = World()
    world.run(5)
    (leader,) = world.answering()
    world.happen("crash", leader)
    world.run(DURATION_S + 0.6)
    (heir,) = world.answering()
    assert heir is not leader


def test_an_outage_moves_nothing() -> None:
    world = World()
    world.run(5)
    (leader,) = world.answering()
    world.happen("outage", leader)
    world.run(60)
    assert world.answering() == [leader]
    world.settle()
    world.run(30)
    assert world.answering() == [leader]


@pytest.mark.parametrize("seconds", [2.5, 5.0])
def test_an_agent_that_is_killed_leaves_an_address_that_is_answered_for(seconds: float) -> None:
    world = World()
    world.run(5)
    (leader,) = world.answering()
    world.happen("kill", leader)
    world.run(seconds)
    assert world.answering() == [leader]
    world.happen("start", leader)
    world.run(5)
    assert world.answering() == [leader]
