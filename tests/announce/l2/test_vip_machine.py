"""Which node may start to answer for an address, step by step, with a controlled clock."""

from __future__ import annotations

import pytest

from lbagent.announce.l2.vip_machine import (
    BURST_S,
    CHECK_S,
    CONFLICT_S,
    PROBE_RETRY_DELAY_S,
    PROBE_S,
    PROBES,
    Act,
    LeaseStatus,
    Order,
    Phase,
    Rule,
    VipMachine,
    VipSettings,
    rule,
)

OURS = VipSettings("a", 30.0)
MAC = b"\2\0\0\0\0\1"
FREE = LeaseStatus(eligible=True, elects=True, fresh=True, preferred="a")
GIVEN = LeaseStatus(eligible=True, elects=True, fresh=True, holder="a", preferred="a")
ALONE = LeaseStatus(eligible=True)


def dead(seconds: float, **fields: object) -> LeaseStatus:
    given = {"eligible": True, "elects": True, "fresh": True, "holder": "b", "preferred": "a"} | fields
    return LeaseStatus(holder_dead_s=seconds, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (LeaseStatus(eligible=False), Rule.NO),
        (ALONE, Rule.IF_NO_STRANGER),
        (FREE, Rule.IF_SILENT),
        (GIVEN, Rule.IF_NO_STRANGER),
        (LeaseStatus(eligible=True, elects=True, fresh=False, holder="a", preferred="a"), Rule.NO),
        (LeaseStatus(eligible=True, elects=True, fresh=True, preferred="b"), Rule.NO),
        (dead(-0.5), Rule.NO),
        (dead(-PROBE_S), Rule.SOON),
        (dead(-PROBE_S, preferred="b"), Rule.NO),
        (dead(0.0), Rule.IF_SILENT),
        (dead(29.9), Rule.IF_SILENT),
        (dead(30.0), Rule.IF_NO_STRANGER),
        (dead(99.0, preferred="c"), Rule.NO),
        (dead(99.0, eligible=False), Rule.NO),
        (dead(99.0, fresh=False), Rule.NO),
    ],
)
def test_who_may_begin(view: LeaseStatus, found: Rule) -> None:
    assert rule(view, OURS) is found


class Run:
    """A machine and its orders in a period."""

    def __init__(self, view: LeaseStatus, **more: bool) -> None:
        self.now, self.lease_status = 100.0, view
        settings = OURS._replace(probe=more.pop("probe", True), defends=more.pop("defends", True))
        self.machine = VipMachine(settings, self.now, **more)

    def run(self, seconds: float, step: float = 0.05) -> list[tuple[float, Order]]:
        out, began = [], self.now
        for number in range(round(seconds / step) + 1):
            self.now = began + number * step
            out += [(round(self.now - began, 3), order) for order in self.machine.step(self.now, self.lease_status)]
        return out

    def acts(self, seconds: float) -> list[Act]:
        return [order.act for _, order in self.run(seconds)]


def test_without_leases_it_probes_three_times_then_announces_and_tells_again() -> None:
    found = Run(ALONE).run(11)
    assert [order.act for _, order in found] == [Act.PROBE] * PROBES + [Act.ANNOUNCE] + [Act.REPEAT] * len(BURST_S)
    begin = found[PROBES][0]
    assert begin == pytest.approx(PROBE_S, abs=0.06)
    assert [round(at - begin, 1) for at, order in found if order.act is Act.REPEAT] == list(BURST_S)


def test_without_probes_it_begins_at_once() -> None:
    assert Run(ALONE, probe=False).acts(0)[0] is Act.ANNOUNCE


def test_a_stranger_keeps_it_from_announcing_and_is_looked_for_again_each_minute() -> None:
    run = Run(ALONE)
    run.run(0.1)
    assert list(run.machine.sighted(run.now, MAC, "")) == [Order(Act.CONFLICT, mac=MAC)]
    assert (run.machine.phase, run.machine.conflicting_mac) == (Phase.CONFLICT, MAC)
    assert run.acts(CONFLICT_S - 1) == []
    assert Act.ANNOUNCE in run.acts(2)


def test_with_a_lease_it_is_written_before_the_address_is_announced() -> None:
    run = Run(FREE)
    assert run.acts(2) == [Act.PROBE] * PROBES + [Act.CLAIM]
    assert not run.machine.answers
    assert list(run.machine.claimed(run.now, done=True)) == [Order(Act.ANNOUNCE)]
    refused = Run(FREE)
    refused.run(2)
    assert list(refused.machine.claimed(refused.now, done=False)) == []
    assert refused.machine.phase is Phase.STANDBY


def test_a_dead_node_whose_programs_answer_is_waited_for() -> None:
    run = Run(dead(1.0))
    run.run(0.1)
    assert list(run.machine.sighted(run.now, MAC, "b")) == []
    assert Act.CLAIM not in run.acts(PROBE_S)
    assert Act.PROBE in run.acts(PROBE_RETRY_DELAY_S + 0.1)
    run.lease_status = dead(30.0)
    assert Act.CLAIM in run.acts(2)


def expiring(run: Run, seconds: float) -> list[tuple[float, Act]]:
    """Expire the Lease of the other node at the time 101; return the acts, and the time after that."""
    out, end = [], run.now + seconds
    while run.now < end:
        run.now += 0.01
        run.lease_status = dead(run.now - 101.0)
        out += [(round(run.now - 101.0, 2), order.act) for order in run.machine.step(run.now, run.lease_status)]
    return out


def test_an_overdue_lease_is_taken_when_it_runs_out_as_probes_were_sent_before() -> None:
    found = expiring(Run(dead(-1.0)), 2.0)
    assert [act for _, act in found] == [Act.PROBE] * PROBES + [Act.CLAIM]
    assert all(at < -0.05 for at, _ in found[:-1])
    assert 0 <= found[-1][0] <= 0.02


def test_an_overdue_lease_is_not_taken_while_its_node_answers() -> None:
    run = Run(dead(-1.0))
    expiring(run, 0.85)
    assert list(run.machine.sighted(run.now, MAC, "b")) == []
    found = expiring(run, 1.0)
    assert [act for at, act in found if at < PROBE_RETRY_DELAY_S - 0.1] == [Act.PROBE] * (PROBES - 2)
    assert [act for at, act in found if at >= PROBE_RETRY_DELAY_S - 0.1] == [Act.PROBE] * PROBES + [Act.CLAIM]


def test_an_overdue_lease_that_is_renewed_is_let_be() -> None:
    run = Run(dead(-1.0))
    expiring(run, 0.95)
    run.lease_status = dead(-2.0)
    assert run.acts(5) == []
    assert run.machine.phase is Phase.STANDBY


def test_a_lease_that_was_given_is_taken_while_the_giver_still_answers() -> None:
    run = Run(GIVEN)
    run.run(0.1)
    assert list(run.machine.sighted(run.now, MAC, "b")) == []
    assert Act.ANNOUNCE in run.acts(1)


def test_it_asks_the_wire_soon_after_the_beginning() -> None:
    found = Run(GIVEN).run(11)
    begin = next(at for at, order in found if order.act is Act.ANNOUNCE)
    checks = [round(at - begin, 2) for at, order in found if order.act is Act.PROBE and at > begin]
    assert checks == [pytest.approx(after, abs=0.06) for after in CHECK_S]


def begun(seconds: float) -> Run:
    """Return a machine that started so long ago."""
    run = Run(GIVEN)
    while not run.machine.answers:
        run.now += 0.01
        list(run.machine.step(run.now, run.lease_status))
    run.run(seconds)
    return run


def test_a_node_that_does_not_hear_that_this_one_began_goes_first() -> None:
    run = begun(CHECK_S[0])
    assert list(run.machine.sighted(run.now, MAC, "b")) == [Order(Act.WITHDRAW)]
    assert run.machine.yielded_to == "b"
    end = run.now + OURS.restart_grace_s - 1
    while run.now < end:
        assert set(run.acts(0.1)) <= {Act.PROBE}
        run.now += 0.05
        if run.machine.phase is Phase.PROBING:
            assert list(run.machine.sighted(run.now, MAC, "b")) == []
    assert Act.ANNOUNCE in run.acts(2)  # it is silent


def test_one_that_still_answers_then_runs_and_is_told_again() -> None:
    run = begun(CHECK_S[0])
    list(run.machine.sighted(run.now, MAC, "b"))
    run.run(OURS.restart_grace_s, step=0.5)
    while not run.machine.answers:
        run.run(0.1)
        list(run.machine.sighted(run.now, MAC, "b"))
    assert run.now < 100 + 2 * OURS.restart_grace_s


def test_one_that_defends_its_address_before_is_answered() -> None:
    run = begun(CHECK_S[0] - 0.1)
    assert list(run.machine.sighted(run.now, MAC, "b")) == [Order(Act.REPEAT)]
    assert run.machine.answers


def test_what_ended_by_itself_is_begun_anew() -> None:
    run = leading()
    run.machine.lapse(run.now)
    assert not run.machine.answers
    assert run.acts(1)[: PROBES + 1] == [Act.PROBE] * PROBES + [Act.ANNOUNCE]
    run = leading()
    run.machine.lapse(run.now)
    run.lease_status = LeaseStatus(eligible=True, elects=True, fresh=False, holder="a", preferred="a")
    assert run.acts(60) == []


def leading(view: LeaseStatus = GIVEN, **more: bool) -> Run:
    run = Run(view, **more)
    run.run(12)
    assert run.machine.phase is Phase.ANNOUNCED
    return run


def test_an_outage_withdraws_nothing() -> None:
    run = leading()
    run.lease_status = LeaseStatus(
        eligible=True, elects=True, fresh=False, holder="b", holder_dead_s=-1.0, preferred="b"
    )
    assert run.acts(60) == []
    assert run.machine.answers


def test_in_an_outage_it_yields_to_another_node_and_stays_away() -> None:
    run = leading()
    run.lease_status = LeaseStatus(eligible=True, elects=True, fresh=False, holder="a", preferred="a")
    run.run(0)
    assert list(run.machine.sighted(run.now, MAC, "b")) == [Order(Act.WITHDRAW)]
    assert run.machine.yielded_to == "b"
    assert run.acts(60) == []


def test_with_the_lease_it_answers_another_node_by_telling_the_network_again() -> None:
    run = leading()
    assert list(run.machine.sighted(run.now, MAC, "b")) == [Order(Act.REPEAT)]
    assert list(run.machine.sighted(run.now, MAC, "b")) == []
    assert run.machine.answers


def test_with_yield_a_stranger_is_answered_once_and_then_yielded_to() -> None:
    run = leading(ALONE, defends=False)
    assert list(run.machine.sighted(run.now, MAC, "")) == [Order(Act.REPEAT)]
    assert [order.act for order in run.machine.sighted(run.now + 1, MAC, "")] == [Act.WITHDRAW, Act.CONFLICT]
    assert run.machine.phase is Phase.CONFLICT
    assert run.machine.conflict_with(run.now + 1) == MAC


@pytest.mark.parametrize("view", [ALONE, GIVEN])
def test_a_stranger_s_claims_are_answered_once_in_ten_seconds_for_as_long_as_they_come(view: LeaseStatus) -> None:
    """RFC 5227 §2.4 c, DEFEND_INTERVAL 10 s; 300 claims of changing MAC addresses, ten per second."""
    run, defended_at, warned = leading(view), [], 0
    for number in range(300):
        mac = b"\2\0\0\0\1" + bytes([number % 256])
        for order in run.machine.sighted(run.now + number / 10, mac, ""):
            defended_at += [number / 10] if order.act is Act.REPEAT else []
            warned += order.act is Act.CONTESTED
            assert order.act in (Act.REPEAT, Act.CONTESTED)
    assert (defended_at, warned) == ([0.0, 10.0, 20.0], 1)
    assert run.machine.answers


def test_the_conflict_ends_when_the_stranger_is_silent_and_is_reported_again_after_that() -> None:
    run = leading(ALONE)
    assert Order(Act.CONTESTED, mac=MAC) in list(run.machine.sighted(run.now, MAC, ""))
    assert run.machine.conflict_with(run.now + 60) == MAC
    assert run.machine.conflict_with(run.now + 70) == b""
    assert Order(Act.CONTESTED, mac=MAC) in list(run.machine.sighted(run.now + 70, MAC, ""))


def test_the_conflict_of_an_address_that_a_stranger_had_first_ends_when_it_is_announced() -> None:
    run = Run(ALONE)
    run.run(0.1)
    list(run.machine.sighted(run.now, MAC, ""))
    run.run(CONFLICT_S + 0.15)  # it is probed again
    assert (run.machine.phase, run.machine.conflict_with(run.now)) == (Phase.PROBING, MAC)
    run.run(1)
    assert (run.machine.phase, run.machine.conflict_with(run.now)) == (Phase.ANNOUNCED, b"")


def test_the_conflict_ends_when_the_address_is_another_node_s() -> None:
    run = leading()
    list(run.machine.sighted(run.now, MAC, ""))
    run.lease_status = LeaseStatus(eligible=False, elects=True, fresh=True, holder="a")
    assert run.acts(0) == [Act.WITHDRAW]
    assert run.machine.conflict_with(run.now) == b""


def test_it_gives_the_lease_to_the_preferred_node_and_stops_when_it_hears_it() -> None:
    run = leading()
    run.lease_status = LeaseStatus(eligible=True, elects=True, fresh=True, holder="a", preferred="b")
    assert run.run(0) == [(0.0, Order(Act.GIVE, "b"))]
    run.machine.given(run.now, done=True)
    run.lease_status = LeaseStatus(eligible=True, elects=True, fresh=True, holder="b", holder_dead_s=-1, preferred="b")
    assert run.acts(0.2) == []
    assert run.machine.answers
    assert list(run.machine.sighted(run.now, MAC, "b")) == [Order(Act.WITHDRAW)]


def test_it_stops_soon_after_it_gave_the_lease_though_it_hears_nothing() -> None:
    run = leading()
    run.lease_status = LeaseStatus(eligible=False, elects=True, fresh=True, holder="a", preferred="b")
    assert run.acts(0) == [Act.GIVE]
    run.machine.given(run.now, done=True)
    run.lease_status = LeaseStatus(eligible=False, elects=True, fresh=True, holder="b", holder_dead_s=-1, preferred="b")
    assert run.acts(0.95) == [Act.WITHDRAW]  # two nodes never answer for over a second


def test_a_node_that_cannot_use_its_lease_gives_it_away() -> None:
    run = Run(LeaseStatus(eligible=False, elects=True, fresh=True, holder="a", preferred="b"))
    assert run.run(0) == [(0.0, Order(Act.GIVE, "b"))]
    assert run.acts(0.5) == []


def test_no_other_node_it_withdraws() -> None:
    run = leading()
    run.lease_status = LeaseStatus(eligible=False, elects=True, fresh=True, holder="a")
    assert run.acts(0) == [Act.WITHDRAW]


def test_what_an_earlier_agent_announced_goes_on_without_a_word() -> None:
    run = Run(GIVEN, answers=True)
    assert run.acts(20) == []
    assert run.machine.answers


def test_a_lease_that_was_deleted_is_written_again_while_the_programs_answer() -> None:
    run = leading()
    run.lease_status = FREE
    assert run.acts(0) == [Act.CLAIM]
    assert run.machine.answers


def test_what_another_node_took_is_not_answered_for_any_more() -> None:
    run = leading()
    run.lease_status = LeaseStatus(
        eligible=True, elects=True, fresh=True, holder="b", holder_dead_s=-1.0, preferred="b"
    )
    assert run.acts(0) == [Act.WITHDRAW]
