"""The previous leader of an address, how long the programs have it, and when it is removed."""

from __future__ import annotations

from lbagent.announce.leader.former_leaders import MAX_SIGHTING_AGE_S, DeviceAddress, FormerLeaders

VIP, OTHER = b"\x0a\0\0\x09", b"\x0a\0\0\x0a"
MAC, MAC2 = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
GRACE_S = 8.0


ANSWERS = ((3, VIP), (4, VIP), (3, OTHER))


def wanted(
    former: FormerLeaders, now: float, *, lives: bool = True, answers: tuple[DeviceAddress, ...] = ANSWERS
) -> dict[DeviceAddress, bytes]:
    return former.wanted(answers, now, GRACE_S, lambda _mac: lives)


def led(*seen: tuple[int, bytes, bytes]) -> FormerLeaders:
    """Return the previous leaders when this node started to lead for VIP at 100 s, after frames of these at 99 s."""
    former = FormerLeaders()
    for ifindex, address, mac in seen:
        former.seen((ifindex, address), mac, 99.0)
    former.start(VIP, 100.0, GRACE_S)
    return former


def test_it_is_known_while_it_lives() -> None:
    former = led((3, VIP, MAC), (4, VIP, MAC2), (3, OTHER, MAC2))
    assert wanted(former, 100.0) == {(3, VIP): MAC, (4, VIP): MAC2}
    assert wanted(former, 100_000.0) == {(3, VIP): MAC, (4, VIP): MAC2}
    assert former.of(VIP) == [MAC, MAC2]
    assert former.of(OTHER) == []


def test_one_without_a_lease_is_known_for_the_grace() -> None:
    """Its agent died: its programs kept answering until this node started, and have its flows."""
    former = led((3, VIP, MAC))
    assert wanted(former, 107.9, lives=False) == {(3, VIP): MAC}
    assert wanted(former, 108.0, lives=False) == {}
    assert wanted(former, 108.1) == {}
    assert former.of(VIP) == []


def test_the_grace_begins_when_it_was_seen_to_live_last() -> None:
    former = led((3, VIP, MAC))
    assert wanted(former, 150.0) == {(3, VIP): MAC}
    assert wanted(former, 157.9, lives=False) == {(3, VIP): MAC}
    assert wanted(former, 158.0, lives=False) == {}


def test_one_that_was_silent_for_long_is_none() -> None:
    """It died: nothing is sent to it."""
    former = FormerLeaders()
    former.seen((3, VIP), MAC, 100.0)
    former.start(VIP, 100.1 + MAX_SIGHTING_AGE_S, GRACE_S)
    assert wanted(former, 104.0) == {}


def test_the_next_one_takes_the_place_of_the_one_before() -> None:
    former = led((3, VIP, MAC), (4, VIP, MAC))
    former.seen((3, VIP), MAC2, 120.0)
    former.start(VIP, 120.5, GRACE_S)
    assert wanted(former, 121.0) == {(3, VIP): MAC2}


def test_the_one_that_was_heard_is_not_meant_twice() -> None:
    former = led((3, VIP, MAC))
    former.start(VIP, 100.5, GRACE_S)
    assert wanted(former, 101.0) == {}


def test_it_is_forgotten_when_this_node_leads_no_more() -> None:
    former = led((3, VIP, MAC))
    former.seen((3, VIP), MAC, 100.5)
    former.end(VIP)
    assert wanted(former, 101.0) == {}
    former.start(VIP, 101.0, GRACE_S)
    assert wanted(former, 101.0) == {}


def test_the_programs_know_it_only_where_they_answer() -> None:
    former = led((3, VIP, MAC))
    assert wanted(former, 101.0, answers=((4, VIP), (3, OTHER))) == {}
    assert wanted(former, 101.0) == {(3, VIP): MAC}


def test_what_an_earlier_agent_wrote_goes_on() -> None:
    former = FormerLeaders()
    former.take_over({(3, VIP): MAC}, 108.0)
    assert wanted(former, 107.9, lives=False) == {(3, VIP): MAC}
    assert wanted(former, 107.9) == {(3, VIP): MAC}
    assert wanted(former, 109.0, lives=False) == {(3, VIP): MAC}
