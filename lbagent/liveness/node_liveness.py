"""Finds out which nodes of the cluster are dead, without the kubelet (--node-liveness udp).

Each tick it takes the answers, decides which of its observed nodes it misses (observed_nodes.py), publishes suspicions
(live_leases.py), decides with those of other observers which nodes are dead (dead_nodes.py), and asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from lbagent.errors import ConfigError, LbError
from lbagent.liveness.chosen_peers import ChosenPeers
from lbagent.liveness.dead_nodes import DeadNodes, Suspicions
from lbagent.liveness.echo_server import EchoServer
from lbagent.liveness.live_leases import LiveLeases
from lbagent.liveness.node_asker import NodeAsker
from lbagent.liveness.observed_nodes import Attempt, ObservedNodes
from lbagent.model.address import format_ip, parse_ip
from lbagent.model.rendezvous import preferred_node
from lbagent.objects.object_event import EventSink, ObjectEvent
from lbagent.textfile.followed_file import read_text_of

log = logging.getLogger(__name__)
TICK_S = 0.1
ASK_S = 0.4  # between two questions to a node
FIRST_DECISION_S = 3.0  # the API server may not answer
KEY_POLL_INTERVAL_S = 2.0
MAX_NAMED = 8  # nodes in a text


class NodeLiveness:
    """The part of the agent. `on_dead` is called with the dead nodes when they change."""

    def __init__(
        self,
        node: str,
        leases: LiveLeases,
        *,
        port: int,
        key_file: str,
        observers: int,
        addresses: Callable[[], Sequence[bytes]],
        make_key: Callable[[], Awaitable[bool]],
        events: Sequence[EventSink] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`addresses` returns those of this node; `observers`: how many each node has.

        `make_key` is called while the file has no key, until it returns True.
        """
        self._node, self._leases, self._key_file, self._observers = node, leases, key_file, observers
        self._own_addresses, self._events, self._clock = addresses, events, clock
        self._key = b""
        self._key_problem = ""
        self._make_key = make_key
        self._observed = ObservedNodes(clock())
        self._decision = DeadNodes(node)
        self._asker = NodeAsker(port, lambda: self._key, self._answered, clock)
        self._server = EchoServer(node, port, lambda: self._key)
        self._addresses: dict[str, bytes] = {}  # of the observed nodes
        self._members: frozenset[str] = frozenset()
        self._peers = ChosenPeers(node, observers)
        self._asked_at: dict[str, float] = {}
        self._has_decided = asyncio.Event()
        self.on_dead: list[Callable[[frozenset[str]], None]] = []
        leases.on_change = self._members_may_change
        self._read_key()

    # --- what other parts read ---

    @property
    def dead(self) -> frozenset[str]:
        """The dead nodes."""
        return self._decision.dead

    @property
    def is_panic(self) -> bool:
        """Whether so many nodes are missing that none is declared dead."""
        return self._decision.is_panic

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes whose agents take part."""
        return self._members

    @property
    def observed(self) -> frozenset[str]:
        """The nodes that this one observes."""
        return frozenset(self._observed.names)

    def missed(self) -> frozenset[str]:
        """Return the observed nodes that do not answer this one."""
        return frozenset(self._observed.missed())

    def panic_text(self) -> str:
        """Return a sentence about the panic, '' without one."""
        if not self._decision.is_panic:
            return ""
        missing = sorted(self._decision.missing)
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        named = ", ".join(missing[:MAX_NAMED]) + more
        return f"{len(missing)} of {len(self._members)} nodes do not answer ({named}): none of them is declared dead"

    def faults(self) -> list[tuple[str, str]]:
        """Return what prevents the work: the part, and a sentence."""
        found = (
            ("key", self._key_problem),
            ("port", self._server.failure),
            ("probes", self._asker.failure),
            ("address", "" if self._own_addresses() else "this node has no address by which others could observe it"),
            ("Leases", self._leases.failure and f"Leases cannot be used: {self._leases.failure}"),
        )
        return [(part, text) for part, text in found if text]

    # --- running ---

    async def run(self) -> None:
        """Observe, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._leases.run())
                tasks.create_task(self._server.run())
                tasks.create_task(self._follow_key())
                while True:
                    self._tick(self._clock())
                    await asyncio.sleep(TICK_S)
        finally:
            self._asker.close()

    async def first_decision(self) -> None:
        """Wait for the first decision, FIRST_DECISION_S at most: after a restart of the agent those of before are still dead."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_DECISION_S):
                await self._has_decided.wait()

    def _tick(self, now: float) -> None:
        self._asker.read(self._observed.names)
        self._observed.look(now)
        suspects = self._observed.suspected()
        own = tuple(map(format_ip, self._own_addresses()))
        self._leases.publish(own, suspects)
        self._decide(now, suspects)
        if self._leases.is_listed and not self._decision.is_waiting:
            self._has_decided.set()
        self._ask(now)

    def _decide(self, now: float, suspects: frozenset[str]) -> None:
        alone = {node for node in suspects & self._leases.unpublished if self._observed.has_others(node)}
        before, was_panic = self._decision.dead, self._decision.is_panic
        self._decision.decide(
            Suspicions(
                self._members,
                self._leases.suspicions,
                self._observers,
                own=alone,
                silent=self._observed.silent(now),
                without_agent=self._observed.without_agent(now),
                is_cut_off=self._observed.is_cut_off,
            ),
            now,
        )
        if self._decision.dead != before:
            self._report(before)
            for callback in self.on_dead:
                callback(self._decision.dead)
        if self._decision.is_panic and not was_panic:
            log.error(
                "so many nodes do not answer that none is declared dead",
                extra={"nodes": sorted(self._decision.missing)},
            )
            self._send("NodePanic", self._node, self.panic_text(), about=self._node)

    def _report(self, before: frozenset[str]) -> None:
        for node in sorted(self.dead - before):
            log.warning("a node is dead: its endpoints take no new flows", extra={"dead_node": node})
            self._send("NodeDead", node, f"{node} does not answer: its endpoints take no new flows", about=node)
        for node in sorted(before - self.dead):
            log.info("a node is not dead any more", extra={"dead_node": node})

    def _send(self, reason: str, node: str, text: str, *, about: str) -> None:
        """Send an Event from one of the live nodes."""
        if preferred_node(about.encode(), self._members - self._decision.missing) != self._node:
            return
        for sink in self._events:
            sink(ObjectEvent("Node", node, reason, text, warning=True))

    def _ask(self, now: float) -> None:
        for node, address in self._addresses.items():
            if now - self._asked_at.get(node, float("-inf")) < ASK_S:
                continue
            self._asked_at[node] = now
            self._asker.ask(node, address)
            self._observed.asked(node, Attempt.ECHO, now)
            if self._observed.is_doubtful(node, now):
                for attempt in (Attempt.ICMP, Attempt.TCP):
                    if self._asker.ask_kernel(node, address, attempt):
                        self._observed.asked(node, attempt, now)

    def _answered(self, node: str, attempt: Attempt) -> None:
        self._observed.answered(node, attempt, self._clock())

    # --- nodes ---

    def _members_may_change(self) -> None:
        """Choose the observed nodes again when nodes join or leave."""
        found = self._leases.nodes
        members = frozenset(found)
        if members != self._members:
            self._members = members
            self._peers.update(members)
            peers = self._peers.peers
            self._observed.use(peers, self._leases.suspected_by_this_node())
            self._asked_at = {node: at for node, at in self._asked_at.items() if node in peers}
        self._addresses = {node: parse_ip(found[node][0]) for node in self._observed.names if node in found}

    # --- the key ---

    async def _follow_key(self) -> None:
        is_made = bool(self._key)
        while True:
            if not is_made:
                with contextlib.suppress(LbError):
                    is_made = await self._make_key()
            await asyncio.sleep(KEY_POLL_INTERVAL_S)
            await asyncio.to_thread(self._read_key)
            is_made = is_made or bool(self._key)

    def _read_key(self) -> None:
        """Read the key; one that was there stays while the file cannot be read."""
        try:
            key = (read_text_of(self._key_file) or "").strip().encode()
        except ConfigError as error:
            self._key_problem = f"the key of the echo: {error}"
            return
        self._key_problem = "" if key else f"the key of the echo: {self._key_file} is empty"
        self._key = key or self._key
