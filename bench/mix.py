"""Floods of every kind against the default SNAT ports: do new connections get through, and is an established one harmed?

Each case has a service with one backend, so 28,976 ports, and gets 4,000 forged packets per second in real time: BPF_PROG_TEST_RUN
in periods of a tenth of a second, answered as the case defines. Clients connect between the periods; the path of every second one
takes a second. A dropped packet is repeated after a second, as by a client's kernel; after two seconds a client has failed.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.datapath import Bench, bench
from bench.world import Service
from bench.wrapper import (
    ACK,
    CLIENT_MAC,
    DATA,
    NODE_MAC,
    RST_ACK,
    SYN,
    SYN_ACK,
    TCP,
    UDP,
    Plan,
    Tuple,
    tuple_of,
)  # fmt: skip
from lbagent.kernel import bpf_prog
from tests.lab.flood import segment

RATE, SPELL_S = 4000, 0.1
SECONDS, QUICK_SECONDS = 30.0, 12.0
FULL_S = 8.0  # at this time every port is in use: clients count from here to TAIL_S after the flood's end
TAIL_S = 4.0
PATIENCE_S, AGAIN_S, FAR_S = 2.0, 1.0, 1.0
ESTABLISHED = 20  # flows of each case
TALK_S = 3.0  # between two exchanges of an established UDP flow
MANY, FEW = (
    1 << 30,
    1 << 15,
)  # flows of a flood: never repeated; two addresses, with each tuple repeated after 8 seconds
ISN = 0x20000000  # of the backend
TX = 3


@dataclass(frozen=True)
class Case:
    """A flood: its packets in turns (flags, the backend's answer), and its number of flows."""

    name: str
    packets: tuple[tuple[int, int], ...]
    flows: int = MANY
    proto: int = TCP


CASES = (
    Case("SYN, silent", ((SYN, 0),)),
    Case("SYN, answered", ((SYN, SYN_ACK),)),
    Case("SYN, refused", ((SYN, RST_ACK),)),
    Case("SYN, answered, few sources", ((SYN, SYN_ACK),), FEW),
    Case("ACK, silent", ((ACK, 0),)),
    Case("ACK, refused", ((ACK, RST_ACK),)),
    Case("ACK, silent, few sources", ((ACK, 0),), FEW),
    Case("SYN and ACK, all answers, few sources", ((SYN, SYN_ACK), (ACK, 0), (SYN, 0), (ACK, RST_ACK)), FEW),
    Case("UDP, silent", ((0, 0),), MANY, UDP),
    Case("UDP, answered", ((0, 1),), MANY, UDP),
    Case("UDP, answered, few sources", ((0, 1),), FEW, UDP),
)


@dataclass
class Outcome:
    """The results of the clients of one case with one program."""

    tried: int = 0
    served: int = 0
    established: int = 0
    harmed: int = 0


class Side:
    """One program between the two ends of a connection."""

    def __init__(self, made: Bench, name: str, service: Service) -> None:
        """Take the program under test, not its wrapper."""
        self.fd = (made.ours if name == "ours" else made.textbook).fd
        self.made, self.name, self.service = made, name, service
        self.ifindex, self.wrapper = made.ours.ifindex, made.wrappers[name]

    def send(self, ends: Tuple, flags: int, seq: int = 1, ack: int = 0) -> Tuple | None:
        """Send a packet; return its output tuple, None if it is dropped."""
        frame = segment(
            (ends.src, ends.dst, ends.sport, ends.dport), flags, seq=seq, ack=ack, macs=NODE_MAC + CLIENT_MAC
        )
        ctx = struct.pack("<6I", 0, len(frame), 0, self.ifindex, 0, 0)
        out = bpf_prog.prog_test_run(self.fd, frame, ctx=ctx, room=0)
        return tuple_of(out.data) if out.retval == TX else None

    def reply(self, sent: Tuple, flags: int, seq: int = ISN) -> Tuple | None:
        """Send the backend's answer to a packet."""
        return self.send(Tuple(sent.dst, sent.src, sent.dport, sent.sport), flags, seq, 2)


@dataclass
class Client:
    """A regular client of one service."""

    side: Side
    ends: Tuple
    began: float
    way_s: float = 0.0
    at: float = 0.0  # time of its next step
    place: Tuple | None = None

    def back(self, reply: Tuple | None) -> bool:
        """Return whether a reply reaches it with the service's address."""
        return reply == Tuple(self.ends.dst, self.ends.src, self.ends.dport, self.ends.sport)

    def exchange(self) -> bool:
        """Send data and get data, on its connection."""
        flags, tcp = (DATA, True) if self.side.service.proto == TCP else (0, False)
        sent = self.side.send(self.ends, flags, 2, ISN + 1)
        self.place = self.place or sent
        return sent is not None and sent == self.place and self.back(self.side.reply(sent, DATA if tcp else 0, ISN + 1))

    def open(self) -> bool:
        """Send the SYN; return whether its SYN-ACK comes back."""
        self.place = self.side.send(self.ends, SYN)
        return self.place is not None and self.back(self.side.reply(self.place, SYN_ACK))

    def confirm(self) -> bool:
        """Acknowledge the SYN-ACK."""
        return self.side.send(self.ends, ACK, 2, ISN + 1) == self.place

    def step(self, now: float) -> bool | None:
        """Continue; return True when served, False after the time-out, None before."""
        if now < self.at:
            return None
        if self.side.service.proto == UDP:
            self.place = None
            done = self.exchange()
        elif self.place is None:
            if self.open():
                self.at = now + self.way_s
                return None if self.way_s else self.confirm() and self.exchange()
            self.place, done = None, False
        else:
            return self.confirm() and self.exchange()
        if done:
            return True
        self.at = now + AGAIN_S
        return None if self.at - self.began < PATIENCE_S else False


@dataclass
class Attack:
    """One case with one program: the flood, its clients and the earlier flows."""

    case: Case
    side: Side
    outcome: Outcome = field(default_factory=Outcome)
    clients: list[Client] = field(default_factory=list)
    kept: list[Client] = field(default_factory=list)
    number: int = 0
    turn: int = 0
    position: int = 0

    def client(self, now: float) -> Client:
        """Create another client, with its own port."""
        self.number += 1
        port = (
            1024 + self.number * len(CASES) + CASES.index(self.case)
        )  # all flows of one client port share two buckets
        ends = Tuple(self.side.made.shape.client, self.side.service.vip, port, self.side.service.port)
        return Client(self.side, ends, now, FAR_S * (self.number % 2), now)

    def establish(self, now: float) -> None:
        """Open the flows that must survive it; half of the TCP ones have sent no data."""
        for n in range(ESTABLISHED):
            client = self.client(now)
            if self.side.service.proto == TCP:
                opened = client.open() and client.confirm() and (n % 2 == 0 or client.exchange())
            else:
                opened = client.exchange()
            if not opened:
                raise RuntimeError(f"{self.case.name}: a flow could not be opened before the flood")
            self.kept.append(client)
        self.outcome.established = ESTABLISHED

    def talk(self) -> None:
        """Exchange data on each established flow; a failed one counts as harmed once."""
        alive = [client for client in self.kept if client.exchange()]
        self.outcome.harmed += len(self.kept) - len(alive)
        self.kept = alive

    def spell(self, first: Plan, packets: int) -> None:
        """Send packets of the flood."""
        flags, answer = self.case.packets[self.turn % len(self.case.packets)]
        self.turn += 1
        service, wrapper = self.side.service, self.side.wrapper
        plan = replace(
            first, first=Tuple(first.first.src, service.vip, 0, service.port), flows=self.case.flows, flags=flags,
            proto=service.proto, answer=answer, in_order=True,
        )  # fmt: skip
        wrapper.set(plan, place=(self.position, 0))
        self.side.made.subject(self.side.name).run(packets * (2 if answer else 1))
        self.position = wrapper.position[0]

    def serve(self, now: float, more: int) -> None:
        """Continue the clients, and add so many."""
        self.clients += [self.client(now) for _ in range(more)]
        waiting = []
        for client in self.clients:
            done = client.step(now)
            if done is None:
                waiting.append(client)
            else:
                self.outcome.tried += 1
                self.outcome.served += done
        self.clients = waiting


def storm(made: Bench, attacks: Sequence[Attack], seconds: float) -> None:
    """Run all floods at once, each to its own backend."""
    plan = made.request_plan(1)
    plan = replace(plan, first=replace(plan.first, src=made.shape.flooder))
    began = time.monotonic()
    for attack in attacks:
        attack.establish(0.0)
    last = talked = 0.0
    while (now := time.monotonic() - began) < seconds + TAIL_S:
        counted = FULL_S < now < seconds + TAIL_S - PATIENCE_S
        for attack in attacks:
            if now < seconds:
                attack.spell(plan, max(1, int(RATE * (now - last))))
            attack.serve(now, max(1, int((now - last) / SPELL_S)) if counted else 0)
        if now > talked + TALK_S:
            talked = now
            for attack in attacks:
                if attack.case.proto == UDP:
                    attack.talk()
        last = now
        time.sleep(max(0.0, now + SPELL_S - (time.monotonic() - began)))
    for attack in attacks:
        attack.talk()
        while attack.clients:  # each is served or times out
            attack.serve(time.monotonic() - began, 0)


def measure(family: int, *, quick: bool, names: Sequence[str] = ("ours", "textbook")) -> Iterator[dict[str, Any]]:
    """Yield the results of the clients for each case and program."""
    with bench(family, 1, singles=[case.proto for case in CASES]) as made:
        attacks = [
            Attack(case, Side(made, name, service))
            for case, service in zip(CASES, made.shape.singles, strict=True)
            for name in names
        ]
        storm(made, attacks, QUICK_SECONDS if quick else SECONDS)
    for attack, name in zip(attacks, [name for _ in CASES for name in names], strict=True):
        out = attack.outcome
        yield {
            "family": family, "case": attack.case.name, "program": name, "tried": out.tried, "served": out.served,
            "established": out.established, "harmed": out.harmed,
        }  # fmt: skip
