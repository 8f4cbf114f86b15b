"""A capture while it runs: reads packets, selects and shows them, until it is over."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Sequence

import click

from lbagent.cli import output
from lbagent.cli.capture_stream import CaptureStream
from lbagent.cli.followed_agent import FollowedAgent
from lbagent.errors import LbError
from lbagent.maps.event_reader import EventReader
from lbagent.targets.bpf import pcapng
from lbagent.targets.bpf.capture_blocks import CaptureBlocks
from lbagent.targets.bpf.captured_packets import CapturedPackets, Taken, add_blocks
from lbagent.targets.bpf.packet_pairs import PacketPair, PacketPairs

POLL_S = 0.02  # the programs wake no reader; the rings hold a third of a second of 100,000 packets a second
BUSY = 500  # packets of a round after which the next one begins at once
FOLLOW_S = 0.2  # between two looks after the agent
JOIN_S = 2.0  # for the last of them; one that waits for the agent ends with the process
REPORT_S = 1.0  # between two reports of losses
APART = " (as they came, and as they left, counted apart)"  # records are lost, and a packet that is sent has two
Packet = tuple[PacketPair, Taken]


class RunningCapture:
    """A running capture."""

    def __init__(
        self,
        reader: EventReader,
        agent: FollowedAgent,
        packets: CapturedPackets,
        shown: InFile | Lines,
        *,
        count: int | None,
        duration_s: float | None,
    ) -> None:
        self._reader, self._agent = reader, agent
        self._packets, self._shown, self._pairs = packets, shown, PacketPairs()
        self._left = count
        self._deadline = None if duration_s is None else time.monotonic() + duration_s
        self._taken = 0
        self._said = ""
        self._reported, self._reported_at = 0, time.monotonic()
        self._is_ending = False  # by a signal
        self._has_new_names = False
        self._ended = threading.Event()

    def run(self) -> None:
        """Capture to the end. Raises LbError if the file cannot be written."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)  # an exception could end a packet in its middle
        self._shown.begin()  # with a head the file gets its statistics, whatever signal comes
        gc.disable()  # some 100,000 objects a second, and no cycles
        click.echo("packets are captured; Ctrl-C ends it", err=True)
        follower = threading.Thread(target=self._follow_agent, daemon=True)
        follower.start()
        failure = ""
        while not failure and not self._is_over():
            failure = self._round()
        if self._is_ending and not failure:
            failure = self._round(is_last=True)  # what came until now
        self._ended.set()
        follower.join(JOIN_S)
        self._report(at_once=True)
        self._shown.end(self._lost)
        click.echo(f"{self._taken} packets captured, {self._lost} lost{APART if self._lost else ''}", err=True)
        if failure:
            raise LbError(failure)

    def _follow_agent(self) -> None:
        """Look after the agent: its answer may take longer than the rings hold packets."""
        while not self._ended.wait(FOLLOW_S):
            if self._agent.follow():
                self._has_new_names = True

    def _end(self, _number: int, _frame: object) -> None:
        self._is_ending = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one ends at once: stdout may have no reader

    def _is_over(self) -> bool:
        return self._is_ending or self._left == 0 or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _round(self, *, is_last: bool = False) -> str:
        """Take what came since the last round; return why nothing more can be written."""
        found = self._selected(is_last=is_last)
        if found:
            written, failure = self._shown.add(found)
            self._taken += written
            if failure:
                return failure
        self._report()
        if self._has_new_names:
            self._has_new_names = False
            self._packets.forget()
        output.require_reader()
        if len(found) < BUSY and not self._is_over():
            time.sleep(POLL_S)
        return ""

    def _selected(self, *, is_last: bool) -> list[Packet]:
        """Return the packets that came since the last round and are selected."""
        try:
            pairs = self._pairs.join(self._reader.read(), is_last=is_last)
            found = [(pair, taken) for pair in pairs if (taken := self._packets.taken(pair)) is not None]
            self._said = ""
        except LbError as error:  # another file is in the place of the pin
            if str(error) != self._said:
                self._said = str(error)
                click.echo(self._said, err=True)
            return []
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        return found

    @property
    def _lost(self) -> int:
        return self._reader.lost + self._reader.limited

    def _report(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._reported_at < REPORT_S and not at_once:
            return
        self._reported_at = now
        if lost := self._lost - self._reported:
            self._reported += lost
            click.echo(
                f"{lost} packets were lost{APART}: they came faster than they were read, or exceed --event-rate",
                err=True,
            )
            self._shown.losses(self._lost)


class InFile:
    """Packets go into a pcapng file."""

    def __init__(self, stream: CaptureStream) -> None:
        self._stream, self._blocks = stream, CaptureBlocks()
        self._unwritten = 0  # packets of the file that the disk has no room for
        self._described = 0  # interfaces of the file

    def begin(self) -> None:
        """Write the head."""
        self._stream.begin(self._blocks.head())

    def add(self, packets: list[Packet]) -> tuple[int, str]:
        """Write packets; return how many are in the file, and why not all."""
        made: list[bytes] = []
        ends: list[int] = []  # blocks up to the end of each packet
        for pair, taken in packets:
            add_blocks(made, self._blocks, pair, taken)
            ends.append(len(made))
        written = self._write(made)
        if written == len(made):
            return len(packets), ""
        self._unwritten = sum(map(pcapng.is_packet, made[written:]))
        whole = sum(end <= written for end in ends)
        return whole, f"{self._stream.name}: {self._stream.failure}; the packets that were written are readable"

    def losses(self, lost: int) -> None:
        """Write the losses so far: a capture that is killed has them."""
        self._write(self._blocks.statistics(lost))

    def end(self, lost: int) -> None:
        """Write the statistics, and close the file."""

        def statistics(removed: Sequence[bytes]) -> bytes:
            unwritten = self._unwritten + sum(map(pcapng.is_packet, removed))
            described = self._described - sum(map(pcapng.is_interface, removed))
            return b"".join(self._blocks.statistics(lost, unwritten, described))

        self._stream.end(statistics)

    def _write(self, blocks: list[bytes]) -> int:
        written = self._stream.write(blocks)
        self._described += sum(map(pcapng.is_interface, blocks[:written]))
        return written


class Lines:
    """Packets are lines for people."""

    def __init__(self, packets: CapturedPackets) -> None:
        self._packets = packets

    def begin(self) -> None:
        """Print nothing: lines have no head."""

    def add(self, packets: list[Packet]) -> tuple[int, str]:
        """Print packets."""
        for pair, taken in packets:
            click.echo(output.printable(self._packets.line(pair, taken)))
        return len(packets), ""

    def losses(self, lost: int) -> None:
        """Print nothing: stderr has them."""

    def end(self, lost: int) -> None:
        """Print nothing."""
