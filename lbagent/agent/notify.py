"""Tell systemd (or another supervisor that sets NOTIFY_SOCKET) how the agent is. Source: sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping


def notify(message: str, env: Mapping[str, str] | None = None) -> bool:
    """Send `READY=1`, `RELOADING=1`, `STOPPING=1`, `STATUS=...`; return whether a supervisor was told."""
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


def watchdog_interval_s(env: Mapping[str, str] | None = None) -> float:
    """Return the seconds between two signs of life, half of the supervisor's patience; 0 when it wants none."""
    env = os.environ if env is None else env
    patience_us = env.get("WATCHDOG_USEC", "")
    if not patience_us.isdecimal() or env.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    return int(patience_us) / 2e6


async def keep_watchdog() -> None:
    """Tell the supervisor for ever that the event loop runs; end at once where no supervisor asks for it."""
    while interval_s := watchdog_interval_s():
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
