"""Flattening and the generated prelude."""

from __future__ import annotations

import pytest

from lbagent.bpf.compiler import compile as compiler
from lbagent.bpf.compiler.c_source import BASE_FLAGS, constants, flatten, prelude
from lbagent.errors import CompileError
from lbagent.maps.specs import MAP_NAMES


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


def test_a_missing_include_is_named_with_its_line(tmp_path):
    (tmp_path / "main.c").write_text('\n#include "nowhere.h"\n')
    with pytest.raises(CompileError, match=r"main\.c:2: #include \"nowhere\.h\": no such file"):
        flatten(tmp_path / "main.c", ())


def test_the_compiler_agrees_with_every_layout():
    """The prelude asserts sizes and offsets; here it meets the compiler."""
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
