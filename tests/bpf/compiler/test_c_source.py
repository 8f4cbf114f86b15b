"""Flattening and the generated prelude."""

from __future__ import annotations

import pytest

from lbagent.bpf.compiler import compile as compiler
from lbagent.bpf.compiler.c_source import (
    BASE_FLAGS,
    DRY_UNITS,
    UNITS,
    UnitTexts,
    constants,
    flatten,
    flow_constants,
    prelude,
    unit_text,
)
from lbagent.errors import CompileError
from lbagent.maps.flow_layout import FLOW, SNAT, BitField
from lbagent.maps.specs import MAP_NAMES
from lbagent.model.family import Family


def test_includes_are_put_in_place_once_and_lines_keep_their_names(tmp_path):
    (tmp_path / "inner.h").write_text("#pragma once\nint inner;\n")
    (tmp_path / "outer.h").write_text('#include "inner.h"\nint outer;\n')
    (tmp_path / "main.c").write_text('int a;\n#include "outer.h"\n#include "inner.h"\nint b;\n')
    text = flatten(tmp_path / "main.c", ())
    assert text.count("int inner;") == 1
    assert lines_by_origin(text) == {
        ("main.c", 1): "int a;", ("inner.h", 2): "int inner;", ("outer.h", 2): "int outer;", ("main.c", 4): "int b;",
    }  # fmt: skip


def lines_by_origin(text):
    """Follow #line as a compiler does; only lines with code."""
    found, name, number = {}, "", 0
    for line in text.splitlines():
        if line.startswith("#line"):
            number, name = int(line.split()[1]), line.split('"')[1].rsplit("/", 1)[-1]
            continue
        if line.strip():
            found[name, number] = line
        number += 1
    return found


def test_units_that_share_files_get_the_text_that_each_gets_alone():
    texts = UnitTexts()
    units = (*UNITS, *DRY_UNITS)
    assert [texts.of(unit) for unit in units] == [unit_text(unit) for unit in units]


def test_a_file_that_begins_and_ends_with_an_include(tmp_path):
    (tmp_path / "empty.h").write_text("")
    (tmp_path / "main.c").write_text('#include "empty.h"\n\n\tint a;\n# include "empty.h"\n')
    lines = flatten(tmp_path / "main.c", ()).splitlines()
    names = [str(tmp_path / name) for name in ("main.c", "empty.h")]
    assert lines == [f'#line 1 "{names[0]}"', f'#line 1 "{names[1]}"', f'#line 2 "{names[0]}"', "", "\tint a;", ""]


def test_a_missing_include_is_named_with_its_line(tmp_path):
    (tmp_path / "main.c").write_text('\n#include "nowhere.h"\n')
    with pytest.raises(CompileError, match=r"main\.c:2: #include \"nowhere\.h\": no such file"):
        flatten(tmp_path / "main.c", ())


def test_the_compiler_agrees_with_every_layout():
    """The prelude asserts sizes and offsets; here it is compiled."""
    compiler.compile_text(prelude() + "int xdp(struct xdp_md *ctx) { return 2; }", BASE_FLAGS, "prelude")


def test_a_layout_the_compiler_would_pad_is_refused():
    bad = 'struct lb4_key { u8 a; u32 b; };\n_Static_assert(sizeof(struct lb4_key) == 5, "size of lb4_key");'
    with pytest.raises(CompileError, match="size of lb4_key"):
        compiler.compile_text(bad + "int xdp(struct xdp_md *ctx) { return 2; }", BASE_FLAGS, "prelude")


def test_constants_hold_what_the_contract_names():
    found = constants()
    assert found["REASON_FWD_ESTABLISHED"] == 1
    assert found["PATH_LOCAL"] == 4
    assert found["CALL_SLOW_PATH"] == 3
    assert found["METRIC_SERVICE"] == 256
    assert f"#define MAP_lb4_service {1000 + MAP_NAMES.index('lb4_service')}\n" in prelude()
    assert (found["CT_CLOSING"], found["FIN_BACKEND"], found["FORWARD_REDIRECT"]) == (2, 2, 4)


# The constants that headers get of the layout of flows, by the names in maps/flow_layout.py.
IN_C: dict[str, tuple[dict, str]] = {
    "OWNER_CLIENT_PORT": (FLOW, "client_port"),
    "V_GENERATION": (FLOW, "value_generation"),
    "V_BACKEND": (FLOW, "backend"),
    "V_FORWARD": (FLOW, "forward"),
    "SEEN_CLIENT_HOP": (FLOW, "client_hop"),
    "SNAT_SLOT_CLIENT_PORT": (SNAT, "client_port"),
    "SNAT_META_GENERATION": (SNAT, "meta_generation"),
    "SNAT_META_STAMP": (SNAT, "stamp"),
}


@pytest.mark.parametrize("family", Family, ids=str)
def test_the_compiler_sees_the_layout_of_flows(family):
    """Shifts, widths, masks and numbers of words, in each family as flow_layout.py has them."""
    claims = {
        "E_VALUE": FLOW[family].fields["backend"].word,
        "E_SEEN": FLOW[family].fields["last_seen"].word,
        "SNAT_SLOT_META": SNAT[family].fields["stamp"].word,
    }
    for name, (records, field_name) in IN_C.items():
        field: BitField = records[family].fields[field_name]
        claims |= {f"{name}_SHIFT": field.shift, f"{name}_BITS": field.width, f"{name}_MASK": field.mask}
    assert claims.keys() <= flow_constants().keys()
    asserts = "".join(f'_Static_assert({name} == {value}ULL, "{name}");\n' for name, value in claims.items())
    text = f"#define LB_FAMILY {family}\n{asserts}int xdp(struct xdp_md *ctx) {{ return 2; }}"
    compiler.compile_text(prelude() + text, BASE_FLAGS, "prelude")


def test_the_places_of_a_family_depend_on_it():
    found = flow_constants()
    assert found["OWNER_CLIENT_PORT_SHIFT"] == "(LB_FAMILY == 4 ? 16 : 48)"
    assert found["V_BACKEND_MASK"] == "0xfffff00000000000ULL"
    assert found["VIP_SHIFT"] == "32", "the field vip of the word vip, which IPv6 fills"
    assert "CLIENT_END_SHIFT" not in found
