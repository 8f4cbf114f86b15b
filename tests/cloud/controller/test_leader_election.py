"""The Lease, with a controlled clock and a dictionary as the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from lbagent.kube.kube_client import ApiError, ServerUnreachable
from lbagent.kube.leader_election import LeaderElection


class Server:
    """One Lease, with versions."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.is_away = False

    def _store(self, body: dict[str, Any]) -> bytes:
        self.version += 1
        self.lease = msgspec.json.decode(msgspec.json.encode(body))
        assert self.lease is not None
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return b"{}"

    async def connect(self) -> None:
        pass

    @asynccontextmanager
    async def get(self, path: str, query: Any, *, silence_s: float) -> AsyncIterator[Any]:
        if self.is_away:
            raise ServerUnreachable("away")
        if self.lease is None:
            raise ApiError(404)
        data = msgspec.json.encode(self.lease)

        class Answer:
            async def read(self) -> bytes:
                return data

        yield Answer()

    async def post(self, path: str, body: Any, *, silence_s: float) -> bytes:
        if self.lease is not None:
            raise ApiError(409)
        return self._store(body)

    async def put(self, path: str, body: Any, *, silence_s: float) -> bytes:
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError(409)
        return self._store(body)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Server:
    return Server()


def candidate(server: Server, name: str, clock: Clock, duration_s: float = 15.0) -> LeaderElection:
    return LeaderElection(server, "kube-system", name, duration_s, clock)  # type: ignore[arg-type]


async def test_a_lease_that_goes_on_changing_is_not_taken(server: Server) -> None:
    mine, theirs = Clock(), Clock()
    theirs.now = 9_000_000.0  # clocks of different nodes are not compared
    one, two = candidate(server, "one", mine), candidate(server, "two", theirs)
    assert await one._try_once()
    for _ in range(20):
        assert not await two._try_once()
        mine.now += 2
        theirs.now += 2
        assert await one._try_once()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "one"
    assert server.lease["spec"]["leaseTransitions"] == 0


async def test_one_that_stands_still_is_taken_after_its_duration_as_the_observer_counts(server: Server) -> None:
    mine, theirs = Clock(), Clock()
    one, two = candidate(server, "one", mine), candidate(server, "two", theirs)
    assert await one._try_once()
    theirs.now += 1000  # it reads the record for the first time now
    assert not await two._try_once()
    theirs.now += 15
    assert not await two._try_once()
    theirs.now += 0.1
    assert await two._try_once()
    assert server.lease is not None
    assert (server.lease["spec"]["holderIdentity"], server.lease["spec"]["leaseTransitions"]) == ("two", 1)
    assert not await one._try_once()


async def test_a_leader_that_cannot_renew_stops_before_another_begins(server: Server) -> None:
    clock = Clock()
    one = candidate(server, "one", clock)
    assert await one._try_once()
    one.is_leading = True
    assert one.may_write()
    server.is_away = True
    clock.now += 9.9
    assert not await one._try_once()
    assert one.may_write()
    clock.now += 0.2
    assert not one.may_write()
    assert 10 + one.write_s <= 15


async def test_a_lease_that_was_given_back_is_free_at_once(server: Server) -> None:
    clock = Clock()
    one, two = candidate(server, "one", clock), candidate(server, "two", clock)
    assert await one._try_once()
    assert not await two._try_once()
    await one._release()
    assert await two._try_once()
    await one._release()  # another process has it now
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "two"


async def test_two_at_the_same_moment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    one, two = candidate(server, "one", clock), candidate(server, "two", clock)
    real = server.put
    await candidate(server, "old", clock)._try_once()
    assert not await one._try_once()
    assert not await two._try_once()
    clock.now += 16

    async def meanwhile(path: str, body: Any, *, silence_s: float) -> bytes:
        monkeypatch.setattr(server, "put", real)
        assert await two._try_once()
        return await real(path, body, silence_s=silence_s)

    monkeypatch.setattr(server, "put", meanwhile)
    assert not await one._try_once()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "two"
