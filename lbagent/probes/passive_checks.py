"""Passive health checks: what the flows themselves tell of backends. No probe is sent.

A backend is out when so many flows in a row had their SYN repeated and got no answer, of so many clients, while another backend of
the Service answered. An answer is any SYN-ACK or RST: a forged SYN gets one from a backend that lives, so a flood of them puts no
backend out. The time for which it is out doubles from one to the next, and begins again with the first one after a good time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.probes.backend_check import CheckedService
from lbagent.probes.checker import Health

log = logging.getLogger(__name__)
FLOWS, CLIENTS = 5, 3  # in a row, of so many clients
MAX_ROW = 100  # flows that are kept
ANSWER_S = 3.0  # after the repeated SYN
FIRST_OUT_S, MAX_OUT_S = 10.0, 300.0
GOOD_S = 600.0  # so long after its return, and once it has answered, a backend's next time out is the first one again
LOOK_INTERVAL_S = 1.0

Place = tuple[str, L3n4Addr]  # key of a Service, backend


class WaitingHandshake(NamedTuple):
    """A flow whose SYN was repeated, and that has no answer yet."""

    number: int  # of the flow
    began_s: float  # of CLOCK_MONOTONIC
    service: str
    backend: L3n4Addr
    client: int  # one number for each client, of 26 bits


class ObservedFlows(Protocol):
    """What a data plane reads of flows."""

    def waiting_handshakes(self, services: Mapping[str, CheckedService]) -> Sequence[WaitingHandshake]:
        """Return the flows to these Services whose SYN was repeated, and that have no answer. Raises LbError."""

    def answered_handshakes(self, services: Mapping[str, CheckedService]) -> Mapping[L3n4Addr, int]:
        """Return how many flows each backend of these Services has answered so far. Raises LbError."""


class _Backend(Struct):
    """What is known of a backend of a Service."""

    row: list[tuple[float, int]] = []  # flows in a row without an answer: when each was repeated, its client
    out_until: float = 0.0
    out_s: float = 0.0  # how long the last time out is, 0: none
    returned_s: float = 0.0
    has_answered: bool = False  # since its return
    changed_at: float = 0.0  # seconds since 1970
    text: str = ""  # why it is, or was, out
    times_out: int = 0


class PassiveChecks:
    """Decides which backends are out; the caller looks once a second. Times are of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._backends: dict[Place, _Backend] = {}
        self._repeated: dict[tuple[int, float], float | None] = {}  # by flow: when it was seen first; None: it counts
        self._answers: dict[L3n4Addr, tuple[int, float]] = {}  # how many, and when the last one was seen
        self._began = time.time()

    def look(self, services: Mapping[str, CheckedService], flows: ObservedFlows, now: float) -> bool:
        """Look once; return whether a backend went out or returned. Raises LbError."""
        waiting = flows.waiting_handshakes(services)
        self._follow(services)
        self._note_answers(flows.answered_handshakes(services), now)
        self._note_waiting(waiting, now)
        changed = [self._return(each, now) for each in self._backends.values()]
        changed += [self._decide(place, services, now) for place in list(self._backends)]
        return any(changed)

    def down(self, service: str) -> Iterator[tuple[L3n4Addr, str]]:
        """Yield the backends of a Service that are out, and why."""
        for (key, backend), found in self._backends.items():
            if key == service and found.out_until:
                yield backend, found.text

    def health(self, service: str, backend: L3n4Addr) -> Health:
        """Return the health of a backend; without an observation it is up since the agent began."""
        found = self._backends.get((service, backend), _UNKNOWN)
        is_out = bool(found.out_until)
        return Health(not is_out, found.changed_at or self._began, found.text, is_out)

    def times_out(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Yield Service and backend of each that was out, and how often."""
        for (service, backend), found in self._backends.items():
            if found.times_out:
                yield (service, backend.with_protocol()), found.times_out

    def _follow(self, services: Mapping[str, CheckedService]) -> None:
        wanted = {(key, backend) for key, each in services.items() for backend, _ in each.backends}
        for place in wanted - self._backends.keys():
            self._backends[place] = _Backend(row=[])
        for place in self._backends.keys() - wanted:
            del self._backends[place]

    def _note_answers(self, answers: Mapping[L3n4Addr, int], now: float) -> None:
        """An answer ends the row of flows without one."""
        before, self._answers = self._answers, {}
        for backend, count in answers.items():
            known = before.get(backend, (count, 0.0))
            self._answers[backend] = known if known[0] == count else (count, now)
        for (_, backend), found in self._backends.items():
            if self._answers.get(backend, (0, 0.0))[1] == now:
                found.row.clear()
                found.has_answered = True

    def _note_waiting(self, waiting: Sequence[WaitingHandshake], now: float) -> None:
        before, self._repeated = self._repeated, {}
        for each in waiting:
            flow = each.number, each.began_s
            seen = before.get(flow, now)
            if seen is not None and now - seen >= ANSWER_S:
                self._note_unanswered(each, seen)
                seen = None
            self._repeated[flow] = seen

    def _note_unanswered(self, flow: WaitingHandshake, repeated_s: float) -> None:
        found = self._backends.get((flow.service, flow.backend))
        if found is None or found.out_until or flow.began_s < found.returned_s:
            return  # it began before the time out that followed
        found.row.append((repeated_s, flow.client))
        del found.row[:-MAX_ROW]

    def _return(self, found: _Backend, now: float) -> bool:
        if not found.out_until or now < found.out_until:
            if found.out_s and not found.out_until and found.has_answered and now - found.returned_s >= GOOD_S:
                found.out_s = 0.0
            return False
        found.returned_s, found.out_until, found.has_answered = found.out_until, 0.0, False
        found.changed_at = time.time()
        return True

    def _decide(self, place: Place, services: Mapping[str, CheckedService], now: float) -> bool:
        found, (service, backend) = self._backends[place], place
        flows, clients = len(found.row), len({client for _, client in found.row})
        if flows < FLOWS or clients < CLIENTS:
            return False
        if not self._others_answer(services[service], backend, found.row[-FLOWS][0]):
            return False
        found.out_s = min(found.out_s * 2, MAX_OUT_S) if found.out_s else FIRST_OUT_S
        found.out_until, found.changed_at = now + found.out_s, time.time()
        found.row.clear()
        found.times_out += 1
        found.text = f"no answer to {flows} flows in a row of {clients} clients: out for {found.out_s:g}s"
        log.warning(
            "a backend does not answer flows",
            extra={
                "service": service,
                "backend": backend.with_protocol(),
                "flows": flows,
                "clients": clients,
                "out_s": found.out_s,
            },
        )
        return True

    def _others_answer(self, service: CheckedService, backend: L3n4Addr, since: float) -> bool:
        return any(
            self._answers.get(other, (0, 0.0))[1] >= since > 0 for other, _ in service.backends if other != backend
        )


_UNKNOWN = _Backend()
