"""One owner: outside of its own module the Shadow is read by its attributes and changed by its methods only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lbagent

ROOT = Path(lbagent.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path.name != "shadow.py")
CHANGES = {"add", "append", "clear", "discard", "extend", "pop", "remove", "set", "set_start", "setdefault", "update"}


def is_part_of_shadow(node: ast.AST) -> bool:
    """Return whether an expression reaches into a Shadow: shadow.dirty, self.shadow.backend_rows[family]."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name in ("shadow", "_shadow") or is_part_of_shadow(owner)


def changes(source: str) -> list[int]:
    """Return the lines in which an attribute of a Shadow is changed from outside."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            parts = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            parts = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            parts = [node.func.value]
        found += [node.lineno for part in parts if is_part_of_shadow(part)]
    return found


@pytest.mark.parametrize(
    "line",
    ["shadow.dirty = set()", "self.shadow.refs[3] = 1", "self._shadow.dirty |= found", "del shadow.frontends[key]",
     "shadow.orphans.append(1)", "self.shadow.backend_rows[family].set(1, row)"],
)  # fmt: skip
def test_the_check_sees_every_kind_of_change(line: str) -> None:
    assert changes(line) == [1]
    assert (
        changes("self.shadow = restore(maps).shadow\nshadow.set_row(family, 1, row)\nshadow.rows[family].get(1)") == []
    )


def test_no_other_module_changes_a_shadow() -> None:
    found = {str(path.relative_to(ROOT)): lines for path in FILES if (lines := changes(path.read_text()))}
    assert found == {}
