"""From silence to the dead nodes, the Events and the faults, over Leases in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.liveness.world import World


def test_a_node_that_dies_is_suspected_published_and_dead(tmp_path: Path) -> None:
    world = World(5, tmp_path)
    world.run(5)
    assert world.leases.addresses == ("10.0.0.1",)
    assert world.liveness.observed == {"n1", "n2", "n3", "n4"}
    world.silent = {"n4"}
    world.run(3)
    assert world.leases.suspects == {"n4"}
    assert not world.liveness.dead, "one observer is not enough"
    world.others_suspect("n4")
    world.run(0.6)
    assert world.dead == [{"n4"}]
    world.silent, world.leases.of_others = set(), {}
    world.run(3)
    assert world.dead == [{"n4"}, set()]


def test_one_of_the_live_nodes_sends_the_event(tmp_path: Path) -> None:
    sent = []
    for own in ("n0", "n1", "n2", "n3", "n4"):
        world = World(6, tmp_path, own)
        world.run(3)
        world.others_suspect("n5")
        world.run(1)
        assert world.liveness.dead == {"n5"}
        sent += world.events
    assert [(each.kind, each.key, each.reason, each.warning) for each in sent] == [("Node", "n5", "NodeDead", True)]


def test_an_agent_that_hangs_is_no_dead_node(tmp_path: Path) -> None:
    world = World(5, tmp_path)
    world.run(3)
    world.hung = {"n1", "n2", "n3", "n4"}
    world.run(60)
    assert not world.leases.suspects
    assert not world.liveness.missed()


def test_of_four_nodes_one_dies_while_the_agent_of_another_is_stopped(tmp_path: Path) -> None:
    world = World(4, tmp_path)
    world.run(3)
    world.hung, world.silent = {"n2"}, {"n3"}
    world.run(3)
    assert not world.dead
    world.leases.of_others = {"n3": {"n1"}}
    world.run(0.6)
    assert world.dead == [{"n3"}]


def test_without_the_api_server_the_own_observation_counts(tmp_path: Path) -> None:
    world = World(9, tmp_path)
    world.run(3)
    world.leases.takes = False
    world.run(600)
    assert not world.dead
    world.silent = {"n8"}
    world.run(3)
    assert world.liveness.dead == {"n8"}
    world.silent = {f"n{number}" for number in range(1, 9)}  # now it is cut off itself
    world.run(60)
    assert world.liveness.dead == {"n8"}
    world.silent = set()
    world.run(4)
    assert not world.liveness.dead


def test_of_two_nodes_without_the_api_server_none_is_dead(tmp_path: Path) -> None:
    """Nothing tells which of the two is cut off."""
    world = World(2, tmp_path)
    world.run(3)
    world.silent = {"n1"}
    world.leases.takes = False
    world.run(60)
    assert not world.dead
    world.leases.takes = True
    world.run(1)
    assert world.dead == [{"n1"}]


def test_a_third_of_the_nodes_is_a_panic(tmp_path: Path) -> None:
    world = World(9, tmp_path)
    world.run(3)
    world.silent = {"n6", "n7", "n8"}
    world.run(2.5)
    world.others_suspect("n6", "n7", "n8")
    world.run(5)
    assert not world.dead
    assert world.liveness.is_panic
    assert world.liveness.panic_text() == "3 of 9 nodes do not answer (n6, n7, n8): none of them is declared dead"
    world.silent, world.leases.of_others = set(), {}
    world.run(60)
    assert not world.dead
    assert world.liveness.panic_text() == ""


def test_a_restarted_agent_keeps_its_suspicion(tmp_path: Path) -> None:
    world = World(5, tmp_path, before=["n4"])
    world.silent = {"n4"}
    world.others_suspect("n4")
    world.run(1)
    assert world.leases.suspects == {"n4"}
    assert world.liveness.dead == {"n4"}


def test_nodes_that_join_and_leave(tmp_path: Path) -> None:
    world = World(5, tmp_path)
    world.run(3)
    world.others_suspect("n4")
    world.run(1)
    assert world.liveness.dead == {"n4"}
    del world.leases.nodes["n4"]
    world.leases.nodes["n5"] = ("fd00::6",)
    world.leases.on_change()
    world.run(1)
    assert not world.liveness.dead
    assert world.liveness.observed == {"n1", "n2", "n3", "n5"}


@pytest.mark.parametrize("text", ["", "\n", None])
def test_without_a_key_there_is_a_fault_and_kernels_are_asked(tmp_path: Path, text: str | None) -> None:
    world = World(5, tmp_path)
    world.run(3)
    assert world.liveness.faults() == []
    if text is None:
        world.key.unlink()
    else:
        world.key.write_text(text)
    world.liveness._read_key()
    assert [part for part, _ in world.liveness.faults()] == ["key"]
    assert str(world.key) in world.liveness.faults()[0][1]
    assert world.liveness._key == b"k" * 40, "the last one is used"
    world.key.write_text("another\n")
    world.liveness._read_key()
    assert world.liveness.faults() == []
    assert world.liveness._key == b"another"


def test_a_node_without_an_address_is_a_fault(tmp_path: Path) -> None:
    world = World(5, tmp_path)
    world.own_addresses.clear()
    world.run(1)
    assert [part for part, _ in world.liveness.faults()] == ["address"]
