"""The compile child: errors have the real place, the agent's process never loads bcc."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lbagent.bpf.compiler import compile as compiler
from lbagent.bpf.compiler.artifact import find_relocations
from lbagent.bpf.compiler.c_source import BASE_FLAGS
from lbagent.errors import CompileError


def compile_text(text):
    return compiler.compile_text(text, BASE_FLAGS, "lb4_xdp")


def test_an_error_starts_with_the_real_file_and_line():
    with pytest.raises(CompileError, match=r"^lbagent/bpf/include/nat\.h:41:\d+: use of undeclared identifier 'saddr'"):
        compile_text('#line 41 "lbagent/bpf/include/nat.h"\nint xdp(struct xdp_md *ctx) { return saddr; }')


def test_a_call_of_nothing_is_an_error_not_a_bad_program():
    with pytest.raises(CompileError, match=r"^/virtual/main\.c:1:38: .*function 'missing'"):
        compile_text("int xdp(struct xdp_md *ctx) { return missing(3); }")


def test_too_much_stack_ends_the_child_only():
    text = (
        "int xdp(struct xdp_md *c) { char b[600]; __builtin_memset(b, 1, 600); ((void (*)(void *))6)(b); return b[3]; }"
    )
    with pytest.raises(CompileError, match="BPF stack limit.* is exceeded"):
        compile_text(text)


def test_a_function_that_is_not_inlined_is_named():
    text = "static __attribute__((noinline)) int f(int a) { return a * 7; }\nint xdp(struct xdp_md *c) { return f(c->rx_queue_index); }"
    done = compile_text(text)
    with pytest.raises(CompileError, match="program xdp: instruction 1 calls a C function"):
        find_relocations("xdp", done.functions["xdp"])


def test_the_parent_does_not_import_bcc():
    code = (
        "import sys; from lbagent.bpf.compiler import builder, compile as c\n"
        "assert c.bcc_version(); c.compile_text('int xdp(struct xdp_md *c) { return 1; }', [], 'x')\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'bcc'], 'bcc'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_namesake_on_pypi_is_not_taken_for_bcc(tmp_path, monkeypatch):
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("class BCC: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    candidates = compiler._bcc_candidates()
    assert candidates
    assert all(tmp_path not in path.parents for path in candidates)
