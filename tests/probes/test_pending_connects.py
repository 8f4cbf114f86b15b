"""Many connections of checks at once: each has its outcome, or its time-out, and none stays open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import time
from collections.abc import Callable

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.probes.checker import Checker, Health
from lbagent.probes.pending_connects import Connect, PendingConnects
from lbagent.probes.probe_protocol import Outcome, QuickProbe, Result
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec
from lbagent.probes.tcp_probe import TcpProbe
from tests.lab.https_server import full_listener
from tests.probes.plain_servers import server_at, unused


class Outcomes:
    """The outcomes of connections, in their order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.connects = PendingConnects(clock)
        self.of: dict[Connect, Outcome] = {}

    def begin(self, server: L3n4Addr, timeout_s: float = 30.0) -> Connect:
        return self.connects.begin(server, timeout_s, self.done)

    def done(self, connect: Connect, outcome: Outcome) -> None:
        assert connect not in self.of
        self.of[connect] = outcome

    async def wait(self, number: int) -> None:
        async with asyncio.timeout(60):
            while len(self.of) < number:  # noqa: ASYNC110 what it waits for has no event
                await asyncio.sleep(0.001)


def open_files() -> int:
    gc.collect()  # what other tests left
    return len(os.listdir("/proc/self/fd"))


async def test_each_of_many_has_its_outcome() -> None:
    before = open_files()
    found = Outcomes()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as good, unused(socket.SOCK_STREAM) as closed:
        up = {found.begin(server_at(good)) for _ in range(300)}
        down = {found.begin(closed) for _ in range(300)}
        assert not found.of  # never before `begin` has returned
        await found.wait(600)
        assert {found.of[each].result for each in up} == {Result.OK}
        assert {found.of[each].result for each in down} == {Result.REFUSED}
    found.connects.close()
    assert open_files() == before


async def test_time_is_over_for_those_without_an_answer_alone() -> None:
    found = Outcomes()
    with contextlib.ExitStack() as closing:
        silent, *_ = [closing.enter_context(sock) for sock in full_listener("127.0.0.1", 0)]
        began = time.monotonic()
        short, long = found.begin(server_at(silent), 0.2), found.begin(server_at(silent), 0.5)
        good = found.begin(server_at(closing.enter_context(socket.create_server(("127.0.0.1", 0)))), 0.2)
        await found.wait(2)
        assert set(found.of) == {good, short}
        assert 0.2 <= time.monotonic() - began < 10
        await found.wait(3)
        assert found.of[long].text == "no answer within 0.5 s"
        assert found.of[short].text == "no answer within 0.2 s"
    found.connects.close()


async def test_an_answer_that_came_while_the_loop_did_not_run_counts() -> None:
    found = Outcomes()
    with socket.create_server(("127.0.0.1", 0)) as good:
        connect = found.begin(server_at(good), 0.05)
        time.sleep(0.3)  # noqa: ASYNC251 - this stops the loop
        await found.wait(1)
        assert found.of[connect].is_up
    found.connects.close()


async def test_time_in_which_the_clock_stands_does_not_count() -> None:
    now = 0.0
    found = Outcomes(lambda: now)
    with contextlib.ExitStack() as closing:
        silent, *_ = [closing.enter_context(sock) for sock in full_listener("127.0.0.1", 0)]
        found.begin(server_at(silent), 0.05)
        await asyncio.sleep(0.3)
        assert not found.of
        now = 0.06
        await found.wait(1)
    found.connects.close()


async def test_a_cancelled_one_has_no_outcome_and_its_number_may_be_used_again() -> None:
    found = Outcomes()
    with contextlib.ExitStack() as closing:
        silent, *_ = [closing.enter_context(sock) for sock in full_listener("127.0.0.1", 0)]
        good = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        before = open_files()
        first = found.begin(server_at(silent), 0.1)
        first.cancel()
        second = found.begin(server_at(good), 5)
        first.cancel()
        await found.wait(1)
        await asyncio.sleep(0.2)
        assert set(found.of) == {second}
        second.cancel()
        assert open_files() == before
    found.connects.close()


async def test_no_way_to_the_server_is_an_outcome_too() -> None:
    found = Outcomes()
    found.begin(L3n4Addr.parse("255.255.255.255:80"))
    assert not found.of
    await found.wait(1)
    (outcome,) = found.of.values()
    assert outcome.result is Result.CONNECTION
    found.connects.close()


async def test_closing_ends_those_in_progress() -> None:
    before = open_files()
    found = Outcomes()
    with contextlib.ExitStack() as closing:
        silent, *_ = [closing.enter_context(sock) for sock in full_listener("127.0.0.1", 0)]
        for _ in range(5):
            found.begin(server_at(silent), 0.05)
        found.connects.close()
        await asyncio.sleep(0.1)
    assert not found.of
    assert open_files() == before


async def test_the_process_of_the_server_sees_no_connection() -> None:
    found = Outcomes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(20):
            found.begin(server_at(listener))
        await found.wait(20)
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()
    found.connects.close()


async def test_a_checker_has_no_task_for_it() -> None:
    connects = PendingConnects(time.monotonic)
    spec = ProbeSpec(kind=ProbeKind.TCP, interval=0.05, timeout=0.05, fall=2, rise=2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        probe = TcpProbe(server_at(listener), spec, connects)
        assert isinstance(probe, QuickProbe)
        outcomes: list[tuple[bool, float]] = []
        checker = Checker(
            server_at(listener), spec, probe, health=Health(), on_change=lambda _: None,
            on_outcome=lambda outcome, seconds: outcomes.append((outcome.is_up, seconds)),
        )  # fmt: skip
        checker.start()
        tasks = len(asyncio.all_tasks())
        async with asyncio.timeout(30):
            while len(outcomes) < 3:
                assert len(asyncio.all_tasks()) == tasks
                await asyncio.sleep(0)
        listener.close()
        async with asyncio.timeout(30):
            while checker.health.up:  # noqa: ASYNC110 what it waits for has no event
                await asyncio.sleep(0.001)
    checker.close()
    connects.close()
    assert outcomes[0][0]
    assert all(0 <= seconds < 10 for _, seconds in outcomes)
    assert checker.health.error == "connection refused"
