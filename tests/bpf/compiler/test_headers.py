"""The contracts in the comments of the C headers, checked in the sources."""

import re
from pathlib import Path

import pytest

from lbagent.bpf.compiler.c_source import BASE_FLAGS, BPF_DIR, INCLUDE_DIR, INCLUDE_DIRS, flatten, prelude
from lbagent.bpf.compiler.compile import compile_text

HEADERS = sorted(INCLUDE_DIR.glob("*/*.h"))
BY_NAME = {path.name: path for path in HEADERS}
SOURCES = [*HEADERS, *sorted(BPF_DIR.glob("*.c"))]
HOOK_CONDITION = re.compile(r"^\s*#\s*(?:if|elif|ifdef|ifndef)\b.*\bLB_HOOK_", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
HOOK_CHOICE = re.compile(r"^#if defined\(LB_HOOK_.*?^#endif", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    """Return the name of a test case."""
    return path.name


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_hook_headers_ask_for_the_hook(path: Path) -> None:
    """A new hook is a file of its own: no other header depends on the hook, in particular not by "not XDP"."""
    found = HOOK_CONDITION.findall(path.read_text())
    assert not found or path.name.startswith("hook"), found


@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_hook_choices_name_every_hook(path: Path) -> None:
    """`#if defined(XDP) ... #elif defined(TC) ... #else #error`: an unknown hook is an error, not tc."""
    for choice in HOOK_CHOICE.findall(path.read_text()):
        assert "#error" in choice
    assert not re.search(r"#ifn?def\s+LB_HOOK_", path.read_text())


@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_headers_included_under_a_condition_include_nothing(path: Path) -> None:
    """The build inserts a header once: an include under a condition would be missing if the condition is false."""
    for choice in HOOK_CHOICE.findall(path.read_text()):
        for included in INCLUDE.findall(choice):
            assert not INCLUDE.findall(BY_NAME[included].read_text()), included


@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_header_says_what_it_contains(path: Path) -> None:
    """A contract at the top, included once."""
    text = path.read_text()
    assert re.match(r"/\* SPDX-License-Identifier: [^\n]+\n \*\n \* This file contains ", text)
    assert text.count("#pragma once") == 1


def closure(header: str) -> set[str]:
    """Return the header and all that it includes."""
    found, open_ = set(), [header]
    while open_:
        at = open_.pop()
        if at not in found:
            found.add(at)
            open_ += INCLUDE.findall(BY_NAME[at].read_text())
    return found


def test_a_name_is_there_once() -> None:
    """Includes have no folder; the build searches each folder."""
    assert len(BY_NAME) == len(HEADERS)
    assert {path.parent for path in HEADERS} == set(INCLUDE_DIRS)
    assert not list(INCLUDE_DIR.glob("*.h"))


@pytest.mark.parametrize("header", ["service.h", "select.h"])
def test_choice_of_a_backend_needs_no_packet(header: str) -> None:
    """A socket program has an address and a port, but neither a packet nor a scratch record."""
    assert not {name for name in closure(header) if name in {"parse.h", "scratch.h"} or name.startswith("hook")}


@pytest.mark.parametrize("family", [4, 6])
def test_a_program_without_packets_can_choose_a_backend(family: int, tmp_path: Path) -> None:
    """The look-up and the selection compile for a context without packets."""
    source = tmp_path / "sock.c"
    source.write_text(
        f'#define LB_FAMILY {family}\n#include "select.h"\n'
        "int connect_choose(struct bpf_sock_addr *ctx)\n{\n"
        "\tstruct lb_tuple5 t = {.frontend_port = ctx->user_port, .proto = PROTO_TCP, .scope = SCOPE_INTERNAL};\n"
        "\tlb_key key;\n\tstruct lb_service *svc = service_lookup(&t, &key);\n\n"
        "\treturn svc && !service_source(&t, svc) && (select_preferred(&t, svc) || select_slot(&t, svc, &key, 1, 0));\n}\n"
    )
    done = compile_text(prelude() + flatten(source), BASE_FLAGS, "sock")
    assert done.functions.keys() == {"connect_choose"}


@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_wire_offsets_have_names(path: Path) -> None:
    """wire.h names the fields of a packet's headers; no bare number stands for one."""
    assert not re.findall(r"\b(?:data|l3|l4|ip|tcp|icmp|quote)(?: \+ |\[)\d+\b", path.read_text())


def test_the_documentation_has_a_line_for_each_header() -> None:
    """docs/datapath.md, "The headers": one table, all files."""
    table = (BPF_DIR.parents[1] / "docs" / "datapath.md").read_text().partition("\n## The headers\n")[2]
    listed = [
        name
        for row in table.splitlines()
        for name in re.findall(r"`(\w+/\w+\.h)`", row.split("|")[1] if "|" in row else "")
    ]
    assert sorted(listed) == [f"{path.parent.name}/{path.name}" for path in HEADERS]


def contract(header: str) -> set[str]:
    """Return the names that the opening comment of a header lists, each at the start of a line indented by three."""
    comment = BY_NAME[header].read_text().partition("*/")[0]
    lines = [line[5:] for line in comment.splitlines() if re.match(r" \*   \w", line)]
    return {
        found for line in lines for found in re.findall(r"(\w+)(?:\([^)]*\))?(?:,|\s|$)", re.split(r"\s{2,}", line)[0])
    }


@pytest.mark.parametrize("hook", ["xdp", "tc"])
@pytest.mark.parametrize("part", ["hook", "hook_write"])
def test_a_hook_gives_all_primitives(part: str, hook: str) -> None:
    """What hook.h and hook_write.h list is defined in the header of each hook."""
    listed, text = contract(f"{part}.h"), BY_NAME[f"{part}_{hook}.h"].read_text()
    assert len(listed) >= 5
    for wanted in listed:
        assert re.search(rf"^(?:#define {wanted}\b|typedef .*\b{wanted};|AI \w+ {wanted}\()", text, re.MULTILINE), (
            wanted
        )
