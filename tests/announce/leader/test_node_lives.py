"""A node is alive by its Lease, as read by a node that may have lost the server itself."""

from __future__ import annotations

from lbagent.announce.leader.node_lives import NodeLives


def seen(*words: tuple[str, str, float]) -> NodeLives:
    lives = NodeLives("a", 2.0)
    for node, renewed, now in words:
        lives.see(node, renewed, 2.0, now)
    return lives


def test_a_lease_runs_out_when_it_has_not_changed_for_its_duration() -> None:
    lives = seen(("a", "1", 0.0), ("b", "1", 0.5))
    assert set(lives.alive(2.4)) == {"b"}
    assert lives.dead_s("b", 3.0) == 0.5
    lives.see("b", "1", 2.0, 3.0)  # an unchanged text is not a renewal
    assert lives.dead_s("b", 3.0) == 0.5


def test_while_the_own_lease_is_not_seen_nothing_is_fresh() -> None:
    lives = seen(("a", "1", 0.0))
    assert lives.is_fresh(1.9)
    assert not lives.is_fresh(2.0)
    assert not NodeLives("a", 2.0).is_fresh(0.0)


def test_after_an_outage_the_others_have_a_whole_duration() -> None:
    lives = seen(("a", "1", 0.0), ("b", "1", 0.0), ("a", "2", 60.0))
    assert lives.dead_s("b", 60.0) == -2.0
    assert lives.dead_s("b", 62.5) == 0.5


def test_at_the_beginning_too() -> None:
    lives = seen(("b", "1", 0.0), ("a", "1", 50.0))
    assert lives.dead_s("b", 50.0) == -2.0
    assert lives.dead_s("never seen", 52.0) == 0.0


def test_a_dead_node_needs_no_end_of_its_lease() -> None:
    lives = seen(("a", "1", 0.0), ("b", "1", 0.0), ("c", "1", 0.0))
    lives.dead = frozenset({"b"})
    assert set(lives.alive(0.5)) == {"a", "c"}
    assert lives.dead_s("b", 0.5) == 0.0
    assert lives.dead_s("b", 5.0) == 3.0, "its Lease has expired, too"
    lives.dead = frozenset()
    assert set(lives.alive(0.6)) == {"a", "b", "c"}


def test_a_node_without_a_lease_is_no_live_node() -> None:
    lives = seen(("a", "1", 0.0), ("b", "1", 0.0))
    lives.forget("b")
    assert set(lives.alive(1.0)) == {"a"}


def test_the_next_end_is_that_of_the_first_of_the_others_or_so_long_before() -> None:
    lives = seen(("a", "1", 0.0), ("b", "1", 0.5), ("c", "1", 1.0))
    assert lives.next_end(1.0, 0.3) == 2.2
    assert lives.next_end(2.3, 0.3) == 2.5
    assert lives.next_end(2.6, 0.3) == 2.7
    assert lives.next_end(3.0, 0.3) == float("inf")
