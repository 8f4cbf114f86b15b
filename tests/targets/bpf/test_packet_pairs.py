"""The records of a packet as it arrived and as it left find each other, also over two reads."""

from __future__ import annotations

from lbagent.maps.event_reader import Event
from lbagent.maps.reasons import Reason
from lbagent.targets.bpf.packet_pairs import PacketPair, PacketPairs


def event(number: int, reason: Reason = Reason.FWD_NEW, *, cpu: int = 0, is_after: bool = False) -> Event:
    return Event(
        time=1.0, cpu=cpu, number=number, generation=1, device=1, length=60, reason=int(reason), hook=0, backend=1,
        service=1, snat_port=0, frame=b"", is_after=is_after,
    )  # fmt: skip


def test_pairs_of_one_read_in_the_order_of_arrival() -> None:
    first, second, drop = event(5), event(7, cpu=1), event(7, Reason.DROP_SOURCE_RANGE)
    left = event(6, is_after=True), event(8, cpu=1, is_after=True)
    assert PacketPairs().join([drop, first, second, *left]) == [
        PacketPair(drop, None), PacketPair(first, left[0]), PacketPair(second, left[1]),
    ]  # fmt: skip


def test_the_number_wraps() -> None:
    arrived, left = event(0xFFFFFFFF), event(0, is_after=True)
    assert PacketPairs().join([arrived, left]) == [PacketPair(arrived, left)]


def test_a_pair_over_two_reads() -> None:
    pairs = PacketPairs()
    arrived, left, later = event(5), event(6, is_after=True), event(7, Reason.REJECT_NO_BACKEND)
    assert pairs.join([arrived]) == []
    assert pairs.join([later, left]) == [PacketPair(arrived, left), PacketPair(later, None)]


def test_a_record_that_never_comes() -> None:
    """The packet waits for one read; nothing waits for a read that is the last; a second record alone is no packet."""
    pairs = PacketPairs()
    assert pairs.join([event(5)]) == []
    assert pairs.join([]) == [PacketPair(event(5), None)]
    assert pairs.join([]) == []
    assert pairs.join([event(5)], is_last=True) == [PacketPair(event(5), None)]
    assert pairs.join([event(9, is_after=True)]) == []
