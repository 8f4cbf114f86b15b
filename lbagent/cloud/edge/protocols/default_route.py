"""The router of this host's default route, and the source address towards a host."""

from __future__ import annotations

import socket

ROUTES = "/proc/thread-self/net/route"  # of the thread, which may have its own network namespace
UP_AND_GATEWAY = 0x1 | 0x2  # RTF_UP, RTF_GATEWAY


def default_router() -> str:
    """Return the IPv4 address of the default route's router with the lowest metric, '' without one."""
    try:
        with open(ROUTES, encoding="ascii") as file:
            return read_default(file.read())
    except OSError:
        return ""


def read_default(text: str) -> str:
    """Return the router of the default route from the text of /proc/net/route; its addresses are in host byte order."""
    found: list[tuple[int, str]] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 8 and words[1] == words[7] == "00000000" and int(words[3], 16) & 0x3 == UP_AND_GATEWAY:
            address = socket.inet_ntoa(int(words[2], 16).to_bytes(4, "little"))
            found.append((int(words[6]), address))
    return min(found)[1] if found else ""


def source_address(host: str) -> str:
    """Return the source address of packets to a host. No packet is sent. Raises OSError if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        return str(probe.getsockname()[0])
