"""Replacing all programs under traffic: every packet is processed by one whole generation."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lbagent.bpf.hooks import TC_EGRESS, TC_INGRESS, XDP
from lbagent.bpf.load import attach, clsact, datapath, generation
from lbagent.bpf.load.attach import Attachment
from lbagent.bpf.load.devices import devices
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.load.verifier_report import SMALL_SIZES
from lbagent.errors import KernelError, VerifierError
from lbagent.kernel import bpf_link, bpfsys
from lbagent.kernel.opcodes import EXIT, LDX_U32, insn
from tests.bpf.support import ENTRY, FELL_THROUGH, MIXED, TAIL, counter, in_child
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]
FRAME = b"\xff" * 6 + b"\x02\x00\x00\x00\x00\x01" + b"\x88\xb5" + bytes(50)


class Traffic:
    """Frames from v1 to v0 by a thread until stopped; counts what was sent."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.bind(("v1", 0))
        self.sent, self.stopping = 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopping.is_set():
            self.socket.send(FRAME)
            self.sent += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()
        self.socket.close()


@pytest.fixture
def started(root, artifact, fds, netns):
    path = datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings())
    path.attach("xdp", ["v0"], [])
    yield path
    path.close()


def pins(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_pins_have_their_contracted_names(root, started):
    tc = ["link/v0-tc_after_xdp", "link/v0-tc_egress"] if clsact.has_tcx() else []
    assert pins(root) == [
        "lb_calls_tc", "lb_calls_xdp", "lb_config", "lb_crc32c", *tc, "link/v0-xdp",
        "prog/tc_after_xdp", "prog/tc_egress", "prog/tc_ingress", "prog/xdp",
    ]  # fmt: skip


def test_no_frame_is_lost_or_meets_two_generations_while_programs_are_replaced(started, artifact, second_artifact, fds):
    before = counter(fds, ENTRY)  # IPv6 chatter of the new device
    with Traffic() as traffic:
        for turn in range(20):
            started.reload(second_artifact if turn % 2 == 0 else artifact, fds, SMALL_SIZES, ProgramSettings())
    wait_for(lambda: counter(fds, ENTRY) >= before + traffic.sent, "all frames counted")
    assert traffic.sent > 1000
    wait_for(
        lambda: counter(fds, TAIL) == counter(fds, ENTRY), "a tail call for each frame"
    )  # chatter may come in between
    assert [counter(fds, index) for index in (FELL_THROUGH, MIXED)] == [0, 0]


def test_the_same_programs_are_reused_and_others_loaded(root, started, artifact, second_artifact, fds):
    started.close()
    again = datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings())
    assert again.reused
    assert again.seeds == started.seeds
    again.close()
    other = datapath.start(root, second_artifact, fds, SMALL_SIZES, ProgramSettings())
    assert not other.reused
    assert other.seeds == started.seeds
    assert other.attachments == []
    assert devices()["v0"].xdp_prog_id  # went over to the new programs without being named
    other.close()


def test_other_settings_are_another_generation_with_the_same_seeds(started, artifact, fds):
    key = started.key
    started.reload(artifact, fds, SMALL_SIZES, ProgramSettings(snat_port_min=5000))
    assert started.key != key
    started.reload(artifact, fds, SMALL_SIZES, ProgramSettings(snat_port_min=5000))
    with Traffic():
        pass
    assert counter(fds, FELL_THROUGH) == 0


def test_a_swap_that_breaks_off_keeps_serving_and_the_next_one_works(
    root, started, artifact, second_artifact, fds, monkeypatch
):
    real = attach.attach

    def breaking(*args, **kwargs):
        real(*args, **kwargs)
        raise KernelError("attach", 5, "v0")

    monkeypatch.setattr(attach, "attach", breaking)
    with pytest.raises(KernelError):
        started.reload(second_artifact, fds, SMALL_SIZES, ProgramSettings())
    monkeypatch.undo()
    started.close()  # as after a crash: only pins are left, links run the second, v1/prog holds the first
    with Traffic() as traffic:
        wait_for(lambda: traffic.sent > 100, "frames")
    assert counter(fds, FELL_THROUGH) == 0
    again = datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings())
    assert not again.reused
    assert not (root / "next").exists()
    with Traffic() as traffic:
        wait_for(lambda: traffic.sent > 100, "frames")
    assert [counter(fds, index) for index in (FELL_THROUGH, MIXED)] == [0, 0]
    again.close()


OPERATIONS = (
    (bpfsys, "obj_pin"),
    (bpf_link, "link_update"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (Path, "rmdir"),
)


def die_after(count):
    """Make this process end, as by SIGKILL, after `count` steps of a replacement."""
    left = [count]

    def wrap(real):
        def step(*args, **kwargs):
            if not left[0]:
                os._exit(9)
            left[0] -= 1
            return real(*args, **kwargs)

        return step

    for owner, name in OPERATIONS:
        setattr(owner, name, wrap(getattr(owner, name)))


def replace_in_child(root, artifact, fds, steps):
    def replace():
        die_after(steps)
        datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings())

    return in_child(replace)


def test_killed_after_any_step_of_a_replacement_nothing_is_lost(root, started, artifact, second_artifact, fds):
    """Each round: the replacement dies one step later, then the next one has to succeed; frames arrive all the time."""
    started.close()
    steps = 0
    with Traffic() as traffic:
        while replace_in_child(root, second_artifact, fds, steps) == 9:
            again = datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings())
            assert not (root / "next").exists()
            again.close()
            steps += 1
    assert steps > 15
    wait_for(lambda: counter(fds, ENTRY) >= traffic.sent, "frames counted")
    assert counter(fds, TAIL) == counter(fds, ENTRY)
    assert [counter(fds, index) for index in (FELL_THROUGH, MIXED)] == [0, 0]


def test_tail_calls_outlive_the_process(root, artifact, fds, netns):
    assert (
        in_child(lambda: datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings()).attach("xdp", ["v0"], []))
        == 0
    )
    with Traffic() as traffic:
        wait_for(lambda: traffic.sent > 100, "frames")
    wait_for(lambda: counter(fds, TAIL) >= traffic.sent, "frames counted")
    assert counter(fds, FELL_THROUGH) == 0


def test_remove_leaves_nothing(root, started):
    gone = datapath.remove(root)
    assert Attachment.on_device("v0", XDP) in gone
    assert pins(root) == []
    assert attach.attached(root) == []
    assert devices()["v0"].xdp_prog_id == 0


def test_remove_twice_is_fine(root):
    assert datapath.remove(root) == []
    generation.remove(root)


# --- programs that no hook needed at first ---


def start_for_tc(root, artifact, fds, **settings):
    return datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings(**settings), hooks=[TC_INGRESS, TC_EGRESS])


def xdp_pins(root):
    return [name for name in pins(root) if name.endswith("xdp") and name.startswith("prog/") and "after" not in name]


def test_programs_of_xdp_are_loaded_when_a_device_needs_them(root, artifact, fds, netns):
    path = start_for_tc(root, artifact, fds)
    path.attach("tc", ["v0"], [])
    assert {"tc_ingress", "tc_egress"} <= set(path.programs)
    assert "xdp" not in path.programs
    assert (xdp_pins(root), set(path.generation.load_ms)) == ([], {"tc_ingress", "tc_egress", "tc_after_xdp"})
    key, tc = path.key, path.programs["tc_egress"]
    path.attach("xdp", ["v0"], [])
    assert (path.key, path.programs["tc_egress"], xdp_pins(root)) == (key, tc, ["prog/xdp"])
    with Traffic() as traffic:
        wait_for(lambda: traffic.sent > 100, "frames")
    wait_for(lambda: counter(fds, TAIL) >= traffic.sent, "frames counted by the tail call")
    assert [counter(fds, index) for index in (FELL_THROUGH, MIXED)] == [0, 0]
    path.close()
    again = start_for_tc(root, artifact, fds)
    assert (again.reused, again.generation.load_ms) == (True, {})
    again.close()


def test_pins_of_all_programs_are_reused_where_fewer_are_needed(root, started, artifact, fds):
    started.close()
    again = start_for_tc(root, artifact, fds)
    assert (again.reused, again.generation.load_ms, xdp_pins(root)) == (True, {}, ["prog/xdp"])
    again.close()


def test_pins_without_xdp_are_reused_where_it_is_needed(root, artifact, fds, netns):
    start_for_tc(root, artifact, fds).close()
    again = datapath.start(root, artifact, fds, SMALL_SIZES, ProgramSettings(), hooks=[XDP])
    assert (again.reused, set(again.generation.load_ms)) == (True, {"xdp", "call_xdp_5_second"})
    again.attach("xdp", ["v0"], [])
    assert xdp_pins(root) == ["prog/xdp"]
    again.close()


@pytest.mark.parametrize("reloads", [False, True])
def test_what_is_attached_has_its_programs_replaced_though_it_is_not_wanted_any_more(
    root, started, artifact, second_artifact, fds, reloads
):
    """`--attach tc` over a device with XDP: until tc is attached XDP continues, with the new programs."""
    before = counter(fds, ENTRY)
    with Traffic() as traffic:
        if reloads:
            started.reload(second_artifact, fds, SMALL_SIZES, ProgramSettings())
        else:
            started.close()
            start_for_tc(root, second_artifact, fds).close()
        assert devices()["v0"].xdp_prog_id
        wait_for(lambda: traffic.sent > 100, "frames")
    wait_for(lambda: counter(fds, ENTRY) >= before + traffic.sent, "all frames counted")
    assert [counter(fds, index) for index in (FELL_THROUGH, MIXED)] == [0, 0]


def test_a_reload_loads_what_is_attached_and_no_more(root, artifact, fds, netns):
    path = start_for_tc(root, artifact, fds)
    path.attach("tc", ["v0"], [])
    path.reload(artifact, fds, SMALL_SIZES, ProgramSettings(snat_port_min=5000))
    assert xdp_pins(root) == []
    path.attach("xdp", ["v0"], [])
    path.reload(artifact, fds, SMALL_SIZES, ProgramSettings(snat_port_min=5001))
    assert xdp_pins(root) == ["prog/xdp"]
    path.close()


def test_killed_after_any_step_of_loading_more_the_next_agent_does_it(root, artifact, fds, netns):
    start_for_tc(root, artifact, fds).close()

    def load_more(steps):
        path = start_for_tc(root, artifact, fds)
        die_after(steps)
        path.attach("xdp", ["v0"], [])

    steps = 0
    while in_child(partial(load_more, steps)) == 9:
        again = start_for_tc(root, artifact, fds)
        assert again.reused
        again.attach("xdp", ["v0"], [])
        fallen = counter(fds, FELL_THROUGH)
        with Traffic() as traffic:
            wait_for(lambda: traffic.sent > 20, "frames")
        assert (counter(fds, FELL_THROUGH), counter(fds, MIXED)) == (fallen, 0)
        again.close()
        datapath.remove(root)
        start_for_tc(root, artifact, fds).close()
        steps += 1
    assert steps > 2


def test_a_refused_program_changes_nothing(root, artifact, fds, netns):
    path = start_for_tc(root, artifact, fds)
    path.attach("tc", ["v0"], [])
    before, programs = pins(root), dict(path.programs)
    name = "call_xdp_5_second"
    bad = replace(artifact.programs[name], insns=insn(LDX_U32, dst=0, src=1, offset=400) + insn(EXIT), relocations=())
    path.artifact = replace(artifact, programs={**artifact.programs, name: bad})
    with pytest.raises(VerifierError):
        path.attach("xdp", ["v0"], [])
    assert (pins(root), dict(path.programs)) == (before, programs)
    path.artifact = artifact
    path.attach("xdp", ["v0"], [])
    assert xdp_pins(root) == ["prog/xdp"]
    path.close()
