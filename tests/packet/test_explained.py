"""`explain` over a world of its own: XDP leaves a packet to tc_after_xdp, a device has no program."""

from __future__ import annotations

import random
from collections import Counter

from lbagent.model.state import State
from lbagent.net.snapshot import EMPTY, Link, NodeNetwork
from lbagent.targets.bpf.explainer import Scene, explain
from lbagent.targets.explanation import Explanation, PacketQuestion
from tests.packet import corpus, craft
from tests.packet.craft import Family
from tests.packet.fuzz import SEED, stream
from tests.packet.test_dry_programs import both_worlds
from tests.packet.world import TCP, World


def network(world: World) -> NodeNetwork:
    """Return a snapshot with the devices of the world alone."""
    macs = {
        "lb0": (world.net.lb0, craft.NODE_MAC),
        "lb1": (world.net.lb1, craft.NODE2_MAC),
        "pod0": (world.net.pod0, craft.POD_MAC),
    }
    links = {
        index: Link(index, name, bytes.fromhex(mac.replace(":", "")), 1500, up=True)
        for name, (index, mac) in macs.items()
    }
    return NodeNetwork(links, (), EMPTY.routes4, EMPTY.routes6, EMPTY.own4, EMPTY.own6, {})


def test_what_xdp_leaves_to_tc_is_explained_there(fam: Family) -> None:
    """A next hop by which XDP cannot send: the steps, the hook and the output are those of tc_after_xdp."""
    with both_worlds() as (world, dry):
        hop = world.nexthop(world.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC, xdp=False)
        row = world.backend(fam, fam.remote(1), 8080, nexthop=hop)
        world.service(fam, fam.vip, 80, TCP, [row])
        world.device(world.net.lb1, 0, craft.NODE2_MAC)  # the FIB's answer does not help either
        hooks = {"lb0": ["xdp", "tc_after_xdp"]}
        scene = Scene(dry, world.maps, State(), 7, network(world), hooks, (1024, 29999))
        client, vip = ((f"[{text}]" if fam.version == 6 else text) for text in (fam.client, fam.vip))
        question = PacketQuestion(source=f"{client}:40000", destination=f"{vip}:80")
        with world.net.inside():
            (answer,) = explain(scene, [question], "lb0", "")
            (only_seen,) = explain(scene, [question], "lb1", "")
        assert (answer.verdict, answer.reason, answer.packet.hook) == ("forward", "fwd_new", "tc_after_xdp")
        assert answer.action == "TC_ACT_REDIRECT"
        assert answer.output is not None
        assert answer.output.device == "lb1"
        assert answer.generation == 7
        check_unseen(only_seen)


def check_unseen(answer: Explanation) -> None:
    """A device without programs: the packet passes, and the text says why."""
    assert (answer.verdict, answer.action, answer.reason, answer.steps) == ("pass", "", None, [])
    assert "no program of lbagent" in answer.advice


def test_every_frame_has_an_answer() -> None:
    """Mutated frames of every kind at every hook: a verdict, steps in their order, and none of them fails."""
    order = [
        "parse",
        "filter",
        "snat-slot",
        "flow",
        "service",
        "scope",
        "source-range",
        "proxy",
        "affinity",
        "select",
        "snat-port",
        "path",
        "next-hop",
        "rewrite",
        "answer",
    ]
    rng = random.Random(SEED + 2)
    seen: Counter[str] = Counter()
    with both_worlds() as (world, dry):
        scene = corpus.build(world)
        names = {world.net.lb0: "lb0", world.net.lb1: "lb1", world.net.pod0: "pod0"}
        whole = Scene(dry, world.maps, State(), 1, network(world), {}, (1024, 29999))
        with world.net.inside():
            for hook, device, frame in stream(rng, scene, 6000, every_length=False):
                question = PacketQuestion(frame=frame.hex())
                (answer,) = explain(whole, [question], names[device], "tc_ingress" if hook == "tc_after_xdp" else hook)
                places = [order.index(step.step) for step in answer.steps]
                assert places == sorted(set(places)), answer
                assert all(step.text and step.result for step in answer.steps)
                assert (answer.output is None) == (answer.verdict in ("drop", "pass")), answer
                assert answer.verdict == "pass" or answer.reason, answer
                seen[answer.verdict] += 1
                seen.update(step.step for step in answer.steps)
    for word in ("forward", "local", "answer", "drop", "pass", *order):
        assert seen[word] > 5, seen
