"""A program with an SCTP stack of its own, over raw IP sockets: the kernel needs no SCTP. The stack is usrsctp, of Debian.

    sctp_peer.py LIBRARY serve ADDRESS[,ADDRESS] PORT NAME     answers each message with NAME and the client's address
    sctp_peer.py LIBRARY ask ADDRESS PORT [--from ADDRESS] [--wildcard] [--messages N] [--bytes N] [--pause SECONDS]
        connects, sends messages and prints each answer; ends with 1 and the error's number if that fails

One process in a network namespace: raw sockets give each stack every packet, and it aborts what is not its own. With `--wildcard` the client is bound to all its addresses, and its INIT lists them.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

STREAM, PROTOCOL = 1, 132
LONGEST = 1 << 16


class Stack:
    """The functions of the library. Raises OSError where one fails."""

    def __init__(self, library: str) -> None:
        """Start it: with raw sockets of both families, and without UDP."""
        self._c = ctypes.CDLL(library, use_errno=True)
        for name in ("usrsctp_socket", "usrsctp_accept"):
            getattr(self._c, name).restype = ctypes.c_void_p
        for name in ("usrsctp_sendv", "usrsctp_recvv"):
            getattr(self._c, name).restype = ctypes.c_ssize_t
        self._c.usrsctp_init(ctypes.c_uint16(0), None, None)

    def socket(self, address: str) -> ctypes.c_void_p:
        """Return a socket of one association, of the address's family."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = self._c.usrsctp_socket(family, STREAM, PROTOCOL, None, None, ctypes.c_uint32(0), None)
        return ctypes.c_void_p(self._checked(made or -1, "socket"))

    def bind(self, sock: ctypes.c_void_p, address: str, port: int = 0) -> None:
        """Give a socket its address."""
        raw = sockaddr(address, port)
        self._checked(self._c.usrsctp_bind(sock, raw, len(raw)), "bind")

    def listen(self, sock: ctypes.c_void_p) -> None:
        """Accept associations from now on."""
        self._checked(self._c.usrsctp_listen(sock, 32), "listen")

    def accept(self, sock: ctypes.c_void_p) -> tuple[ctypes.c_void_p, str]:
        """Return the next association and its client's address."""
        raw, size = ctypes.create_string_buffer(28), ctypes.c_uint32(28)
        made = self._c.usrsctp_accept(sock, raw, ctypes.byref(size))
        return ctypes.c_void_p(self._checked(made or -1, "accept")), address_of(raw.raw)

    def connect(self, sock: ctypes.c_void_p, address: str, port: int) -> None:
        """Open an association."""
        raw = sockaddr(address, port)
        self._checked(self._c.usrsctp_connect(sock, raw, len(raw)), "connect")

    def send(self, sock: ctypes.c_void_p, data: bytes) -> None:
        """Send a message."""
        sent = self._c.usrsctp_sendv(sock, data, ctypes.c_size_t(len(data)), None, 0, None, 0, 0, 0)
        self._checked(sent, "send")

    def receive(self, sock: ctypes.c_void_p) -> bytes:
        """Return a message; b"" when the other side has closed."""
        buffer, flags = ctypes.create_string_buffer(LONGEST), ctypes.c_int(0)
        size, infos, kind = ctypes.c_uint32(0), ctypes.c_uint32(0), ctypes.c_uint(0)
        got = self._c.usrsctp_recvv(
            sock, buffer, ctypes.c_size_t(LONGEST), None, ctypes.byref(size), None, ctypes.byref(infos), ctypes.byref(kind),
            ctypes.byref(flags),
        )  # fmt: skip
        return buffer.raw[: self._checked(got, "receive")]

    def close(self, sock: ctypes.c_void_p) -> None:
        """Close an association; data that is under way still arrives."""
        self._c.usrsctp_close(sock)

    def end(self) -> None:
        """Stop the stack, when the last association has closed or after two seconds."""
        until = time.monotonic() + 2
        while self._c.usrsctp_finish() and time.monotonic() < until:
            time.sleep(0.01)

    @staticmethod
    def _checked(result: Any, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")
        return int(result)


def sockaddr(address: str, port: int) -> bytes:
    """Return struct sockaddr_in or sockaddr_in6."""
    if ":" in address:
        return (
            struct.pack("=H", socket.AF_INET6)
            + struct.pack(">HI", port, 0)
            + socket.inet_pton(socket.AF_INET6, address)
            + bytes(4)
        )
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(address) + bytes(8)


def address_of(raw: bytes) -> str:
    """Return the address in one."""
    (family,) = struct.unpack_from("=H", raw)
    return socket.inet_ntop(family, raw[8:24] if family == socket.AF_INET6 else raw[4:8])


def serve(stack: Stack, addresses: list[str], port: int, name: str) -> None:
    """Answer until the process ends."""
    threads = []
    for address in addresses:
        listener = stack.socket(address)
        stack.bind(listener, address, port)
        stack.listen(listener)
        threads.append(threading.Thread(target=_accept, args=(stack, listener, name)))
    for thread in threads:
        thread.start()
    print("ready", flush=True)


def _accept(stack: Stack, listener: ctypes.c_void_p, name: str) -> None:
    while True:
        sock, client = stack.accept(listener)
        threading.Thread(target=_answer, args=(stack, sock, f"{name} {client}".encode()), daemon=True).start()


def _answer(stack: Stack, sock: ctypes.c_void_p, text: bytes) -> None:
    try:
        while data := stack.receive(sock):
            stack.send(sock, text + data[len(text) :])
    except OSError:
        pass  # the client is gone
    stack.close(sock)


def ask(stack: Stack, options: argparse.Namespace) -> None:
    """Send messages and print the answers."""
    sock = stack.socket(options.address)
    if not options.wildcard:
        stack.bind(sock, options.source or _own_address(options.address))
    stack.connect(sock, options.address, options.port)
    for number in range(options.messages):
        if number:
            time.sleep(options.pause)
        message = bytes(range(256)) * (options.bytes // 256 + 1)
        stack.send(sock, b" " * 64 + message[: options.bytes])
        answer = stack.receive(sock)
        if answer[64:] != message[: options.bytes]:
            raise OSError(0, f"an answer of {len(answer)} bytes is not what was sent")
        print(answer[:64].decode().strip(), flush=True)
    stack.close(sock)
    stack.end()


def _own_address(to: str) -> str:
    """Return the address from which this host would send there."""
    with socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((to, 9))
        return str(probe.getsockname()[0])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("serve", "ask"):
        one = verbs.add_parser(verb)
        one.add_argument("address")
        one.add_argument("port", type=int)
        if verb == "serve":
            one.add_argument("name")
            continue
        one.add_argument("--from", dest="source", default="")
        one.add_argument("--wildcard", action="store_true")
        one.add_argument("--messages", type=int, default=1)
        one.add_argument("--bytes", type=int, default=0)
        one.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    stack = Stack(options.library)
    if options.verb == "serve":
        serve(stack, options.address.split(","), options.port, options.name)
        return
    try:
        ask(stack, options)
    except OSError as error:
        print(f"{error.errno} {error}", file=sys.stderr)
        os._exit(1)


if __name__ == "__main__":
    main()
