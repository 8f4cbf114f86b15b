"""When a server is up or down: fall and rise, silent servers, checks beside one another. Probes are scripted: no network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.probes.checker import Checker, Health
from lbagent.probes.health_checks import HealthChecks
from lbagent.probes.probe_protocol import Outcome, Result
from lbagent.probes.probe_spec import ProbeSpec

SERVER, OTHER = L3n4Addr.parse("10.0.0.1:6443"), L3n4Addr.parse("10.0.0.2:6443")
UP, DOWN = Outcome(Result.OK, "HTTP status 200"), Outcome(Result.STATUS, "HTTP status 500")
CHECK = ProbeSpec(interval=0.02, timeout=0.02, fall=3, rise=2)


class Script:
    """A probe with a list of answers; the last one is repeated. A number is a pause in seconds, None never answers."""

    def __init__(self, *words: Outcome | Exception | None) -> None:
        self.words, self.asked, self.running, self.most = list(words), 0, 0, 0
        self.idle: list[bool] = []
        self.closed = False

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        self.asked += 1
        self.idle.append(may_use_idle)
        word = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if word is None:
                await asyncio.Event().wait()
            if isinstance(word, Exception):
                raise word
            assert word is not None
            return word
        finally:
            self.running -= 1

    def close(self) -> None:
        self.closed = True


class Watched:
    """A running checker, and what it was after each outcome."""

    def __init__(self, script: Script, check: ProbeSpec = CHECK, health: Health | None = None, **more: object) -> None:
        self.script, self.changes = script, 0
        self.seen: list[tuple[bool, bool]] = []
        self.checker = Checker(
            SERVER, check, script, health=health or Health(),  # type: ignore[arg-type]
            on_change=self._changed, on_outcome=lambda outcome, _: self.seen.append((outcome.is_up, self.checker.health.up)),
            **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def _changed(self, _: Checker) -> None:
        self.changes += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Checker]:
        self.checker.start()
        try:
            yield self.checker
        finally:
            self.checker.close()
            await asyncio.sleep(0)  # the ends of cancelled checks


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 what it waits for has no event
            await asyncio.sleep(0.001)


async def test_a_server_counts_as_up_until_it_was_checked() -> None:
    watched = Watched(Script(None))
    async with watched.running() as checker:
        await until(lambda: watched.script.asked)
        assert (checker.health.up, checker.health.since) == (True, 0.0)


def ups_before(outcomes: Iterable[Outcome]) -> Script:
    return Script(*outcomes)


@pytest.mark.parametrize(
    ("outcomes", "downs"),
    [
        ([DOWN, DOWN, UP, DOWN, DOWN, UP], 0),  # never three in a row
        ([DOWN, DOWN, DOWN, DOWN], 1),
        ([DOWN, DOWN, DOWN, UP, DOWN, UP, UP, UP, UP], 2),  # one success in between is not enough to rise
    ],
)
async def test_fall_and_rise_count_in_a_row(outcomes: list[Outcome], downs: int) -> None:
    watched = Watched(ups_before(outcomes))
    async with watched.running() as checker:
        await until(lambda: len(watched.seen) >= len(outcomes))
    assert checker.transitions == downs
    assert checker.health.up == (downs != 1)
    assert watched.script.closed


async def test_the_moment_of_a_change_is_kept_and_told_once() -> None:
    watched = Watched(Script(UP, DOWN))
    async with watched.running() as checker:
        await until(lambda: len(watched.seen) > 8)
        assert not checker.health.up
        assert checker.health.last == "HTTP status 500"
        assert watched.changes == 1
        since = checker.health.since
        count = len(watched.seen)
        await until(lambda: len(watched.seen) > count + 3)
        assert checker.health.since == since


async def test_what_was_known_holds_until_it_is_otherwise() -> None:
    watched = Watched(Script(UP), health=Health(up=False, since=5.0, last="refused"))
    assert not watched.checker.health.up
    async with watched.running() as checker:
        await until(lambda: checker.health.up)
    assert [up for _, up in watched.seen[:2]] == [False, False]  # before each of the two successes that it needs
    assert checker.health.since > 5.0


async def test_a_silent_server_is_asked_again_before_it_answered_but_by_fall_checks_at_most() -> None:
    watched = Watched(Script(None), ProbeSpec(interval=1, timeout=300, fall=3, rise=2))
    async with watched.running():
        await until(lambda: watched.script.asked == 3)
        await asyncio.sleep(0.2)
        assert (watched.script.asked, watched.script.most) == (3, 3)
    assert watched.script.running == 0


async def test_a_server_that_is_down_is_asked_one_at_a_time() -> None:
    down = Health(up=False, since=1.0, last="x")
    watched = Watched(Script(None), ProbeSpec(interval=0.02, timeout=60, fall=3, rise=2), down)
    async with watched.running():
        await until(lambda: watched.script.asked)
        await asyncio.sleep(0.2)
        assert watched.script.asked == 1


async def test_a_check_that_cannot_be_made_changes_nothing() -> None:
    watched = Watched(
        Script(FileNotFoundError(2, "No such file or directory")), ProbeSpec(interval=0.02, ca_file="/ca.crt")
    )
    async with watched.running() as checker:
        await until(lambda: checker.problem)
        assert checker.problem == "caFile /ca.crt: No such file or directory"
        assert checker.health == Health()
        assert watched.changes == 1


async def test_a_connection_is_used_again_only_while_all_is_well() -> None:
    watched = Watched(Script(*[UP] * 8, DOWN), uses=lambda: 4)
    async with watched.running() as checker:
        await until(lambda: not checker.health.up and len(watched.seen) > 14)
    assert watched.script.idle[:8] == [True, True, True, False] * 2  # every fourth connection is a new one
    assert not any(watched.script.idle[9:])  # after a failure


async def test_one_slow_server_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {SERVER: Script(None), OTHER: Script(UP)}
    monkeypatch.setattr("lbagent.probes.health_checks.make_probe", lambda server, *_: scripts[server])
    checks = HealthChecks(lambda: None, {})
    checks.use({(SERVER, CHECK), (OTHER, CHECK)})
    try:
        await until(lambda: scripts[OTHER].asked > 10)
        assert scripts[SERVER].asked <= CHECK.fall
        assert checks.results[OTHER, CHECK][Result.OK] >= 10
        assert checks.seconds.count == checks.results[OTHER, CHECK][Result.OK]
    finally:
        checks.close()
    await asyncio.sleep(0)  # the end of a cancelled check
    assert scripts[SERVER].running == 0


async def test_many_checks_share_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbagent.probes.health_checks.make_probe", lambda *_: Script(None))
    checks = HealthChecks(lambda: None, {})
    found = {}
    for servers in (1, 10, 12, 75):
        checks.use({(L3n4Addr.parse(f"10.0.0.{n}:1"), ProbeSpec(interval=0.5)) for n in range(servers)})
        found[servers * 2] = checks._uses()
    checks.close()
    assert found == {2: 1, 20: 1, 24: 1, 150: 19}


async def test_what_an_earlier_agent_found_holds_for_the_same_check_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbagent.probes.health_checks.make_probe", lambda *_: Script(None))
    other = ProbeSpec(path="/readyz")
    known = {(SERVER, CHECK): Health(up=False, since=7.0, last="refused")}
    checks = HealthChecks(lambda: None, known)
    checks.use({(SERVER, CHECK), (SERVER, other)})
    try:
        assert checks.is_down(SERVER, CHECK)
        assert not checks.is_down(SERVER, other)
        assert not checks.is_down(OTHER, CHECK)
        assert checks.all() == {**known, (SERVER, other): Health()}
        checks.use({(SERVER, other)})
        checks.use({(SERVER, other), (SERVER, CHECK)})
        assert not checks.is_down(SERVER, CHECK)  # what was away is not known any more
    finally:
        checks.close()


async def test_a_check_ends_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {SERVER: Script(DOWN), OTHER: Script(UP)}
    monkeypatch.setattr("lbagent.probes.health_checks.make_probe", lambda server, *_: scripts[server])
    checks = HealthChecks(lambda: None, {})
    checks.change([(SERVER, CHECK), (SERVER, CHECK), (OTHER, CHECK)], ())
    try:
        await until(lambda: checks.is_down(SERVER, CHECK))
        assert checks.down == {CHECK: {SERVER}}
        checks.change((), [(SERVER, CHECK)])
        assert checks.is_down(SERVER, CHECK)
        checks.change((), [(SERVER, CHECK)])
        assert not checks.is_down(SERVER, CHECK)
        assert (checks.down, scripts[SERVER].closed, scripts[OTHER].closed) == ({}, True, False)
        checks.change([(SERVER, CHECK)], ())
        assert not checks.is_down(SERVER, CHECK)  # it starts from the beginning
        checks.change([(OTHER, CHECK)], [(OTHER, CHECK), (SERVER, CHECK)])
        assert set(checks.all()) == {(OTHER, CHECK)}
    finally:
        checks.close()
