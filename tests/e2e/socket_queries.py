"""Queries from sockets of this test, which is a process of the node."""

from __future__ import annotations

import socket


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def mapped(vip: str) -> str:
    """Return an IPv6 socket's form of an IPv4 address."""
    return f"::ffff:{vip}"


def questions(*vips: str) -> list[str]:
    """Return the addresses by which a process may reach these VIPs: also IPv6 sockets with IPv4."""
    return [*vips, *(mapped(vip) for vip in vips if ":" not in vip)]


QUESTION = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\3who\0\0\x10\0\x01"


def ask_unconnected(sock: socket.socket, vip: str) -> tuple[str, str]:
    """Send one query from an unconnected socket; return the backend's name and the source address of the answer."""
    sock.settimeout(5)
    sock.sendto(QUESTION, (vip, 53))
    return answer_to(sock)


def ask_connected(sock: socket.socket) -> tuple[str, str]:
    sock.send(QUESTION)
    return answer_to(sock)


def answer_to(sock: socket.socket) -> tuple[str, str]:
    data, sender = sock.recvfrom(2048)
    text = data[len(QUESTION) + 12 :]
    return text[1 : 1 + text[0]].decode().split()[0], sender[0]
