"""Replaces addresses of clients, for a record that leaves the node: the same address gets the same replacement everywhere.

Replacements are numbered in the order in which addresses are found, so they tell nothing about them. They are of blocks that no
host uses: 240.0.0.0/4 (RFC 1112) and 2001:db8::/32 (RFC 3849). An address is a client's unless it is known to be another one.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterable

_BLOCKS = {4: bytes((240,)) + bytes(3), 16: bytes.fromhex("20010db8") + bytes(12)}
_LOCAL_MAC = 0x02 << 40  # a locally administered address
_MAC_BYTES = 6
_ADDRESS = re.compile(
    r"(?<![0-9A-Za-z.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]*[0-9A-Fa-f:])(?![0-9A-Za-z])"
)


class ClientAddresses:
    """The replacements of one record. `others`: packed addresses that are no client's."""

    def __init__(self, others: Iterable[bytes] = ()) -> None:
        self._others = frozenset(others)
        self._found: dict[bytes, bytes] = {}
        self._macs: dict[bytes, bytes] = {}
        self._numbers = {size: itertools.count(1) for size in _BLOCKS}

    def is_client(self, address: bytes) -> bool:
        """Whether a packed address is that of a client."""
        return len(address) in _BLOCKS and address not in self._others

    def replacement(self, address: bytes) -> bytes:
        """Return the address to write for a packed address; one that is no client's is returned itself."""
        if not self.is_client(address):
            return address
        if address not in self._found:
            self._found[address] = self._next(len(address))
        return self._found[address]

    def mac_replacement(self, mac: bytes) -> bytes:
        """Return the hardware address to write for that of a client, or of the router to it."""
        if mac not in self._macs:
            self._macs[mac] = (_LOCAL_MAC + len(self._macs) + 1).to_bytes(_MAC_BYTES, "big")
        return self._macs[mac]

    def in_text(self, text: str) -> str:
        """Return a text with the replacements of the addresses that have one."""
        return _ADDRESS.sub(self._in_match, text) if self._found else text

    def _next(self, size: int) -> bytes:
        first = int.from_bytes(_BLOCKS[size], "big")
        for number in self._numbers[size]:
            made = (first + number).to_bytes(size, "big")
            if made not in self._others:
                return made
        raise AssertionError("numbers have no end")

    def _in_match(self, match: re.Match[str]) -> str:
        text = match[0]
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        try:
            found = self._found.get(socket.inet_pton(family, text))
        except OSError:  # a time, a MAC address, a version
            return text
        return socket.inet_ntop(family, found) if found else text
