"""A failure is retried when due and logged once; it is removed when the frontend is written or no longer wanted."""

from __future__ import annotations

import logging

import pytest

from lbagent.errors import LbError, MapFull
from lbagent.model.address import L3n4Addr
from lbagent.sync import backoff, failures
from lbagent.sync.failures import MAX_LOGGED, Failures

A, B = L3n4Addr.parse("10.0.0.1:80"), L3n4Addr.parse("10.0.0.2:80")


@pytest.fixture(autouse=True)
def _exact_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(1.0, 8.0, lambda: 0.5))


def said(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message == message]


def test_each_frontend_has_a_time_of_its_own() -> None:
    held = Failures()
    assert held.retry_at() is None
    held.failed([(A, LbError("full"))], now=10.0)
    held.failed([(B, LbError("full"))], now=10.5)
    assert held.retry_at() == 11.0
    assert held.not_due(10.9) == {A, B}
    assert held.not_due(11.0) == {B}, "in its very moment it is due"
    held.failed([(A, LbError("full"))], now=11.0)
    assert (held.frontends[A].retry_at, held.retry_at()) == (13.0, 11.5)
    held.written([B, L3n4Addr.parse("10.9.9.9:1")])
    assert list(held.frontends) == [A]
    held.written([A])
    held.failed([(A, LbError("full"))], now=20.0)
    assert held.frontends[A].retry_at == 21.0, "a write in between restarts the pauses"
    assert held.count == 4


def test_what_belongs_to_no_frontend() -> None:
    held = Failures()
    held.failed([(A, LbError("full"))], now=10.0)
    held.failed_in_general([LbError("first"), LbError("second")], now=9.0)
    assert held.general is not None
    assert (str(held.general.error), held.general.retry_at, held.count) == ("first", 10.0, 3)
    assert held.retry_at() == 10.0
    held.failed_in_general([LbError("first")], now=10.0)
    assert held.general.retry_at == 12.0
    held.failed_in_general([], now=12.0)
    assert held.general is None
    assert held.retry_at() == 11.0


def test_a_failure_is_logged_when_it_is_another_one(caplog: pytest.LogCaptureFixture) -> None:
    held = Failures()
    for now, text in ((1.0, "full"), (2.0, "full"), (3.0, "gone"), (4.0, "gone")):
        held.failed([(A, LbError(text))], now)
        held.failed_in_general([LbError(text)], now)
    frontends = said(caplog, "a frontend could not be written")
    assert [vars(record)["error"] for record in frontends] == ["full", "gone"]
    assert [vars(record)["retry_s"] for record in frontends] == [1.0, 4.0]
    assert [vars(record)["error"] for record in said(caplog, "the maps could not be written")] == ["full", "gone"]


def test_a_failure_with_other_numbers_in_its_text_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    held = Failures()
    for now, (number, left) in enumerate(((7, 10), (7, 9), (12, 9)), 1):
        held.failed([(A, MapFull("update", number, "lb4_service", f"{left} entries are left"))], float(now))
    logged = said(caplog, "a frontend could not be written")
    assert [vars(record)["error"].rpartition(": ")[2] for record in logged] == [
        "10 entries are left",
        "9 entries are left",
    ]


def test_of_many_failures_the_first_are_named(caplog: pytest.LogCaptureFixture) -> None:
    held = Failures()
    many = [(L3n4Addr.parse(f"10.0.1.{number}:80"), LbError("full")) for number in range(MAX_LOGGED + 5)]
    held.failed(many, now=1.0)
    names = [vars(record)["frontend"] for record in said(caplog, "a frontend could not be written")]
    assert names == [frontend.with_protocol() for frontend, _ in many[:MAX_LOGGED]]
    assert len(held.frontends) == held.count == MAX_LOGGED + 5
