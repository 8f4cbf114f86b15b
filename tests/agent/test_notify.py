"""What the supervisor receives."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from lbagent.agent import notify as notify_module
from lbagent.agent.notify import notify, wait_at_start, watchdog_interval_s


def test_without_a_socket_nobody_is_told() -> None:
    assert not notify("READY=1", {})
    assert not notify("READY=1", {"NOTIFY_SOCKET": "relative"})
    assert not notify("READY=1", {"NOTIFY_SOCKET": "/nowhere/at/all"})


def test_a_path_and_an_abstract_name(tmp_path: Path) -> None:
    for address, name in ((str(tmp_path / "n"), str(tmp_path / "n")), (f"\0lbx{tmp_path}", f"@lbx{tmp_path}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(address)
            assert notify("READY=1", {"NOTIFY_SOCKET": name})
            assert sock.recv(100) == b"READY=1"


async def test_a_start_that_waits_asks_the_supervisor_for_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it waits, and not at all where there is nothing to wait for."""
    said: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(notify_module, "notify", lambda text: said.put_nowait(text) is None)
    monkeypatch.setattr(notify_module, "EXTEND_EVERY_S", 0.02)
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_at_start(event, "a list"))
    async with asyncio.timeout(10):
        for _ in range(3):
            assert await said.get() == "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=waiting for a list"
    event.set()
    await waiting
    last = ""
    while not said.empty():
        last = said.get_nowait()
    assert last == "STATUS="
    await wait_at_start(event, "a list")
    assert said.empty()


def test_how_often_the_supervisor_wants_a_sign_of_life() -> None:
    """Half of WatchdogSec, as sd_watchdog_enabled(3) advises; a child of the one it watches sends none."""
    assert watchdog_interval_s({}) == 0
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000"}) == 1.5
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}) == 1.5
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}) == 0
    assert watchdog_interval_s({"WATCHDOG_USEC": "soon"}) == 0
