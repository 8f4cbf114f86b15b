"""Announces addresses of Services: joins objects, pools, devices, Leases and frames, and writes what the programs answer for.

vip_machine.py decides about each address; this module passes its inputs and executes its orders. `routes` gets all
addresses of BGP when one changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from lbagent.announce.announce_refusal import AnnounceRefusal
from lbagent.announce.desired_vips import DesiredVip, DesiredVips, node_refusal
from lbagent.announce.l2.duplicate_probes import DuplicateProbes
from lbagent.announce.l2.frames import AddressSighting, is_of_a_host
from lbagent.announce.l2.link_sockets import LinkSockets
from lbagent.announce.l2.placements import NodeState, Placements
from lbagent.announce.l2.solicited_groups import SolicitedGroups
from lbagent.announce.l2.vip_machine import (
    CUT_OFF_S,
    PROBE_S,
    Act,
    LeaseStatus,
    Order,
    Phase,
    VipMachine,
    VipSettings,
    is_overdue,
)
from lbagent.announce.leader.former_leaders import FormerLeaders
from lbagent.announce.leader.lease_election import LeaseElection, vip_of_lease
from lbagent.announce.served_addresses import ServedAddresses
from lbagent.errors import LbError
from lbagent.model.address import format_ip
from lbagent.model.rendezvous import preferred_node
from lbagent.model.service import CIDR
from lbagent.model.state import State
from lbagent.net.snapshot import NodeNetwork
from lbagent.objects.object_event import EventSink, ObjectEvent
from lbagent.objects.records import ObjectSnapshot
from lbagent.pools.announcement import BGP, L2
from lbagent.pools.read_pools import PoolsFile
from lbagent.targets.data_plane import AddressResponder

log = logging.getLogger(__name__)
FULL_SCAN_INTERVAL_S = 1.0  # between two checks of every address: no event reports a carrier
TURN_S = 0.02  # between two turns: Leases of a thousand addresses change one by one
SWEEP_S = 30.0  # between two searches for leftover Leases
OBJECTS_S = 0.2  # between two reads of all objects
MAX_CONCURRENT_WRITES = 8  # of Leases
IN_USE = "AddressInUse"  # the reason of Events


class RouteAnnouncer(Protocol):
    """Announces addresses by routes."""

    def set_routes(self, addresses: Collection[bytes]) -> None:
        """Replace the announced addresses by these; return at once."""

    def refusal(self) -> str:
        """Return why no router gets the routes, '' when one does."""

    def faults(self) -> list[tuple[str, str]]:
        """Return the faults: the part, and a sentence."""


class AnnouncerInputs(NamedTuple):
    """What the announcer reads from other parts of the agent; each is called when it is needed.

    `objects` returns None until every source has its list: until then the announcements of an earlier agent stay. `attached` are
    the names of devices with programs, `carriers` the devices by which frames can leave. `state` is the State of the maps;
    `is_settled`: it contains everything that was resolved.
    """

    objects: Callable[[], ObjectSnapshot | None]
    network: Callable[[], NodeNetwork]
    attached: Callable[[], Collection[str]]
    carriers: Callable[[], Collection[int]]
    state: Callable[[], State]
    is_settled: Callable[[], bool]


class AddressConflict(NamedTuple):
    """A host outside the cluster uses an address, or claims it while this node answers for it (`is_defended`)."""

    address: bytes
    mac: bytes
    is_defended: bool

    def text(self) -> str:
        """Return the sentence about it."""
        return contested_text(self.address, self.mac) if self.is_defended else in_use_text(self.address, self.mac)


class AddressConflicts:
    """Reports hosts outside the cluster that use a VIP: one log line and one Event for each host."""

    def __init__(self, events: Sequence[EventSink]) -> None:
        self._events = events
        self._reported: dict[bytes, bytes] = {}

    def report(self, address: bytes, mac: bytes, services: Sequence[str], *, is_defended: bool = False) -> None:
        """Warn of a host, and send a Warning for each Service that has the address."""
        if self._reported.get(address) == mac:
            return
        self._reported[address] = mac
        fields = {"address": format_ip(address), "services": list(services), "mac": mac.hex(":")}
        text = AddressConflict(address, mac, is_defended).text()
        log.warning("another host claims an address" if is_defended else "an address is in use", extra=fields)
        for key in services:
            for sink in self._events:
                sink(ObjectEvent("Service", key, IN_USE, text, warning=True))

    def forget(self, address: bytes) -> None:
        """Remove an address: no host outside the cluster uses it, or it is not announced any more."""
        self._reported.pop(address, None)


def in_use_text(address: bytes, mac: bytes) -> str:
    """Return the sentence about an address that another host uses."""
    found = f"{format_ip(address)} is in use: the host with the MAC address {mac.hex(':')} answers for it"
    return f"{found}; it is not announced, and is retried every minute"


def contested_text(address: bytes, mac: bytes) -> str:
    """Return the sentence about an address that another host claims while this node answers for it."""
    found = f"{format_ip(address)} is claimed: the host with the MAC address {mac.hex(':')} answers for it, too"
    return f"{found}; this node continues to announce it (l2.conflict: defend)"


class DueTimes:
    """The time of each address's next decision without a change; seconds of one steady clock."""

    def __init__(self) -> None:
        self._at: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes]] = []  # entries that `_at` does not confirm are stale

    def set(self, address: bytes, at: float) -> None:
        """Make an address due at a time; inf: never."""
        if at == float("inf"):
            self._at.pop(address, None)
        elif self._at.get(address) != at:
            self._at[address] = at
            heapq.heappush(self._heap, (at, address))

    def next_at(self) -> float:
        """Return when the next address is due; inf: never."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def take(self, now: float) -> list[bytes]:
        """Return the addresses that are due, and remove their times."""
        found = []
        while self.next_at() <= now:
            _, address = heapq.heappop(self._heap)
            del self._at[address]
            found.append(address)
        return found


class Announcer:
    """Owner of the entries that answer for addresses, of the Leases of addresses, and of what is sent about them."""

    def __init__(
        self,
        node: str,
        pools: PoolsFile,
        responder: AddressResponder,
        inputs: AnnouncerInputs,
        *,
        election: LeaseElection | None = None,
        events: Sequence[EventSink] = (),
        external_ips: bool = True,
        external_ip_ranges: tuple[CIDR, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without an `election` this node announces every address that no other host uses."""
        self.node, self.pools, self.election, self.routes = node, pools, election, None
        self._inputs, self._clock = inputs, clock
        self._entries, self._former_entries = responder
        self._former = FormerLeaders()
        self._sockets, self._groups, self._probes = LinkSockets(self._on_sighting), SolicitedGroups(), DuplicateProbes()
        self._take_over(clock())
        self.wanted: Mapping[bytes, DesiredVip] | None = None  # None: not read yet
        self.takeovers = 0
        self.problem = ""
        self._desired_vips = DesiredVips(external_ips=external_ips, external_ip_ranges=external_ip_ranges)
        self._served = ServedAddresses()
        self._withheld: frozenset[bytes] = frozenset()  # not served here, although the objects admit it
        self._undecided: set[bytes] = set()  # addresses for which that is not decided yet
        self._are_routes_stale = False
        self._placements = Placements(node)
        # Why this node may not announce an address by L2
        self.refusals: Mapping[bytes, AnnounceRefusal] = self._placements.refusals
        self._looks = 0  # how often all addresses were placed
        self._objects: ObjectSnapshot | None = None
        self._objects_at = float("-inf")
        self._objects_changed = True
        self._orders: list[tuple[bytes, Order]] = []
        self._news: set[bytes] = set()  # addresses whose inputs changed since the last turn
        self._leases_changed: set[bytes] = set()  # addresses whose Leases did
        self._is_published = False  # this node's Lease contains what it reaches
        self._stepped: tuple[object, ...] = ()  # the inputs of the last decision about every address
        self._stepped_at = float("-inf")
        self._swept_at = clock()
        self._conflicts = AddressConflicts(events)
        self._announced_routes: frozenset[bytes] | None = None
        self._wake = asyncio.Event()
        self._writes = asyncio.Semaphore(MAX_CONCURRENT_WRITES)
        if election is not None:
            election.on_change = self._leases_change

    routes: RouteAnnouncer | None

    # --- changes of inputs ---

    def objects_changed(self) -> None:
        """Record that objects changed, or that their lists are complete."""
        self._objects_changed = True
        self._wake.set()

    def state_changed(self) -> None:
        """Record that the maps have another State."""
        self._wake.set()

    def _leases_change(self, names: Collection[str]) -> None:
        self._leases_changed.update(filter(None, map(vip_of_lease, names)))
        self._wake.set()

    def set_dead_nodes(self, nodes: frozenset[str]) -> None:
        """Move the addresses of these nodes now."""
        if self.election is not None:
            self.election.set_dead_nodes(nodes)
            self._wake.set()

    def network_changed(self, _network: NodeNetwork) -> None:
        """Record that devices or addresses changed."""
        self._wake.set()

    def use_pools(self, pools: PoolsFile) -> None:
        """Replace the pools."""
        self.pools = pools
        self._entries.restart_grace_s = self._former_entries.restart_grace_s = pools.l2.restart_grace_s
        for machine in self.machines.values():
            machine.settings = self._settings()
        self.objects_changed()

    def use_external_ips(self, *, external_ips: bool, external_ip_ranges: tuple[CIDR, ...]) -> None:
        """Replace the externalIPs that are served, and so announced."""
        self._desired_vips.use_external_ips(external_ips=external_ips, external_ip_ranges=external_ip_ranges)
        self.objects_changed()

    def _settings(self) -> VipSettings:
        l2 = self.pools.l2
        return VipSettings(self.node, l2.restart_grace_s, l2.probe, l2.defends)

    def _take_over(self, now: float) -> None:
        self._entries.drop_ended(now)
        self._former_entries.drop_ended(now)
        self._former.take_over(self._former_entries.places, now + self.pools.l2.restart_grace_s)
        places = {address for _, address in self._entries.places}
        self.machines: dict[bytes, VipMachine] = {}
        self._due = DueTimes()
        self._answering: set[bytes] = set()  # addresses for which the machines answer
        self._is_written = False  # the entries may differ
        self._answers: Mapping[tuple[int, bytes], bytes] = {}  # what they should hold
        for address in places:
            self._add(address, VipMachine(self._settings(), now, answers=True))

    def _add(self, address: bytes, machine: VipMachine) -> None:
        self.machines[address] = machine
        self._note(address)

    def _note(self, address: bytes) -> None:
        """Update the values derived from a machine, after each of its inputs."""
        machine = self.machines[address]
        self._due.set(address, machine.wake_at())
        if machine.answers != (address in self._answering):
            self._answering ^= {address}
            self._is_written = False

    # --- running ---

    async def run(self) -> None:
        """Announce until cancelled; the entries stay, for `restartGrace`."""
        self._take_over(self._clock())  # some may have expired since they were read: loading programs takes seconds
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.election is not None:
                    tasks.create_task(self.election.run())
                while True:
                    began = self._clock()
                    self._turn(began, tasks)
                    await self._wait()
                    await asyncio.sleep(began + TURN_S - self._clock())
        finally:
            self._sockets.close()
            self._groups.close()

    async def _wait(self) -> None:
        now = self._clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.005, self._next_turn(now) - now)):
                await self._wake.wait()
        self._wake.clear()

    def _next_turn(self, now: float) -> float:
        """Return the time of the next turn without an event."""
        end = self.election.next_end(now, PROBE_S) if self.election is not None else now + FULL_SCAN_INTERVAL_S
        return min(
            self._due.next_at(),
            end,
            self._entries.refresh_at(),
            self._former_entries.refresh_at(),
            self._probes.wake_at(),
            now + FULL_SCAN_INTERVAL_S,
        )

    def _turn(self, now: float, tasks: asyncio.TaskGroup) -> None:
        """Take one turn: decide, write what the programs answer for, then send frames and write Leases."""
        self._look_at_objects(now, tasks)
        self._look_at_state()
        self._look_at_devices()
        if self._entries.has_ended(now):
            log.warning("the agent was suspended longer than the announcement lifetime; election restarts")
            for address, machine in self.machines.items():
                machine.lapse(now)
                self._note(address)
        orders, self._orders = self._orders, []
        for address in self._concerned(now) if self.wanted is not None else ():
            orders += [(address, order) for order in self.machines[address].step(now, self._lease_status(address, now))]
            self._note(address)
        is_blind = self.election is not None and not self.election.is_fresh(now)
        asked = self._probes.take(now, self._answering, lambda each: self.machines[each].doubts(now), is_blind=is_blind)
        orders += [(address, Order(Act.PROBE)) for address in asked]
        self._write(orders, now)
        for address, order in orders:
            self._do(address, order, tasks)
        self._sweep(now, tasks)

    def _sweep(self, now: float, tasks: asyncio.TaskGroup) -> None:
        """Delete the Leases whose nodes died before they could."""
        if self.election is None or self.wanted is None or self._objects_changed or now < self._swept_at + SWEEP_S:
            return
        self._swept_at = now
        for name in self.election.leftovers(self.machines, now, self.pools.l2.restart_grace_s):
            log.info("a Lease of a node that died is deleted", extra={"lease": name})
            tasks.create_task(self.election.remove(name))

    def _concerned(self, now: float) -> list[bytes]:
        """Return the addresses to decide about: all each FULL_SCAN_INTERVAL_S and after a change for all, else the changed ones."""
        common = (self._looks, self.election.state(now) if self.election is not None else ())
        news, self._news, self._leases_changed = self._news | self._leases_changed, set(), set()
        if common != self._stepped or now >= self._stepped_at + FULL_SCAN_INTERVAL_S:
            self._stepped, self._stepped_at = common, now
            return list(self.machines)
        return [address for address in news.union(self._due.take(now)) if address in self.machines]

    def _look_at_objects(self, now: float, tasks: asyncio.TaskGroup) -> None:
        if not self._objects_changed:
            return
        if now < self._objects_at + OBJECTS_S:
            asyncio.get_running_loop().call_later(OBJECTS_S, self._wake.set)
            return
        self._objects_at = now
        objects = self._inputs.objects()
        if objects is None:
            return
        self._objects_changed, self._objects = False, objects
        self._news |= self._desired_vips.update(objects, self.pools)
        self.wanted = self._desired_vips.vips
        by_l2 = {address for address, vip in self.wanted.items() if L2 in vip.modes}
        for address in self.machines.keys() - by_l2:
            self._forget(address, tasks)
        for address in sorted(by_l2 - self.machines.keys()):
            self._add(address, VipMachine(self._settings(), now))
        self._are_routes_stale = True

    def _forget(self, address: bytes, tasks: asyncio.TaskGroup) -> None:
        del self.machines[address]
        self._due.set(address, float("inf"))
        self._answering.discard(address)
        self._is_written = False
        self._placements.drop([address])
        self._former.end(address)
        self._conflicts.forget(address)
        if self.election is not None and self.election.holder(address) == self.node:
            tasks.create_task(self.election.forget(address))

    def _look_at_state(self) -> None:
        """Read which addresses the programs serve, once the objects are at least as new as what the maps hold."""
        if self.wanted is None or self._objects_changed:
            return
        changed = self._served.update(self._inputs.state())
        self._news |= changed
        if self._news or self._are_routes_stale:
            self._are_routes_stale = False
            self._set_routes()
        self._withhold(lost={address for address in changed if address not in self._served})

    def _withhold(self, *, lost: Collection[bytes]) -> None:
        """Update the addresses that the programs do not serve although the objects admit them here: a Lease publishes them.

        While the maps are older than the objects, only an address that was `lost` is withheld: others may be served soon.
        """
        self._undecided |= self._news
        decided = set(self._undecided) if self._inputs.is_settled() else self._undecided.intersection(lost)
        self._undecided -= decided
        withheld = (self._withheld - decided) | set(filter(self._is_withheld, decided))
        if withheld != self._withheld:
            self._withheld, self._is_published = withheld, False

    def _is_withheld(self, address: bytes) -> bool:
        vip = (self.wanted or {}).get(address)
        return (
            vip is not None and address in self.machines and vip.is_withheld(self.node, is_served=self.serves(address))
        )

    def serves(self, address: bytes) -> bool:
        """Return whether the programs of this node send new connections to an address on."""
        return address in self._served

    def _look_at_devices(self) -> None:
        """Place the addresses: all when the node changed, else those with news."""
        inputs = self._inputs
        attached, carriers = frozenset(inputs.attached()), frozenset(inputs.carriers())
        state = NodeState(inputs.network(), attached, carriers, self.pools.l2, self._node_refusal())
        addresses: Collection[bytes] = self._news & self.machines.keys()
        if is_another := self._placements.use(state):
            self._looks, self._is_published = self._looks + 1, False
            addresses = self.machines
        for address in addresses:
            vip = (self.wanted or {}).get(address)
            self._placements.place(address, vip, is_served=address in self._served)
        if addresses or is_another:
            self._is_written = False
            self._sockets.use(self._placements.devices)
        if self.election is not None and self.wanted is not None and not self._is_published:
            self._is_published = True
            self.election.publish(state.networks(), state.macs(), self._withheld)

    def _node_refusal(self) -> AnnounceRefusal | None:
        node = self._objects.nodes.get(self.node) if self._objects else None
        return node_refusal(node, self.pools.l2)

    def _lease_status(self, address: bytes, now: float) -> LeaseStatus:
        eligible = address not in self.refusals
        if self.election is None:
            return LeaseStatus(eligible)
        vip, served = (self.wanted or {})[address], address in self._served
        return lease_status_of(self.election, self.node, vip, now, eligible=eligible, served=served)

    def _write(self, orders: Sequence[tuple[bytes, Order]], now: float) -> None:
        """Write the former leaders, then the answers of the programs: a failure of the first write does not prevent the second."""
        grace_s, election, failure = self.pools.l2.restart_grace_s, self.election, ""
        if not self._is_written:
            self._answers = self._placements.answers(self._answering)
            if self.wanted is None:  # what an earlier agent left is kept until it is known what is wanted
                self._answers = {
                    place: mac for place, mac in self._entries.places.items() if place[1] in self._answering
                }
            self._groups.use(self._answers.keys())
        for address, order in orders:
            if order.act is Act.CLAIM:
                self._probes.probe_until(now + max(grace_s, CUT_OFF_S))
            elif order.act is Act.ANNOUNCE:
                self._former.start(address, now, grace_s)
            elif order.act is Act.WITHDRAW:
                self._former.end(address)
        lives = (lambda mac: election.is_alive(mac, now)) if election else (lambda _mac: False)
        former = self._former.wanted(self._answers.keys(), now, grace_s, lives)
        for table, entries in ((self._former_entries, former), (self._entries, self._answers)):
            try:
                table.write(entries, now)
            except LbError as error:
                failure = str(error)
        if failure and failure != self.problem:
            log.error("addresses could not be announced", extra={"error": failure})
        self.problem, self._is_written = failure, True  # refresh_at() has a failed write tried again

    def former_leader(self, address: bytes) -> str:
        """Return the previous leader, to which segments of older connections are forwarded, '' for none."""
        names = [self.election.node_of(mac) for mac in self._former.of(address)] if self.election else []
        return next(iter(names), "")

    # --- acts ---

    def _do(self, address: bytes, order: Order, tasks: asyncio.TaskGroup) -> None:
        match order.act:
            case Act.PROBE | Act.REPEAT:
                send = self._sockets.probe if order.act is Act.PROBE else self._sockets.announce
                for ifindex, mac in self._placements.places[address].items():
                    send(ifindex, address, mac)
            case Act.CLAIM | Act.GIVE:
                tasks.create_task(self._write_lease(address, order))
            case Act.ANNOUNCE | Act.WITHDRAW:
                self._conflicts.forget(address)
                text = (
                    "an address is announced" if order.act is Act.ANNOUNCE else "an address is not announced any more"
                )
                log.info(text, extra={"address": format_ip(address), "services": self._services(address)})
            case Act.CONFLICT:
                self._conflicts.report(address, order.mac, self._services(address))
            case Act.CONTESTED:
                self._conflicts.forget(address)
                self._conflicts.report(address, order.mac, self._services(address), is_defended=True)

    async def _write_lease(self, address: bytes, order: Order) -> None:
        assert self.election is not None
        machine = self.machines.get(address)
        before = machine.lease_status if machine else None
        async with self._writes:
            if order.act is Act.GIVE:  # the next leader reads first why this node gives the address up
                await self.election.until_published()
            done = await self.election.write_holder(address, order.who or self.node)
        if machine is None or self.machines.get(address) is not machine:
            return
        now = self._clock()
        if order.act is Act.GIVE:
            machine.given(now, done=done)
        else:
            self._orders += [(address, each) for each in machine.claimed(now, done=done)]
            self.takeovers += bool(done and before and before.holder not in ("", self.node))
        self._note(address)
        self._wake.set()

    def _services(self, address: bytes) -> list[str]:
        vip = (self.wanted or {}).get(address)
        return list(vip.services) if vip else []

    def _on_sighting(self, ifindex: int, sighting: AddressSighting) -> None:
        machine = self.machines.get(sighting.address)
        if machine is None or not is_of_a_host(sighting.mac):
            return
        if any(sighting.mac == link.mac for link in self._inputs.network().links.values()):
            return
        node = self.election.node_of(sighting.mac) if self.election else ""
        if node and machine.phase is Phase.PROBING:
            self._former.seen((ifindex, sighting.address), sighting.mac, self._clock())
        orders = list(machine.sighted(self._clock(), sighting.mac, node))
        if any(order.act is Act.WITHDRAW for order in orders):
            self._probes.probe_all()
        self._orders += [(sighting.address, order) for order in orders]
        self._note(sighting.address)
        self._wake.set()

    # --- routes ---

    def _set_routes(self) -> None:
        if self.routes is None or self.wanted is None:
            return
        routes = self.wanted_routes()
        if routes != self._announced_routes:
            self._announced_routes = routes
            self.routes.set_routes(routes)

    def wanted_routes(self) -> frozenset[bytes]:
        """Return the addresses that this node announces by BGP: those that its programs serve."""
        if self.bgp_refusal():
            return frozenset()
        vips = (self.wanted or {}).values()
        return frozenset(vip.address for vip in vips if BGP in vip.modes and vip.address in self._served)

    def bgp_refusal(self) -> AnnounceRefusal | None:
        """Return why this node announces nothing by BGP, None when it may."""
        node = self._objects.nodes.get(self.node) if self._objects else None
        return node_refusal(node, self.pools.l2, for_l2=False)

    def conflicts(self) -> list[AddressConflict]:
        """Return the addresses that a host outside the cluster uses or claims."""
        now = self._clock()
        found = ((address, each, each.conflict_with(now)) for address, each in sorted(self.machines.items()))
        return [AddressConflict(address, mac, is_defended=each.answers) for address, each, mac in found if mac]

    def problems(self) -> list[str]:
        """Return the faults of announcing, one sentence each."""
        return [text for _, text in self.faults()]

    def faults(self) -> list[tuple[str, str]]:
        """Return the same with the subject of each, which stays the same while the fault lasts."""
        out = [("addresses", f"addresses could not be announced: {self.problem}")] if self.problem else []
        if self.election is not None and self.election.failure:
            text = f"Leases cannot be used: {self.election.failure}; what is announced stays announced"
            out.append(("Leases", text))
        return [*out, *(self.routes.faults() if self.routes else ())]

    @property
    def objects(self) -> ObjectSnapshot:
        """The objects of the last read."""
        return self._objects or ObjectSnapshot()


def lease_status_of(
    election: LeaseElection, node: str, vip: DesiredVip, now: float, *, eligible: bool, served: bool
) -> LeaseStatus:
    """Return the Lease status of an address as this node sees it; the node may announce it if it is `eligible`.

    A node whose programs do not serve an address of policy Cluster leaves it to a node that does; without one it keeps it.
    """
    address = vip.address
    nodes = {each for each in election.nodes_reaching(address, now) if each != node and vip.admits(each)}
    holder = election.holder(address)
    holder_dead_s = election.dead_s(holder, now) if holder else -1.0
    if is_overdue(holder_dead_s):
        nodes.discard(holder)
    if nodes and vip.is_withheld(node, is_served=served):
        eligible = False
    return LeaseStatus(
        eligible,
        elects=True,
        fresh=election.is_fresh(now),
        holder=holder,
        holder_dead_s=holder_dead_s,
        preferred=preferred_node(address, nodes | {node} if eligible else nodes),
    )
