"""Hosts that are no nodes of ours and have an address that is to be announced: the users of the address are told once of each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lbagent.model.address import format_ip
from lbagent.objects.object_event import EventSink, ObjectEvent

log = logging.getLogger(__name__)
IN_USE = "AddressInUse"


class Strangers:
    """Of which stranger the users of an address were told."""

    def __init__(self, events: Sequence[EventSink]) -> None:
        self._events = events
        self._told: dict[bytes, bytes] = {}

    def tell(self, address: bytes, mac: bytes, services: Sequence[str]) -> None:
        """Warn of a host, and send a Warning for each Service that has the address."""
        if self._told.get(address) == mac:
            return
        self._told[address] = mac
        fields = {"address": format_ip(address), "services": list(services), "mac": mac.hex(":")}
        log.warning("an address is in use", extra=fields)
        for key in services:
            for sink in self._events:
                sink(ObjectEvent("Service", key, IN_USE, in_use_text(address, mac), warning=True))

    def forget(self, address: bytes) -> None:
        """Take that no stranger has it, or that it matters no more."""
        self._told.pop(address, None)


def in_use_text(address: bytes, mac: bytes) -> str:
    """Return the sentence about an address that a stranger has."""
    found = f"{format_ip(address)} is in use: the host with the MAC address {mac.hex(':')} answers for it"
    return f"{found}; it is not announced, and tried again each minute"
