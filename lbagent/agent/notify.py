"""Tell systemd (or whoever set NOTIFY_SOCKET) how the agent is. Source: sd_notify(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(message: str, env: Mapping[str, str] | None = None) -> bool:
    """Send `READY=1`, `RELOADING=1`, `STOPPING=1`, `STATUS=...`; return whether somebody was told."""
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
