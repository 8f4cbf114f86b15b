"""What the comments of the C headers promise about each other, read from the sources."""

import re
from pathlib import Path

import pytest

from lbagent.bpf.build.c_source import BPF_DIR, INCLUDE_DIR

HEADERS = sorted(INCLUDE_DIR.glob("*.h"))
SOURCES = [*HEADERS, *sorted(BPF_DIR.glob("*.c"))]
MAX_LINES = 250
HOOK_CONDITION = re.compile(r"^\s*#\s*(?:if|elif|ifdef|ifndef)\b.*\bLB_HOOK_", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
HOOK_CHOICE = re.compile(r"^#if defined\(LB_HOOK_.*?^#endif", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    """Return the name a failed test shows."""
    return path.name


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_hook_headers_ask_for_the_hook(path: Path) -> None:
    """A new hook is a file of its own: no other header decides by the hook, least of all by "not XDP"."""
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
    """The build puts a header in place once: what it includes under a condition would be missing where the condition is false."""
    for choice in HOOK_CHOICE.findall(path.read_text()):
        for included in INCLUDE.findall(choice):
            assert not INCLUDE.findall((INCLUDE_DIR / included).read_text()), included


@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_header_says_what_it_contains(path: Path) -> None:
    """One screenful or two, a contract on top, included once."""
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES or path.name in TOO_LONG
    assert re.match(r"/\* SPDX-License-Identifier: [^\n]+\n \*\n \* This file contains ", text)
    assert text.count("#pragma once") == 1


TOO_LONG = {"snat.h"}
