"""Events as blocks of a pcapng file: the frame of each, with verdict, reason, service and backend in its comment."""

from __future__ import annotations

import time
from typing import Any

import lbagent
from lbagent.maps.event_layout import EVENT_FRAME_BYTES
from lbagent.maps.event_reader import Event
from lbagent.targets.bpf import pcapng

APPLICATION = "lbagent"
NO_DEVICE = "none"  # interface of a capture without packets: its statistics have the losses
_WORDS = ("verdict", "reason", "service", "frontend", "backend", "snat", "hook", "generation")
_NS = 1_000_000_000


class CaptureBlocks:
    """The blocks of one file. An interface is a device; a block that describes it precedes its first packet."""

    def __init__(self) -> None:
        self._start_ns = time.time_ns()
        self._numbers: dict[str, int] = {}
        self._received: list[int] = []

    @staticmethod
    def head() -> bytes:
        """Return the first block of the file."""
        return pcapng.section_header(f"{APPLICATION} {lbagent.__version__}")

    def add(self, made: list[bytes], event: Event, device: str, options: bytes) -> None:
        """Add the blocks of an event at a device to `made`; `options`: those of `options_of`."""
        number = self._numbers.get(device)
        if number is None:
            number = self._add(device, made)
        self._received[number] += 1
        made.append(pcapng.packet(number, int(event.time * _NS), event.frame, event.length, options))

    def statistics(self, lost: int, unwritten: int = 0, described: int | None = None) -> list[bytes]:
        """Return the statistics of every interface, the first of which has all losses: they are of no known device.

        `lost`: packets of which no block was made; `unwritten`: those whose blocks are not in the file; `described`: the interfaces
        that are in the file, all if it is None.
        """
        made: list[bytes] = []
        if not self._numbers:
            self._add(NO_DEVICE, made)
            described = None
        received = self._received[:described]
        if received:
            received[0] += lost + sum(self._received[len(received) :])
        now, missing = time.time_ns(), lost + unwritten
        for number, count in enumerate(received):
            text = f"{missing} packets of all devices are not in this file" if missing else ""
            made.append(pcapng.statistics(number, self._start_ns, now, count, missing, text))
            missing = 0
        return made

    def _add(self, name: str, blocks: list[bytes]) -> int:
        """Add the description of a new interface to `blocks`; return its number."""
        number = self._numbers[name] = len(self._received)
        self._received.append(0)
        blocks.append(pcapng.interface(name, EVENT_FRAME_BYTES))
        return number


def options_of(row: dict[str, Any], *, leaves: bool = False) -> bytes:
    """Return the options of a packet as it arrived, or as it `leaves`: the comment has what is known of the row."""
    words = ", ".join(f"{word}: {row[word]}" for word in _WORDS if row[word] is not None)
    return pcapng.packet_options(words, pcapng.OUTBOUND if leaves else pcapng.INBOUND)


def is_capture(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a capture of lbagent."""
    application = APPLICATION.encode()
    return head[:4] == pcapng.SECTION.to_bytes(4, "little") and head[28 : 28 + len(application)] == application
