"""What the monitor shows, counts and logs of what its checks find."""

from __future__ import annotations

import logging

import pytest

from lbagent.checks import condition_monitor as module
from lbagent.checks.condition_monitor import ConditionMonitor
from lbagent.errors import LbError
from lbagent.model.check import Check, CheckGroup, Finding, Result
from tests.checks.looking import conditions

OFF = Finding("forwarding-off", "IPv4", "IPv4 forwarding is off", "sysctl -w net.ipv4.ip_forward=1")
FULL = Finding("map-nearly-full", "lb4_service", "map lb4_service is nearly full", "raise it")
MENDED = Finding("link-detached", "eth0-xdp", "its link was detached; it was attached again", mended=True)


class Found:
    """A check that finds what the test puts into it; `raises` it when that is set."""

    def __init__(self, *conditions: Finding) -> None:
        self.conditions = list(conditions)
        self.raises: Exception | None = None

    def of(self, name: str) -> list[Result]:
        """Return what it finds by a name; it fails by the first one, where it fails."""
        if self.raises:
            raise self.raises
        return [result(each) for each in self.conditions if each.name == name]


def result(found: Finding) -> Result:
    return Result(found.subject, text=found.text, remedy=found.remedy, mended=found.mended)


def make(*found: Found) -> ConditionMonitor:
    """Every check of the table finds what these give by its name; one that fails is a check of its own."""

    def filled(check: Check) -> Check:
        return check._replace(
            run=lambda _: [each for one in found if not one.raises for each in one.of(check.name)],
            for_s=0.0,
            describe=None,
        )

    broken = [Check("Found", "whether", lambda _, one=one: one.of("Found")) for one in found if one.raises]
    return ConditionMonitor([CheckGroup([*map(filled, conditions()), *broken], None)])


def names(monitor: ConditionMonitor) -> list[tuple[str, str]]:
    return [(each.condition.name, each.condition.subject) for each in monitor.standing]


async def test_a_condition_holds_from_one_look_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    check = Found(OFF, FULL)
    monitor = make(check)
    for _ in range(3):
        await monitor.look()
    assert names(monitor) == [("forwarding-off", "IPv4"), ("map-nearly-full", "lb4_service")]
    assert monitor.counts()["forwarding-off"] == 1
    assert monitor.counts()["link-detached"] == 0
    assert monitor.severities() == {"fault": 2, "degraded": 0}
    assert [record.message for record in caplog.records] == ["a condition began"] * 2
    assert {record.remedy for record in caplog.records} == {"sysctl -w net.ipv4.ip_forward=1", "raise it"}  # type: ignore[attr-defined]
    since = monitor.standing[0].since
    check.conditions = [OFF]
    await monitor.look()
    assert names(monitor) == [("forwarding-off", "IPv4")]
    assert monitor.standing[0].since == since
    assert caplog.records[-1].message == "a condition ended"


async def test_what_was_mended_is_shown_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Long enough to be seen by a scrape every 15 s, and no longer."""
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    check = Found(MENDED)
    monitor = make(check)
    await monitor.look()
    check.conditions = []
    for later in (1010.0, 1029.0):
        now = later
        await monitor.look()
        assert [each.condition.mended for each in monitor.standing] == [True]
        assert monitor.counts()["link-detached"] == 1
    now = 1031.0
    await monitor.look()
    assert monitor.standing == []
    assert [record.message for record in caplog.records] == ["a condition ended"]


async def test_a_check_that_fails_hides_nothing() -> None:
    broken = Found()
    broken.raises = LbError("the maps could not be read")
    monitor = make(broken, Found(OFF))
    await monitor.look()
    assert names(monitor) == [("forwarding-off", "IPv4"), ("check-failed", "Found")]
    assert "the maps could not be read" in monitor.standing[1].condition.text
    broken.raises = None
    await monitor.look()
    assert names(monitor) == [("forwarding-off", "IPv4")]


async def test_checks_may_wait() -> None:
    async def check(_context: object) -> list[Result]:
        return [result(FULL)]

    monitor = ConditionMonitor([CheckGroup([Check("map-nearly-full", "whether", check)], None)])
    await monitor.look()
    assert names(monitor) == [("map-nearly-full", "lb4_service")]


async def test_what_a_source_logs_itself_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    check = Found(Finding("source-untrusted", "kube", "source kube: it is not allowed (403 Forbidden)"))
    monitor = make(check)
    await monitor.look()
    assert names(monitor) == [("source-untrusted", "kube")]
    check.conditions = []
    await monitor.look()
    assert names(monitor) == []
    assert caplog.records == []
