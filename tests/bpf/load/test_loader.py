"""Loading into the real kernel: relocations, settings, tail calls, refusals."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from lbagent.bpf.compiler.artifact import Program
from lbagent.bpf.load import loader
from lbagent.bpf.load.loader import call_slots, load_generation, load_program
from lbagent.errors import CompileError, Unsupported, VerifierError
from lbagent.kernel import bpf_map
from lbagent.kernel.opcodes import EXIT, LDX_U32, insn
from lbagent.testing import bpf_test_run as test_run
from tests.bpf.support import ENTRY, FELL_THROUGH, TAIL, config_record, counter
from tests.lab.open_files import open_files

pytestmark = [pytest.mark.root, pytest.mark.bpf]
PACKET = bytes(12) + b"\x08\x00" + bytes(50)


@pytest.fixture
def loaded(artifact, fds):
    made = load_generation(artifact, fds, config_record())
    yield made
    made.close()


def test_entry_reaches_its_tail_call_and_the_maps(loaded, fds, netns):
    result = test_run.run_xdp(loaded.programs["xdp"], PACKET, ifindex=netns.ifindex("v0"))
    assert result.verdict == test_run.Xdp.PASS
    assert result.packet == PACKET
    assert [counter(fds, index) for index in (ENTRY, TAIL, FELL_THROUGH)] == [1, 1, 0]
    nexthops = bpf_map.map_lookup(fds["lb_nexthop"], bytes(4), 4096 * 16)
    assert struct.unpack_from("<I", nexthops, 3 * 16 + 12)[0] == netns.ifindex("v0")


def test_settings_are_folded_into_the_program(artifact, fds):
    made = load_generation(artifact, fds, config_record(snat_port_min=2000))
    assert test_run.run_xdp(made.programs["xdp"], PACKET).verdict == test_run.Xdp.DROP
    made.close()


def test_settings_cannot_be_changed_behind_the_programs_back(loaded):
    with pytest.raises(OSError, match="not permitted"):
        bpf_map.map_update(loaded.maps["lb_config"], bytes(4), config_record())


def test_tc_gets_its_interface(loaded, netns):
    index = netns.ifindex("v0")
    assert test_run.run_tc(loaded.programs["tc_ingress"], PACKET, ifindex=index).verdict == index


def test_a_refused_program_shows_the_end_of_the_log_and_where_all_of_it_is(tmp_path):
    bad = Program("broken", "unit", "xdp", insn(LDX_U32, dst=0, src=1, offset=400) + insn(EXIT), ())
    with pytest.raises(VerifierError, match="refused program broken") as caught:
        load_program(bad, {}, tmp_path)
    assert "invalid bpf_context access off=400" in str(caught.value)
    path = Path(re.search(r"whole log: (\S+)", str(caught.value))[1])
    assert path.parent == tmp_path
    assert "processed 1 insns" in path.read_text()


def test_a_failed_generation_leaves_no_descriptor(artifact, fds, tmp_path):
    broken = replace(artifact.programs["tc_egress"], insns=insn(EXIT), relocations=())
    bad = replace(artifact, programs={**artifact.programs, "tc_egress": broken})
    before = open_files()
    with pytest.raises(VerifierError):
        load_generation(bad, fds, config_record(), log_dir=tmp_path)
    assert open_files() <= before


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["call_xdp_3_a", "call_xdp_3_b"], "claim one tail call slot"),
        (["call_tc_3_a"], "no such slot in lb_calls_xdp"),
        (["call_xdp_64_a"], "no such slot in lb_calls_xdp"),
    ],
)
def test_bad_tail_call_names_are_refused(names, message):
    with pytest.raises(CompileError, match=message):
        call_slots({name: Program(name, "u", "xdp", b"", ()) for name in names})


def test_an_old_kernel_is_refused_before_anything_happens(monkeypatch):
    monkeypatch.setattr(loader.os, "uname", lambda: os.uname_result(("Linux", "n", "5.10.0-28-amd64", "v", "x86_64")))
    with pytest.raises(Unsupported, match=r"needs Linux 5\.15 or newer.*this is Linux 5\.10\.0-28-amd64") as caught:
        loader.require_kernel()
    assert caught.value.exit_code == 77


def test_run_reports_a_refusal_of_the_kernel():
    from lbagent.errors import KernelError

    with pytest.raises(KernelError, match="test run on an XDP program failed"):
        test_run.run_xdp(0, PACKET)
