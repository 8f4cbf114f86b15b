"""Compare what both sides answered: who, with which source address, refused how, in which shares, and what open connections feel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log

from tests.oracle.asker import Conversation, Outcome, Request
from tests.oracle.folders import Folder, Frontend, Service
from tests.oracle.twins import CLIENTS, SOURCES, Side, Twins

FIRST, ASKS, MOST = 3, 18, 360
G_LIMIT = 60.0  # of a likelihood ratio with few degrees of freedom: by chance once in 10^11

Key = tuple[Frontend, str]  # a frontend and a client
Seen = dict[Key, list[Counter[Outcome]]]  # one of each side
Open = dict[tuple[Frontend, str, str], Conversation]  # and the backend


class Judge:
    """The same requests to both sides, and connections that stay open over changes."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins
        self._open: dict[str, Open] = {side.name: {} for side in twins.sides}
        self.asked = 0

    def close(self) -> None:
        """End all connections."""
        for name, conversations in self._open.items():
            for each in conversations.values():
                each.close()
            self._open[name] = {}

    def differences(self, folder: Folder) -> list[str]:
        """Return in what the sides differ with the folder that is in force, a line each."""
        out = list(self._felt())
        self.close()
        for service in folder.services:
            out += self._answers(service)
        return out

    # --- open connections ---

    def _felt(self) -> Iterator[str]:
        """Compare what connections of before feel, by frontend, client and backend."""
        felt: list[dict[tuple[Frontend, str, str], str]] = []
        for side in self._twins.sides:
            conversations = self._open[side.name]
            felt.append(dict(zip(conversations, side.asker.still(list(conversations.values())), strict=True)))
        one, other = felt
        for key in sorted(one.keys() & other.keys()):
            ended_by_one = (
                key[1] == "node" and other[key] != "kept"
            )  # socket programs translate no packet of an open connection
            if one[key] != other[key] and not ended_by_one:
                words = ", ".join(
                    f"{side.name} {each[key]}" for side, each in zip(self._twins.sides, felt, strict=True)
                )
                yield f"open connection of {key[1]} to {_text(key[0])} at {key[2]}: {words}"

    # --- new connections ---

    def _answers(self, service: Service) -> Iterator[str]:
        """Compare the answers of all frontends to all clients; where they differ there are more requests, until chance cannot explain it."""
        keys = [(frontend, client) for frontend in service.frontends() for client in CLIENTS]
        seen: Seen = {key: [Counter(), Counter()] for key in keys}
        self._ask(keys, seen, FIRST)
        self._ask(
            [key for key in keys if not all(map(_settled, seen[key])) or not _alike(service, key, seen)],
            seen,
            ASKS - FIRST,
        )
        while keys := [key for key in keys if not _alike(service, key, seen) and seen[key][0].total() < MOST]:
            self._ask(keys, seen, ASKS)
        for key in [key for key in seen if not _alike(service, key, seen)]:
            answers = (", ".join(f"{count} {outcome}" for outcome, count in sorted(each.items())) for each in seen[key])
            lines = [f"{side.name}: {each}" for side, each in zip(self._twins.sides, answers, strict=True)]
            yield f"{service.name}: {key[1]} to {_text(key[0])}: {' | '.join(lines)}"

    def _ask(self, keys: Sequence[Key], seen: Seen, count: int) -> None:
        for at, side in enumerate(self._twins.sides):
            order = [key for client in CLIENTS for key in keys if key[1] == client for _ in range(count)]
            numbers = Counter({key: seen[key][at].total() for key in keys})
            requests = []
            for key in order:
                sources = SOURCES[key[0].version]
                source = sources[numbers[key] % len(sources)] if key[1] == "outside" else ""
                numbers[key] += 1
                requests.append(Request(key[0], side.place(key[1]), source))
            for key, (outcome, conversation) in zip(order, side.asker.ask(requests), strict=True):
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


def _alike(service: Service, key: Key, seen: Seen) -> bool:
    one, other = (Counter(_normal(each, key[1])) for each in seen[key])
    if service.affinity and key[1] != "outside":  # one client has one backend, which may be any
        return _kinds(one) == _kinds(other) and len(one) == len(other)
    return one.keys() == other.keys() and (service.affinity or is_one_distribution(one, other))


def _text(frontend: Frontend) -> str:
    return f"{frontend.kind} {frontend.address} {frontend.port}/{frontend.protocol}"


def _settled(seen: Counter[Outcome]) -> bool:
    """Return whether further answers would be the same: nothing was answered."""
    return len(seen) == 1 and next(iter(seen)).kind != "answered"


def _normal(seen: Counter[Outcome], client: str) -> Mapping[Outcome, int]:
    """Return the outcomes without what docs/renderers.md states to differ."""
    out: defaultdict[Outcome, int] = defaultdict(int)
    for outcome, count in seen.items():
        if client == "node" and outcome.kind != "answered":  # by a socket program, or by a rule
            outcome = Outcome("refused")
        if client == "node":  # its own address: of the device towards the backend, or of the route to the VIP
            outcome = replace(outcome, source="")
        source = "outside" if client == "outside" and outcome.source in (*SOURCES[4], *SOURCES[6]) else outcome.source
        out[Outcome(outcome.kind, outcome.backend, source, outcome.how)] += count
    return out


def _kinds(seen: Counter[Outcome]) -> set[tuple[str, str]]:
    return {(outcome.kind, outcome.how) for outcome in seen}


def is_one_distribution(one: Counter[Outcome], other: Counter[Outcome]) -> bool:
    """Return whether two samples with the same number of draws can be of one distribution, by their likelihood ratio G."""
    total = 0.0
    for key in one.keys() | other.keys():
        mean = (one[key] + other[key]) / 2
        total += sum(2 * count * log(count / mean) for count in (one[key], other[key]) if count)
    return total < G_LIMIT
