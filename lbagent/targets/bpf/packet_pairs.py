"""Joins the events of one packet: its frame as it arrived, and as it left (event_layout.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lbagent.maps.event_reader import Event
from lbagent.maps.reasons import Reason

_NUMBERS = 0xFFFFFFFF  # the numbers of records that an event has
_LEAVE = frozenset(int(each) for each in Reason if each.name.startswith("FWD_"))


class PacketPair(NamedTuple):
    """One packet. `left` None: it did not leave, or its second record was lost or not asked for."""

    arrived: Event
    left: Event | None


class PacketPairs:
    """Pairs of the events that reads return; the record of a frame that left may be in the next one."""

    def __init__(self) -> None:
        self._waiting: list[Event] = []

    def join(self, events: Iterable[Event], *, is_last: bool = False) -> list[PacketPair]:
        """Return the packets of a read in the order in which they arrived, behind those that waited for this read.

        Before the last read, a packet whose second record may come in the next one waits.
        """
        arrived: list[Event] = []
        left: dict[tuple[int, int], Event] = {}
        for event in events:
            if event.is_after:
                left[event.cpu, event.number] = event
            else:
                arrived.append(event)
        pairs = [PacketPair(event, self._pop(left, event)) for event in self._waiting]
        self._waiting = []
        for event in arrived:
            found = self._pop(left, event)
            if found is None and event.reason in _LEAVE and not is_last:
                self._waiting.append(event)
            else:
                pairs.append(PacketPair(event, found))
        return pairs

    @staticmethod
    def _pop(left: dict[tuple[int, int], Event], event: Event) -> Event | None:
        return left.pop((event.cpu, (event.number + 1) & _NUMBERS), None)
