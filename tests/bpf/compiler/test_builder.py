"""Artifact: built once, reused if nothing changed, rejected if it does not fit."""

from __future__ import annotations

import json

import pytest

from lbagent.bpf.compiler import artifact as artifacts
from lbagent.bpf.compiler import builder
from lbagent.errors import CompileError, LayoutMismatch
from lbagent.kernel.opcodes import LD_IMM64, PSEUDO_MAP_FD, decode, insn
from tests.bpf.support import tiny_units


def test_all_programs_and_their_maps_are_found(artifact):
    assert sorted(artifact.programs) == ["call_xdp_5_second", "tc_after_xdp", "tc_egress", "tc_ingress", "xdp"]
    second = artifact.programs["call_xdp_5_second"]
    assert {(item.map_name, item.value) for item in second.relocations} == {
        ("lb_scratch", False), ("lb_metrics", True), ("lb_config", True), ("lb_nexthop", True),
    }  # fmt: skip


def test_relocating_puts_each_descriptor_into_its_instruction(artifact):
    program = artifact.programs["xdp"]
    names = {item.map_name for item in program.relocations}
    fds = {name: 70 + index for index, name in enumerate(sorted(names))}
    code = program.relocated(fds)
    for item in program.relocations:
        word = decode(code, item.index)
        assert (word.opcode, word.src, word.imm) == (LD_IMM64, 2 if item.value else 1, fds[item.map_name])


def test_a_map_number_that_does_not_exist_is_refused():
    insns = insn(LD_IMM64, 1, PSEUDO_MAP_FD, imm=999) + insn(0)
    with pytest.raises(CompileError, match="loads map number 999"):
        artifacts.find_relocations("p", insns)


def test_the_second_build_compiles_nothing(tmp_path, monkeypatch):
    first = builder.build(tmp_path / "a.json", units=tiny_units())
    monkeypatch.setattr(builder, "compile_unit", lambda *_: pytest.fail("compiled again"))
    assert builder.build(tmp_path / "a.json", units=tiny_units()) == first


@pytest.mark.long
def test_only_the_unit_that_changed_is_compiled(tmp_path, monkeypatch):
    builder.build(tmp_path / "a.json", units=tiny_units())
    real, compiled = builder.compile_unit, []

    def note(unit, text, flags):
        compiled.append(unit.name)
        return real(unit, text, flags)

    monkeypatch.setattr(builder, "compile_unit", note)
    xdp, tc = tiny_units()
    made = builder.build(tmp_path / "a.json", units=(xdp, tiny_units(2)[1]))
    assert compiled == [tc.name]
    assert sorted(made.programs) == ["call_xdp_5_second", "tc_after_xdp", "tc_egress", "tc_ingress", "xdp"]


def test_without_bcc_a_fitting_artifact_is_used_and_a_stale_one_refused(tmp_path, monkeypatch):
    builder.build(tmp_path / "a.json", units=tiny_units())
    monkeypatch.setattr(builder, "bcc_version", lambda: "")
    assert builder.build(tmp_path / "a.json", units=tiny_units()).programs
    with pytest.raises(CompileError, match="older than the C sources.*apt install python3-bpfcc"):
        builder.build(tmp_path / "a.json", units=tiny_units(2))


@pytest.mark.long
def test_an_agent_takes_programs_of_another_bcc_and_a_build_makes_them_anew(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    monkeypatch.setattr(builder, "UNITS", tiny_units())
    builder.build(path, units=tiny_units())
    monkeypatch.setattr(builder, "bcc_version", lambda: "9.9")
    assert builder.ensure_artifact(path).bcc != "9.9"
    assert builder.build(path, units=tiny_units()).bcc == "9.9"


def test_one_program_name_in_two_units_is_refused(tmp_path):
    xdp, _ = tiny_units()
    twin = builder.Unit("twin", xdp.path, xdp.context, xdp.flags)
    with pytest.raises(CompileError, match="is defined in both tiny_xdp and twin"):
        builder.build(tmp_path / "a.json", units=(xdp, twin))


def test_save_and_load_keep_everything(artifact, tmp_path):
    artifact.save(tmp_path / "copy.json")
    assert artifacts.load(tmp_path / "copy.json") == artifact
    assert [path.name for path in tmp_path.iterdir()] == ["copy.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}', '{"format": 2}', "[1]", "[" * 100_000])
def test_what_is_no_artifact_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CompileError, match="lbagent bpf build"):
        artifacts.load(tmp_path / "a.json")


@pytest.mark.parametrize("whole", [True, False])
def test_another_format_is_named(artifact, tmp_path, whole):
    """Whatever else is in the file: a later format may have other fields."""
    artifact.save(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text()) if whole else {}
    (tmp_path / "a.json").write_text(json.dumps({**data, "format": artifacts.FORMAT + 1}))
    with pytest.raises(CompileError, match=f"format {artifacts.FORMAT + 1}, this lbagent reads {artifacts.FORMAT}"):
        artifacts.load(tmp_path / "a.json")


@pytest.mark.parametrize("field", ["insns", "relocations", "name"])
def test_a_program_that_is_none_is_refused(artifact, tmp_path, field):
    artifact.save(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    data["programs"][0][field] = "*"
    if field == "name":
        del data["programs"][0][field]
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(CompileError, match="is not an lbagent artifact"):
        artifacts.load(tmp_path / "a.json")


def test_another_layout_is_refused_by_name(artifact, tmp_path):
    artifact.save(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    data["layouts"]["record"]["lb4_key"][0][0] = "u16"
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(LayoutMismatch, match="record lb4_key was compiled as .*'u16'.*nothing was loaded"):
        artifacts.check(artifacts.load(tmp_path / "a.json"), "a.json")


def test_another_processor_is_refused(artifact, monkeypatch):
    monkeypatch.setattr(artifacts.platform, "machine", lambda: "riscv64")
    with pytest.raises(LayoutMismatch, match="this machine is riscv64"):
        artifacts.check(artifact, "a.json")
