"""Compare what both sides answered: who, with which source address, refused how, in which shares, and what open connections feel."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log

from tests.oracle.asker import LOST_S, SILENT_S, Conversation, Outcome, Request
from tests.oracle.folders import HOST, Folder, Frontend, Service
from tests.oracle.twins import CLIENTS, SOURCES, Side, Twins

FIRST, ASKS, MOST = 3, 18, 360
PATIENT_S, PATIENT_LOST_S = 0.8, 3.0
PAUSES_S = (0.0, 2.0)  # before differing requests are made again: a difference is one that stays
G_LIMIT = 60.0  # of a likelihood ratio with few degrees of freedom: by chance once in 10^11

Key = tuple[Frontend, str]  # a frontend and a client
Seen = dict[Key, list[Counter[Outcome]]]  # one of each side
Open = dict[tuple[Frontend, str, str], Conversation]  # and the backend


class Design(ABC):
    """What docs/renderers.md states to differ by design."""

    def is_stated(self, service: Service, frontend: Frontend, client: str) -> bool:
        """Return whether new connections of a client differ."""
        del service, frontend, client
        return False

    @abstractmethod
    def is_stated_of_open(
        self, before: Folder, now: Folder, frontend: Frontend, client: str, felt: tuple[str, str]
    ) -> bool:
        """Return whether connections of the folder before feel something else."""

    @abstractmethod
    def normal(self, seen: Counter[Outcome], client: str) -> Mapping[Outcome, int]:
        """Return outcomes without what differs."""


class BpfAndNftables(Design):
    """BPF first."""

    def is_stated(self, service: Service, frontend: Frontend, client: str) -> bool:
        """Source ranges, processes of this node at both ends."""
        at_host = any(endpoint.backend == HOST for endpoint in service.endpoints)
        return client == "node" and frontend.kind == "ingress" and bool(service.ranges) and at_host

    def is_stated_of_open(
        self, before: Folder, now: Folder, frontend: Frontend, client: str, felt: tuple[str, str]
    ) -> bool:
        """Removed frontends, policy Local that ends, sockets of the node's processes."""
        by_bpf = felt[0]
        is_there = any(frontend in service.frontends() for service in now.services)
        is_kept = by_bpf == "kept" and (client == "node" or not is_there)  # by a socket program; until the next sweep
        is_closed = client == "node" and frontend.protocol == "UDP" and by_bpf not in ("kept", "moved", "silent")
        is_local = [_is_local(folder, frontend) for folder in (before, now)]
        had_scopes = is_local == [True, False] and client != "outside"
        return is_kept or is_closed or (had_scopes and is_there and by_bpf != "kept")

    def normal(self, seen: Counter[Outcome], client: str) -> Mapping[Outcome, int]:
        """Leave out how a process of the node is refused, and its source address; an outside client is any of them."""
        out: defaultdict[Outcome, int] = defaultdict(int)
        for outcome, count in seen.items():
            if client == "node" and outcome.kind != "answered":  # by a socket program, or by a rule
                outcome = Outcome("refused")
            if client == "node":  # its own address: of the device towards the backend, or of the route to the VIP
                outcome = replace(outcome, source="")
            source = (
                "outside" if client == "outside" and outcome.source in (*SOURCES[4], *SOURCES[6]) else outcome.source
            )
            out[Outcome(outcome.kind, outcome.backend, source, outcome.how)] += count
        return out


def _is_local(folder: Folder, frontend: Frontend) -> bool:
    """Return whether the traffic policy of a frontend gives clients outside other backends."""
    return frontend.kind != "cluster" and any(
        frontend in service.frontends() and service.external == "Local" for service in folder.services
    )


class Judge:
    """The same requests to both sides, and connections that stay open over changes."""

    def __init__(self, twins: Twins, design: Design | None = None) -> None:
        self._twins, self._design = twins, design or BpfAndNftables()
        self._open: dict[str, Open] = {side.name: {} for side in twins.sides}
        self._before = Folder(())
        self.asked = 0

    def close(self) -> None:
        """End all connections."""
        for name, conversations in self._open.items():
            for each in conversations.values():
                each.close()
            self._open[name] = {}

    def differences(self, folder: Folder) -> list[str]:
        """Return in what the sides differ with the folder that is in force, a line each."""
        out = list(self._felt(folder))
        self.close()
        self._before = folder
        for service in folder.services:
            out += self._answers(service)
        return out

    # --- open connections ---

    def _felt(self, folder: Folder) -> Iterator[str]:
        """Compare what connections of before feel, by frontend, client and backend."""
        felt: list[dict[tuple[Frontend, str, str], str]] = []
        for side in self._twins.sides:
            conversations = self._open[side.name]
            felt.append(dict(zip(conversations, side.asker.still(list(conversations.values()), LOST_S), strict=True)))
        one, other = felt
        self._look_again(one, other)
        for key in sorted(one.keys() & other.keys()):
            frontend, client, backend = key
            if not _is_alike(one[key], other[key]) and not self._design.is_stated_of_open(
                self._before, folder, frontend, client, (one[key], other[key])
            ):
                words = ", ".join(
                    f"{side.name} {each[key]}" for side, each in zip(self._twins.sides, felt, strict=True)
                )
                yield f"open connection of {client} to {_text(frontend)} at {backend}: {words}"

    def _look_again(self, *felt: dict[tuple[Frontend, str, str], str]) -> None:
        """Give those that are silent on one side more time: on a busy machine an answer may come late."""
        one, other = felt
        late = [key for key in one.keys() & other.keys() if [one[key], other[key]].count("silent") == 1]
        for side, each in zip(self._twins.sides, felt, strict=True):
            mine = [key for key in late if each[key] == "silent"]
            again = side.asker.still([self._open[side.name][key] for key in mine], PATIENT_LOST_S)
            each.update(zip(mine, again, strict=True))

    # --- new connections ---

    def _answers(self, service: Service) -> Iterator[str]:
        """Compare the answers of all frontends to all clients; where they differ there are more requests, until chance cannot explain it."""
        keys = [
            (frontend, client)
            for frontend in service.frontends()
            for client in CLIENTS
            if not self._design.is_stated(service, frontend, client)
        ]
        seen = self._seen(service, keys, SILENT_S)
        differing = [key for key in keys if not self._alike(service, key, seen)]
        for pause_s in PAUSES_S if differing else ():  # on a busy machine an answer may come late
            time.sleep(pause_s)
            seen = self._seen(service, differing, PATIENT_S)
            differing = [key for key in differing if not self._alike(service, key, seen)]
        for key in differing:
            answers = (", ".join(f"{count} {outcome}" for outcome, count in sorted(each.items())) for each in seen[key])
            lines = [f"{side.name}: {each}" for side, each in zip(self._twins.sides, answers, strict=True)]
            yield f"{service.name}: {key[1]} to {_text(key[0])}: {' | '.join(lines)}"

    def _seen(self, service: Service, keys: Sequence[Key], wait_s: float) -> Seen:
        """Return what was answered, after as many requests as are needed."""
        seen: Seen = {key: [Counter(), Counter()] for key in keys}
        self._ask(keys, seen, FIRST, wait_s)
        unsettled = [key for key in keys if not all(map(_settled, seen[key])) or not self._alike(service, key, seen)]
        self._ask(unsettled, seen, ASKS - FIRST, wait_s)
        while keys := [key for key in keys if not self._alike(service, key, seen) and seen[key][0].total() < MOST]:
            self._ask(keys, seen, ASKS, wait_s)
        return seen

    def _alike(self, service: Service, key: Key, seen: Seen) -> bool:
        one, other = (Counter(self._design.normal(each, key[1])) for each in seen[key])
        if service.affinity and key[1] != "outside":  # one client has one backend, which may be any
            return _kinds(one) == _kinds(other) and len(one) == len(other)
        return one.keys() == other.keys() and (service.affinity or is_one_distribution(one, other))

    def _ask(self, keys: Sequence[Key], seen: Seen, count: int, wait_s: float) -> None:
        for at, side in enumerate(self._twins.sides):
            order = [key for client in CLIENTS for key in keys if key[1] == client for _ in range(count)]
            numbers = Counter({key: seen[key][at].total() for key in keys})
            requests = []
            for key in order:
                sources = SOURCES[key[0].version]
                source = sources[numbers[key] % len(sources)] if key[1] == "outside" else ""
                numbers[key] += 1
                requests.append(Request(key[0], side.place(key[1]), source))
            for key, (outcome, conversation) in zip(order, side.asker.ask(requests, wait_s), strict=True):
                seen[key][at][outcome] += 1
                self._keep(side, key, conversation)
            self.asked += len(order)

    def _keep(self, side: Side, key: Key, conversation: Conversation | None) -> None:
        if conversation is None:
            return
        place = (*key, conversation.backend)
        if place in self._open[side.name]:
            conversation.close()
        else:
            self._open[side.name][place] = conversation


def _is_alike(one: str, other: str) -> bool:
    """Return whether connections feel the same; errors of a socket that cannot send are one."""
    return one == other or not {one, other} & {"kept", "moved", "silent"}


def _text(frontend: Frontend) -> str:
    return f"{frontend.kind} {frontend.address} {frontend.port}/{frontend.protocol}"


def _settled(seen: Counter[Outcome]) -> bool:
    """Return whether further answers would be the same: nothing was answered."""
    return len(seen) == 1 and next(iter(seen)).kind != "answered"


def _kinds(seen: Counter[Outcome]) -> set[tuple[str, str]]:
    return {(outcome.kind, outcome.how) for outcome in seen}


def is_one_distribution(one: Counter[Outcome], other: Counter[Outcome]) -> bool:
    """Return whether two samples with the same number of draws can be of one distribution, by their likelihood ratio G."""
    total = 0.0
    for key in one.keys() | other.keys():
        mean = (one[key] + other[key]) / 2
        total += sum(2 * count * log(count / mean) for count in (one[key], other[key]) if count)
    return total < G_LIMIT
