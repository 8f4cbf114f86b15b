"""A leader without current Leases sends probes: some addresses each half second, all after a frame of another node."""

from __future__ import annotations

from lbagent.announce.l2.duplicate_probes import PROBE_BATCH, PROBE_INTERVAL_S, DuplicateProbes

MANY = [bytes([10, 0, 0, number]) for number in range(20)]


def test_nothing_is_asked_and_nothing_waked_for_while_the_leases_are_known() -> None:
    questions = DuplicateProbes()
    assert questions.due(1.0, []) == []
    assert questions.wake_at() == float("inf")


def test_each_address_has_its_turn() -> None:
    questions, asked = DuplicateProbes(), []
    for step in range(3):
        found = questions.due(step * PROBE_INTERVAL_S, MANY)
        assert len(found) == PROBE_BATCH
        assert questions.wake_at() == (step + 1) * PROBE_INTERVAL_S
        assert questions.due(step * PROBE_INTERVAL_S + 0.1, MANY) == []
        asked += found
    assert set(asked) == set(MANY)


def test_few_addresses_are_asked_about_once_each_time() -> None:
    questions = DuplicateProbes()
    for step in range(3):
        assert sorted(questions.due(step * PROBE_INTERVAL_S, MANY[:3])) == MANY[:3]


def test_all_are_asked_about_at_once_when_one_was_taken() -> None:
    questions = DuplicateProbes()
    questions.due(0.0, MANY)
    questions.probe_all()
    assert questions.due(0.02, MANY[1:]) == MANY[1:]
    assert questions.due(0.04, MANY[1:]) == []


def test_a_suspicion_ends_when_the_leases_are_known() -> None:
    questions = DuplicateProbes()
    questions.probe_all()
    questions.due(0.0, [])
    assert len(questions.due(1.0, MANY)) == PROBE_BATCH


def test_it_says_when_a_list_of_addresses_is_of_use() -> None:
    questions = DuplicateProbes()
    assert questions.is_due(0.0), "the first ones"
    questions.due(0.0, MANY)
    assert [questions.is_due(now) for now in (0.1, PROBE_INTERVAL_S)] == [False, True]
    questions.probe_all()
    assert questions.is_due(0.1)
    questions.due(0.1, [])
    assert questions.is_due(0.2), "the first ones again"
