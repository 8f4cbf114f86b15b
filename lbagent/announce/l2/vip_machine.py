"""What this node does about one address on layer 2: a state machine that gets the time as an argument. No I/O.

The Lease of an address names its leader; each node renews its own Lease. What this node has read of both is in a
`LeaseStatus`, the machine's input; its output is acts. `Rule` decides which node may start to answer:

    no Leases (only a folder)          this node, unless a foreign host uses the address
    the Lease names this node          the same; the previous leader may still answer, and stops when it sees this node's frames
    it names a live node               not this one; if that node's Lease is overdue, the next leader already sends probes
    it names a dead node, or none      the node that rendezvous hashing prefers: when no node answers a probe on the wire, and
                                       in any case after `restart_grace_s`, when a program that still answers has stopped
    the API server does not answer     not this one; a leader keeps announcing

Programs keep answering on a node whose agent died, and such a node sees no frame of another one. So a node that starts to
announce probes soon afterwards. If another node still answers, it stops, and waits until that node stops. A node that took a
Lease over `doubts` that it is alone for some time: the other node's cable may have been unplugged, and be back. Until such
programs must have ended it gives way at once; later only to a node that does not stop when it sees this one's frame: its agent
died after the takeover.

A foreign host (no node of the cluster) that claims an announced address is answered by an announcement, at most once in
DEFEND_INTERVAL_S (RFC 5227 §2.4 c).
With `defends` false the address is given up at its second claim in that time (§2.4 b): any host of the link can take it so.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, StrEnum
from typing import NamedTuple

from msgspec import Struct

PROBES, PROBE_GAP_S, PROBE_WAIT_S = 3, 0.1, 0.1  # RFC 5227 specifies seconds: too long for a failover
PROBE_S = (PROBES - 1) * PROBE_GAP_S + PROBE_WAIT_S
SLACK_S = 0.01  # a clock's rounding, and a timer's
PROBE_RETRY_DELAY_S = 0.5  # while the previous leader still answers
BURST_S = (0.0, 1.0, 2.0, 5.0, 10.0)  # after the start: when announcements are sent, as one may be lost
CHECK_S = (0.4, 0.6, 0.8)  # after the start: when probes check that this node is alone
HANDOVER_GRACE_S = 0.8  # a leader that handed its Lease over answers no longer than this
HANDOVER_RETRY_DELAY_S = 1.0
CUT_OFF_S = 600.0  # after a takeover: a node that was cut off may have lost its agent since, and be back
REACT_S = 0.3  # in which a node with an agent stops when it sees that another one has its address
DEFEND_INTERVAL_S = 10.0  # RFC 5227 §2.4
CONFLICT_S = 60.0  # until an address that a foreign host uses is tried again
CLAIM_S = CONFLICT_S + 5.0  # until a claim expires; while the address is retried it does not


class Phase(Enum):
    """The phase of the machine. The programs answer in ANNOUNCED, GIVING and LEAVING."""

    STANDBY = "standby"
    PROBING = "probing"
    CLAIMING = "claiming"  # the Lease is being written
    ANNOUNCED = "announced"
    GIVING = "giving"  # the Lease is being written to another node
    LEAVING = "leaving"  # another node has the Lease, and has sent no frame yet
    CONFLICT = "conflict"


ANSWERING = frozenset((Phase.ANNOUNCED, Phase.GIVING, Phase.LEAVING))


class Rule(Enum):
    """Whether this node may start to answer."""

    NO = 0
    SOON = 1  # when the leader's Lease expires: probes are sent already
    IF_SILENT = 2  # nothing on the wire answers
    IF_NO_STRANGER = 3  # another node of the cluster may


class LeaseStatus(Struct, frozen=True):
    """The Leases about an address as this node has read them. `holder` is '' if no Lease names a node.

    `elects`: Leases decide; `fresh`: they are as on the server. `holder_dead_s`: seconds since the Lease of its node expired,
    negative before. `preferred` '': no live node may announce it; a holder whose Lease is overdue counts as dead.
    """

    eligible: bool
    elects: bool = False
    fresh: bool = False
    holder: str = ""
    holder_dead_s: float = -1.0
    preferred: str = ""


class Act(StrEnum):
    """What the machine orders; Order has the node or host."""

    PROBE = "probe"
    CLAIM = "claim"  # write this node into the Lease; `claimed` takes the result
    GIVE = "give"  # write another node into it; `given` takes the result
    ANNOUNCE = "announce"  # start to answer, and send announcements
    REPEAT = "repeat"  # send announcements again
    WITHDRAW = "withdraw"  # stop answering
    CONFLICT = "conflict"  # a foreign host uses the address: warn its users
    CONTESTED = "contested"  # a foreign host claims it, and this node keeps answering: warn its users


class Order(NamedTuple):
    """An act; `who` is the node that gets the Lease, `mac` the foreign host's."""

    act: Act
    who: str = ""
    mac: bytes = b""


class VipSettings(NamedTuple):
    """`node` is this one. With `probe` false this node sends no probes before it announces. `defends`: see above."""

    node: str
    restart_grace_s: float
    probe: bool = True
    defends: bool = True


def is_overdue(holder_dead_s: float) -> bool:
    """Return whether a Lease was not renewed in time, and expires within the time that probes take."""
    return -PROBE_S - SLACK_S <= holder_dead_s < 0


def rule(status: LeaseStatus, settings: VipSettings) -> Rule:
    """Return whether this node may start to answer for an address."""
    if not status.eligible:
        return Rule.NO
    if not status.elects:
        return Rule.IF_NO_STRANGER
    if not status.fresh:
        return Rule.NO
    if status.holder == settings.node:
        return Rule.IF_NO_STRANGER
    if status.preferred != settings.node:
        return Rule.NO
    if status.holder and status.holder_dead_s < 0:
        return Rule.SOON if is_overdue(status.holder_dead_s) else Rule.NO
    if status.holder and status.holder_dead_s >= settings.restart_grace_s:
        return Rule.IF_NO_STRANGER
    return Rule.IF_SILENT


class VipMachine:
    """One address on this node. Times are seconds of one steady clock."""

    def __init__(self, settings: VipSettings, now: float, *, answers: bool = False) -> None:
        """`answers`: an earlier agent left the address announced."""
        self.settings = settings
        self.phase = Phase.ANNOUNCED if answers else Phase.STANDBY
        self.conflicting_mac = b""  # of a host outside the cluster that uses the address
        self.yielded_to = ""  # the node whose announcement was seen
        self.lease_status = LeaseStatus(eligible=False)
        self._due = now  # time of the next step of the phase
        self._probes = 0  # sent
        self._peer_answered = False
        self._announcements: list[float] = []  # when they are due
        self._checks: list[float] = []  # when probes are due that check whether another node answers too
        self._checked_from = self._patient_until = self._doubts_until = self._cut_off_until = float("-inf")
        self._told, self._told_at = "", float("-inf")  # the node that this one's frame was for
        self._defended = self._conflict_until = float("-inf")
        self._claimed_by = b""  # MAC address of the foreign host that claimed it last
        self._may_give = now

    @property
    def answers(self) -> bool:
        """Whether the programs of this node answer for the address."""
        return self.phase in ANSWERING

    def doubts(self, now: float) -> bool:
        """Return whether it answers, and a node without an agent that announced the address before may answer too."""
        return now < max(self._doubts_until, self._cut_off_until) and self.answers

    def conflict_with(self, now: float) -> bytes:
        """Return the MAC address of a foreign host that uses or claims the address, b'' for none."""
        return self._claimed_by if now < self._conflict_until else b""

    def _claimed(self, now: float, mac: bytes) -> None:
        self._claimed_by, self._conflict_until = mac, now + CLAIM_S

    def wake_at(self) -> float:
        """Return when `step` must be called although nothing changed."""
        quiet = self.phase in (Phase.CLAIMING, Phase.GIVING, Phase.ANNOUNCED)
        return min(*self._announcements[:1], *self._checks[:1], float("inf"), float("inf") if quiet else self._due)

    def step(self, now: float, status: LeaseStatus) -> Iterator[Order]:
        """Take the present status; yield the acts, in order."""
        self.lease_status = status
        match self.phase:
            case Phase.STANDBY:
                yield from self._stand_by(now, status)
            case Phase.PROBING:
                yield from self._probe(now, status)
            case Phase.ANNOUNCED:
                yield from self._lead(now, status)
            case Phase.LEAVING:
                if status.holder == self.settings.node and status.eligible:
                    self.phase = Phase.ANNOUNCED
                elif now >= self._due:
                    yield from self._withdraw(now)
            case Phase.CONFLICT:
                if now >= self._due or not status.eligible:
                    self._stand(now)
                    yield from self._stand_by(now, status)
            case Phase.CLAIMING | Phase.GIVING:
                pass
        while self._announcements and now >= self._announcements[0]:
            self._announcements.pop(0)
            if self.answers:
                yield Order(Act.REPEAT)
        while self._checks and now >= self._checks[0]:
            self._checks.pop(0)
            yield Order(Act.PROBE)

    def lapse(self, now: float) -> None:
        """Record that the programs stopped, as the agent did not extend their time: another node may answer."""
        if self.answers:
            self._stand(now)

    # --- not leading ---

    def _stand(self, now: float, pause_s: float = 0.0) -> None:
        self.phase, self._due, self._announcements, self._checks = Phase.STANDBY, now + pause_s, [], []

    def _stand_by(self, now: float, status: LeaseStatus) -> Iterator[Order]:
        if not status.eligible:
            self.conflicting_mac, self._conflict_until = b"", float("-inf")
        allowed = rule(status, self.settings)
        if allowed is Rule.NO:
            yield from self._give_unused(now, status)
            self._due = float("inf")
            return
        if now < self._due < float("inf"):
            return
        if not self.settings.probe and self._may_begin_beside(now, allowed):
            yield from self._claim(now, status)
            return
        self.phase, self._probes, self._peer_answered, self.conflicting_mac = Phase.PROBING, 0, False, b""
        self._due = now
        yield from self._probe(now, status)

    def _probe(self, now: float, status: LeaseStatus) -> Iterator[Order]:
        allowed = rule(status, self.settings)
        if allowed is Rule.NO:
            self._stand(now)
        elif now >= self._due and self._probes < PROBES:
            self._probes += 1
            self._due = now + (PROBE_GAP_S if self._probes < PROBES else PROBE_WAIT_S)
            yield Order(Act.PROBE)
        elif now >= self._due:
            if self._peer_answered and not self._may_begin_beside(now, allowed):
                self._stand(now, PROBE_RETRY_DELAY_S)
            elif allowed is Rule.SOON:
                self._due = now - status.holder_dead_s
            else:
                yield from self._claim(now, status)

    def _may_begin_beside(self, now: float, allowed: Rule) -> bool:
        """Return whether this node may start although another node of the cluster answers, which stops when it sees this one."""
        return allowed is Rule.IF_NO_STRANGER and now >= self._patient_until

    def _claim(self, now: float, status: LeaseStatus) -> Iterator[Order]:
        if status.elects and status.holder != self.settings.node:
            self.phase, self._doubts_until = Phase.CLAIMING, now + self.settings.restart_grace_s
            self._cut_off_until = now + CUT_OFF_S
            yield Order(Act.CLAIM)
        else:
            yield from self._announce(now)

    def claimed(self, now: float, *, done: bool) -> Iterator[Order]:
        """Take the result of writing this node's name; yield the acts that follow."""
        if self.phase is not Phase.CLAIMING:
            return
        if done:
            yield from self._announce(now)
        else:
            self._stand(now, PROBE_RETRY_DELAY_S)

    def _announce(self, now: float) -> Iterator[Order]:
        self.phase, self.conflicting_mac, self.yielded_to = Phase.ANNOUNCED, b"", ""
        self._conflict_until = float("-inf")
        self._announcements = [now + after for after in BURST_S]
        self._checked_from = now + CHECK_S[0]
        self._checks = [now + after for after in CHECK_S if self.lease_status.elects]
        yield Order(Act.ANNOUNCE)

    def _give_unused(self, now: float, status: LeaseStatus) -> Iterator[Order]:
        """Give away a Lease that this node cannot use: no other node takes it while this one is alive."""
        is_ours = status.elects and status.fresh and status.holder == self.settings.node
        if (
            is_ours
            and not status.eligible
            and status.preferred not in ("", self.settings.node)
            and now >= self._may_give
        ):
            self._may_give = now + HANDOVER_RETRY_DELAY_S
            yield Order(Act.GIVE, status.preferred)

    # --- leading ---

    def _lead(self, now: float, status: LeaseStatus) -> Iterator[Order]:
        own = self.settings.node
        if status.elects and status.fresh and status.holder != own:
            if rule(status, self.settings) is Rule.NO:  # a live node took it, and answers already
                yield from self._withdraw(now)
            elif (
                now >= self._may_give
            ):  # the Lease was deleted, or names a node that died: it is written, and the programs keep answering
                self._may_give = now + HANDOVER_RETRY_DELAY_S
                yield Order(Act.CLAIM)
        elif status.elects and status.fresh and status.preferred not in ("", own):
            if now >= self._may_give:
                self._may_give = now + HANDOVER_RETRY_DELAY_S
                self.phase = Phase.GIVING
                yield Order(Act.GIVE, status.preferred)
        elif not status.eligible:
            yield from self._withdraw(now)

    def given(self, now: float, *, done: bool) -> None:
        """Take the result of writing another node's name."""
        if self.phase is Phase.GIVING:
            self.phase, self._due = (Phase.LEAVING, now + HANDOVER_GRACE_S) if done else (Phase.ANNOUNCED, now)

    def _withdraw(self, now: float, pause_s: float = 0.0) -> Iterator[Order]:
        self._stand(now, pause_s)
        self._conflict_until = float("-inf")
        yield Order(Act.WITHDRAW)

    # --- frames of other hosts ---

    def sighted(self, now: float, mac: bytes, node: str) -> Iterator[Order]:
        """Take a frame in which a host claims the address: a `node` of the cluster, or '' for a foreign host."""
        if self.phase is Phase.PROBING:
            if node:
                self._peer_answered = True
            else:
                self.conflicting_mac = mac
                yield from self._conflict(now)
        elif self.phase in (Phase.LEAVING, Phase.GIVING) and node:
            self.yielded_to = node
            yield from self._withdraw(now)
        elif self.answers:
            yield from self._contested(now, mac, node)

    def _contested(self, now: float, mac: bytes, node: str) -> Iterator[Order]:
        holds = self.lease_status.elects and self.lease_status.fresh and self.lease_status.holder == self.settings.node
        is_deaf = self._checked_from <= now <= max(self._checked_from + CHECK_S[-1], self._doubts_until)
        is_deaf = is_deaf or (node == self._told and REACT_S <= now - self._told_at + SLACK_S <= DEFEND_INTERVAL_S)
        if node and (is_deaf or not holds):
            self.yielded_to = node
            if holds:  # its agent did not see this node: it is dead, and its programs stop by that time
                self._patient_until = now + self.settings.restart_grace_s
            yield from self._withdraw(now, PROBE_RETRY_DELAY_S)
            return
        if not node and self.settings.defends:
            is_new = not self.conflict_with(now)
            self._claimed(now, mac)
            if is_new:
                yield Order(Act.CONTESTED, mac=mac)
        if now - self._defended >= DEFEND_INTERVAL_S:
            self._defended = now
            if node and now < self._cut_off_until:
                self._told, self._told_at = node, now
                self._checks = sorted([*self._checks, now + REACT_S])
            yield Order(Act.REPEAT)
        elif not node and not self.settings.defends:
            self.conflicting_mac = mac
            yield Order(Act.WITHDRAW)
            yield from self._conflict(now)

    def _conflict(self, now: float) -> Iterator[Order]:
        self.phase, self._due, self._announcements, self._checks = Phase.CONFLICT, now + CONFLICT_S, [], []
        self._claimed(now, self.conflicting_mac)
        yield Order(Act.CONFLICT, mac=self.conflicting_mac)
