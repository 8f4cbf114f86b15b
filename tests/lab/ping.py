"""Pings as raw sockets send them: each answer is compared byte by byte, as the kernel gives it, checksum included."""

from __future__ import annotations

import itertools
import socket
import struct
import time

from lbagent.targets.bpf.packet_frame import internet_checksum

_number = itertools.count(0x1234)


def ping(address: str, *, count: int = 2, size: int = 56, timeout_s: float = 0.7) -> int:
    """Return how many of the pings were answered. Raises AssertionError for a wrong or a second answer.

    Call it in the sender's namespace. The kernel checks the checksum of IPv6 alone, so that of IPv4 is checked here.
    """
    six = ":" in address
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if six else (socket.AF_INET, socket.IPPROTO_ICMP)
    answered = 0
    with socket.socket(family, socket.SOCK_RAW, protocol) as sock:
        for sequence in range(count):
            ident = next(_number) & 0xFFFF
            load = bytes((sequence + n * 7) & 0xFF for n in range(size))
            body = struct.pack(">HH", ident, sequence) + load
            head = bytes((128 if six else 8, 0))
            check = bytes(2) if six else internet_checksum(head + bytes(2) + body).to_bytes(2, "big")
            sock.sendto(head + check + body, (address, 0))
            answered += _answers(sock, address, body, timeout_s) > 0
    return answered


def _answers(sock: socket.socket, address: str, body: bytes, timeout_s: float) -> int:
    six, found = ":" in address, 0
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            data, (source, *_) = sock.recvfrom(65536)
        except TimeoutError:
            break
        message = data if six else data[(data[0] & 15) * 4 :]
        if message[0] != (129 if six else 0) or message[4:8] != body[:4]:
            continue
        assert source == address
        assert message[4:] == body
        assert six or not internet_checksum(message)
        found += 1
        assert found == 1, "a second answer"
        end = min(end, time.monotonic() + 0.05)
    return found
