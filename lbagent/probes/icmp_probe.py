"""The ICMP probe: a host's kernel answers an echo request (RFC 792, RFC 4443)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Callable

from lbagent.probes.check_time import Deadline
from lbagent.probes.probe_protocol import FAILURES, Outcome, Result, outcome_of

_HEADER = struct.Struct(">BBHHH")
_REQUEST, _REPLY = {False: 8, True: 128}, {False: 0, True: 129}
_TOKEN_BYTES = 16
_MAX_READS = 64  # replies to other programs that arrive at the same time
_MAX_REPLY = 512  # bytes
_SOL_RAW, _ICMP_FILTER, _ICMP6_FILTER = 255, 1, 1  # linux/icmp.h, linux/icmpv6.h: a set bit blocks a type
_NO_TYPE = 0xFFFFFFFF
_ONLY_REPLIES = struct.pack("=I", _NO_TYPE & ~(1 << _REPLY[False]))
_ONLY_REPLIES6 = struct.pack(
    "=8I", *(_NO_TYPE & ~(1 << _REPLY[True] % 32 if word == _REPLY[True] // 32 else 0) for word in range(8))
)


class IcmpProbe:
    """Sends one echo request to a host. See probe_protocol.Probe. Needs CAP_NET_RAW."""

    def __init__(self, address: bytes, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`address` is packed; `clock` measures the time-out."""
        self._is_ipv6 = len(address) == 16
        self._host = socket.inet_ntop(socket.AF_INET6 if self._is_ipv6 else socket.AF_INET, address)
        self._timeout_s, self._clock = timeout_s, clock

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Send one echo request, and wait for its reply. Raises PermissionError without the right to."""
        del may_use_idle
        with self._open() as sock:
            try:
                with contextlib.closing(Deadline(self._timeout_s, self._clock)) as deadline:
                    token = secrets.token_bytes(_TOKEN_BYTES)
                    sock.connect((self._host, 0))  # only what this host sends arrives
                    sock.send(self._request(token))
                    await self._reply(sock, token, deadline)
            except FAILURES as failure:
                return outcome_of(failure, self._timeout_s)
        return Outcome(Result.OK, "answered")

    def close(self) -> None:
        """Do nothing: no socket is kept."""

    def _open(self) -> socket.socket:
        family, protocol = (
            (socket.AF_INET6, socket.IPPROTO_ICMPV6) if self._is_ipv6 else (socket.AF_INET, socket.IPPROTO_ICMP)
        )
        sock = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
        if self._is_ipv6:
            sock.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, _ONLY_REPLIES6)
        else:
            sock.setsockopt(_SOL_RAW, _ICMP_FILTER, _ONLY_REPLIES)
        return sock

    def _request(self, token: bytes) -> bytes:
        head = _HEADER.pack(_REQUEST[self._is_ipv6], 0, 0, int.from_bytes(token[:2], "big"), 1)
        if self._is_ipv6:
            return head + token  # the kernel writes the checksum
        checksum = _checksum(head + token)
        return _HEADER.pack(_REQUEST[False], 0, checksum, int.from_bytes(token[:2], "big"), 1) + token

    async def _reply(self, sock: socket.socket, token: bytes, deadline: Deadline) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(sock.fileno(), self._read, sock, token, deadline)
        try:
            await deadline.wait()
        finally:
            loop.remove_reader(sock.fileno())

    def _read(self, sock: socket.socket, token: bytes, deadline: Deadline) -> None:
        try:
            for _ in range(_MAX_READS):
                data = sock.recv(_MAX_REPLY)
                reply = data if self._is_ipv6 else data[(data[0] & 15) * 4 :]  # IPv4: the header comes with it
                if reply[:1] == bytes((_REPLY[self._is_ipv6],)) and reply[_HEADER.size :] == token:
                    deadline.done()
                    return
        except BlockingIOError:
            pass
        except OSError as error:
            deadline.failed(error)


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
