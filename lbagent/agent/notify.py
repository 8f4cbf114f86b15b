"""Tell systemd (or another supervisor that sets NOTIFY_SOCKET) how the agent is. Source: sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

EXTEND_EVERY_S, EXTEND_BY_S = 10.0, 60.0


def notify(message: str, env: Mapping[str, str] | None = None) -> bool:
    """Send `READY=1`, `RELOADING=1`, `STOPPING=1`, `EXTEND_TIMEOUT_USEC=...`, `STATUS=...`; return whether they were sent."""
    path = (os.environ if env is None else env).get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    address = "\0" + path[1:] if path[0] == "@" else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(message.encode(), address)
        except OSError:
            return False
    return True


async def wait_at_start(event: asyncio.Event, what: str) -> None:
    """Wait for what may take any time. As long as the event loop runs, the supervisor (TimeoutStartSec) does not end the start.

    `what` is waited for: a word for `systemctl status`.
    """
    told = False
    while True:
        try:
            async with asyncio.timeout(EXTEND_EVERY_S):
                await event.wait()
        except TimeoutError:
            told = notify(f"EXTEND_TIMEOUT_USEC={EXTEND_BY_S * 1e6:.0f}\nSTATUS=waiting for {what}")
        else:
            break
    if told:
        notify("STATUS=")


def watchdog_interval_s(env: Mapping[str, str] | None = None) -> float:
    """Return the seconds between two signs of life, half of the supervisor's time limit; 0 when it has none."""
    env = os.environ if env is None else env
    patience_us = env.get("WATCHDOG_USEC", "")
    if not patience_us.isdecimal() or env.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    return int(patience_us) / 2e6


async def keep_watchdog() -> None:
    """Report to the supervisor periodically that the event loop runs; end at once where no supervisor requests it."""
    while interval_s := watchdog_interval_s():
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
