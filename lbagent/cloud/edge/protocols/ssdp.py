"""SSDP: search for routers. Source: UPnP Device Architecture 1.1, 1.3."""

from __future__ import annotations

import asyncio
import socket

from msgspec import Struct

from lbagent.http.http_client import Url, parse_url

GROUP, PORT = "239.255.255.250", 1900
MAX_ANSWER_BYTES = 4096
MAX_ANSWERS = 64
SEARCH_S = 1.5  # devices wait up to MX before they answer
SENT_AT_S = (0.0, 0.4)  # UDP: twice
TARGETS = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)


class SsdpAnswer(Struct, frozen=True):
    """A device that answered, and the URL of its description, which is at the same host."""

    host: str
    location: Url


def encode_search(target: str) -> bytes:
    """Return the datagram of a search."""
    lines = ("M-SEARCH * HTTP/1.1", f"HOST: {GROUP}:{PORT}", 'MAN: "ssdp:discover"', "MX: 1", f"ST: {target}", "", "")
    return "\r\n".join(lines).encode("ascii")


def decode_answer(data: bytes, host: str) -> SsdpAnswer | None:
    """Parse a host's answer; None: not an answer to this search, or its URL is of another host."""
    if len(data) > MAX_ANSWER_BYTES:
        return None
    first, *lines = data.decode("latin-1").split("\r\n")
    if first.split(" ")[:2] != ["HTTP/1.1", "200"]:
        return None
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().upper(): text.strip() for name, _, text in pairs}
    try:
        location = parse_url(headers.get("LOCATION", ""))
    except ValueError:
        return None
    return SsdpAnswer(host, location) if location.host == host and headers.get("ST") in TARGETS else None


class _Search(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.found: dict[SsdpAnswer, None] = {}

    def datagram_received(self, data: bytes, addr: tuple[str | int, ...]) -> None:
        answer = decode_answer(data, str(addr[0]))
        if answer is not None and len(self.found) < MAX_ANSWERS:
            self.found[answer] = None

    def error_received(self, _error: Exception) -> None:
        """Ignore ICMP errors: an unreachable host does not answer."""


async def search(local_address: str, search_s: float = SEARCH_S) -> list[SsdpAnswer]:
    """Return the devices that answer on the network of a local address ('' = the kernel chooses). Raises OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
        if local_address:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(local_address))
        sock.bind((local_address, 0))
        transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(_Search, sock=sock)
    except BaseException:
        sock.close()
        raise
    try:
        waited_s = 0.0
        for at_s in SENT_AT_S:
            await asyncio.sleep(at_s - waited_s)
            waited_s = at_s
            for target in TARGETS:
                transport.sendto(encode_search(target), (GROUP, PORT))
        await asyncio.sleep(search_s - waited_s)
    finally:
        transport.close()
    return list(protocol.found)
