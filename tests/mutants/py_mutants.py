"""Mutants of Python modules, all of a sample at once: each is a condition on `SWITCH(number)` in the module's tree.

Only code inside functions is changed, for the rest runs when the module is imported. Messages, annotations and log lines stay.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.machinery
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.mutants.mutant import ROOT, Mutant, one_line

SWITCH = "__mutant__"

_SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Switch:
    """Returns whether a mutant is active, and records which ones were reached."""

    def __init__(self) -> None:
        self.active = -1
        self.reached: set[int] = set()

    def __call__(self, number: int) -> bool:
        """Return whether this mutant is active."""
        self.reached.add(number)
        return number == self.active


@dataclass(eq=False)
class Edit:
    """A change of one node, made from the node as it was."""

    node: ast.AST
    new: ast.AST


def edits(tree: ast.Module) -> list[Edit]:
    """Return every mutant of a module, in the order of the text."""
    found: list[Edit] = []
    for statement in tree.body:
        _search(statement, inside=False, found=found)
    return found


def _search(node: ast.AST, *, inside: bool, found: list[Edit]) -> None:
    if inside and _is_told(node):
        return
    if inside:
        found += [Edit(node, new) for new in _changes(node)]
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "args", "type_params"} and not isinstance(
            node, ast.Call
        ):
            continue
        for kid in value if isinstance(value, list) else [value]:
            if isinstance(kid, ast.AST):
                _search(kid, inside=inside or (isinstance(node, _FUNCTIONS) and name == "body"), found=found)


def _is_told(node: ast.AST) -> bool:
    """Return whether a node is only for people (a log line, an error's text, a docstring), or only lets other tasks run (a yield)."""
    if isinstance(node, ast.JoinedStr | ast.FormattedValue):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and not node.orelse and all(map(_is_pause, node.body)):
        return True
    if _is_pause(node):
        return True
    call = node.value if isinstance(node, ast.Expr) else node
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in {"log", "logger"}
    )


def _is_pause(node: ast.AST) -> bool:
    """Return whether a statement is a yield of nothing, as in model/cooperative.py."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Yield)
        and (node.value.value is None or (isinstance(node.value.value, ast.Constant) and node.value.value.value == ""))
    )


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.expr):
        yield from _of_expression(node)
    elif isinstance(node, ast.stmt):
        yield from _of_statement(node)


def _of_expression(node: ast.expr) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARISONS[type(node.ops[0])]:
            yield _with(node, ops=[other()])
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = [value for position, value in enumerate(node.values) if position != index]
            yield rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPS and not _is_text(node):
        yield _with(node, op=_SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in {int, bool}:
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.If):
        yield _with(node, test=ast.Constant(True))
        yield _with(node, test=ast.Constant(False))
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in _SWAPS:
            yield _with(node, op=_SWAPS[type(node.op)]())
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield _with(node, value=ast.Constant(None))
    elif (
        isinstance(node, ast.Raise | ast.Delete | ast.Continue | ast.Break)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await | ast.YieldFrom | ast.Yield))
        or (
            isinstance(node, ast.Assign)
            and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        )
    ):
        yield ast.Pass()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def describe(text: str, path: str) -> list[Mutant]:
    """Return the mutants of a module as the report shows them."""
    lines = text.encode().split(b"\n")
    return [_described(lines, path, position, edit) for position, edit in enumerate(edits(ast.parse(text)))]


def _described(lines: list[bytes], path: str, position: int, edit: Edit) -> Mutant:
    node, new = edit.node, edit.new
    if isinstance(node, ast.If) and isinstance(new, ast.If):  # only its condition differs
        node, new = node.test, new.test
    assert isinstance(node, ast.expr | ast.stmt)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = b"\n".join(lines[first : last + 1])
    after = (
        lines[first][: node.col_offset]
        + ast.unparse(ast.fix_missing_locations(copy.deepcopy(new))).encode()
        + lines[last][node.end_col_offset :]
    )
    return Mutant(path, position, node.lineno, one_line(before.decode()), one_line(after.decode()))


def with_switches(text: str, numbers: Mapping[int, int]) -> ast.Module:
    """Return the module's tree with these mutants behind switches: position in the file -> number of the switch."""
    tree = ast.parse(text)
    chosen: dict[ast.AST, list[tuple[int, ast.AST]]] = defaultdict(list)
    for position, edit in enumerate(edits(tree)):
        if position in numbers:
            chosen[edit.node].append((numbers[position], copy.deepcopy(edit.new)))
    return ast.fix_missing_locations(_Switches(chosen).visit(tree))


class _Switches(ast.NodeTransformer):
    """Puts the changed nodes beside the old ones, under a condition."""

    def __init__(self, chosen: Mapping[ast.AST, list[tuple[int, ast.AST]]]) -> None:
        self._chosen = chosen

    def visit(self, node: ast.AST) -> ast.AST:
        out = self.generic_visit(node)
        for number, new in self._chosen.get(node, ()):
            asks = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(number)], [])
            out = ast.IfExp(asks, new, out) if isinstance(new, ast.expr) else ast.If(asks, [new], [out])
            ast.copy_location(out, node)
        return out


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules with switches: {path: {position: number}}. Nothing is written anywhere."""

    def __init__(self, switch: Switch, numbers: Mapping[str, Mapping[int, int]]) -> None:
        self._switch = switch
        self._numbers = {_module_name(path): (ROOT / path, chosen) for path, chosen in numbers.items()}

    def install(self) -> None:
        """Serve every import from now on. Raises RuntimeError where a module has been imported before."""
        if early := self._numbers.keys() & sys.modules.keys():
            raise RuntimeError(f"imported before its mutants: {', '.join(sorted(early))}")
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return the way to a module of the sample, None for any other."""
        if name not in self._numbers:
            return None
        return importlib.util.spec_from_file_location(
            name, self._numbers[name][0], loader=self, submodule_search_locations=None
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code with switches."""
        path, chosen = self._numbers[module.__name__]
        vars(module)[SWITCH] = self._switch
        tree = with_switches(path.read_text(encoding="utf-8"), chosen)
        exec(compile(tree, str(path), "exec", dont_inherit=True), vars(module))


def _module_name(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
