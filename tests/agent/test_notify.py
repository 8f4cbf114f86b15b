"""What the supervisor is told."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from lbagent.agent.notify import notify, watchdog_interval_s


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


def test_how_often_the_supervisor_wants_a_sign_of_life() -> None:
    """Half of WatchdogSec, as sd_watchdog_enabled(3) advises; a child of the one it watches says nothing."""
    assert watchdog_interval_s({}) == 0
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000"}) == 1.5
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}) == 1.5
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}) == 0
    assert watchdog_interval_s({"WATCHDOG_USEC": "soon"}) == 0
