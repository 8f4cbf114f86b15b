"""Hosts that are no nodes of ours and have an address that is to be announced: the users of the address are told once of each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from lbagent.model.address import format_ip
from lbagent.objects.object_event import EventSink, ObjectEvent

log = logging.getLogger(__name__)
IN_USE = "AddressInUse"


class Conflict(NamedTuple):
    """A host that is no node has an address, or claims it while this node answers for it (`is_defended`)."""

    address: bytes
    mac: bytes
    is_defended: bool

    def text(self) -> str:
        """Return the sentence about it."""
        return contested_text(self.address, self.mac) if self.is_defended else in_use_text(self.address, self.mac)


class Strangers:
    """Of which stranger the users of an address were told."""

    def __init__(self, events: Sequence[EventSink]) -> None:
        self._events = events
        self._told: dict[bytes, bytes] = {}

    def tell(self, address: bytes, mac: bytes, services: Sequence[str], *, is_defended: bool = False) -> None:
        """Warn of a host, and send a Warning for each Service that has the address."""
        if self._told.get(address) == mac:
            return
        self._told[address] = mac
        fields = {"address": format_ip(address), "services": list(services), "mac": mac.hex(":")}
        text = Conflict(address, mac, is_defended).text()
        log.warning("another host claims an address" if is_defended else "an address is in use", extra=fields)
        for key in services:
            for sink in self._events:
                sink(ObjectEvent("Service", key, IN_USE, text, warning=True))

    def forget(self, address: bytes) -> None:
        """Take that no stranger has it, or that it matters no more."""
        self._told.pop(address, None)


def in_use_text(address: bytes, mac: bytes) -> str:
    """Return the sentence about an address that a stranger has."""
    found = f"{format_ip(address)} is in use: the host with the MAC address {mac.hex(':')} answers for it"
    return f"{found}; it is not announced, and tried again each minute"


def contested_text(address: bytes, mac: bytes) -> str:
    """Return the sentence about an address that a stranger claims while this node answers for it."""
    found = f"{format_ip(address)} is claimed: the host with the MAC address {mac.hex(':')} answers for it, too"
    return f"{found}; this node goes on announcing it (l2.conflict: defend)"
