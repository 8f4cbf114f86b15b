"""Mutants of the C headers, many of them in one text: each is a branch on `MUTANT(number)`, a constant that is chosen at load.

A compilation costs more than a hundred runs, so a batch of mutants is compiled at once. A rewritten text keeps its line numbers.
`PLACE(number)` marks the places of the text that were executed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.mutants.c_tree import Node, Tree, parse, type_names
from tests.mutants.mutant import ROOT, Mutant, one_line

_SWAPS = {
    "+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<",
    "<": "<=", "<=": "<", ">": ">=", ">=": ">",
}  # fmt: skip
_ASSIGNMENT_SWAPS = {"+=": "-=", "-=": "+=", "|=": "=", "&=": "=", "^=": "=", "<<=": ">>=", ">>=": "<<=", "*=": "+="}
_TRUTHS = frozenset(("<", "<=", ">", ">=", "==", "!=", "&&", "||"))
# hints for the compiler and memory order: their effect is visible only on another processor or in the instructions
# (and where __builtin_unreachable is behind a switch no build loads)
_HINTS = frozenset(
    ("MB", "OPAQUE", "FENCE", "FORGET", "__builtin_expect", "__builtin_unreachable", "PKT_REPARSE", "RACE_POINT")
)
_WRAPPERS = frozenset(("LIKELY", "UNLIKELY"))


@dataclass(frozen=True)
class Edit:
    """A change of one node: `form` is the way it is written, `new` the replacement."""

    node: Node
    form: str  # operator assignment number true false unary drop zero
    new: str = ""


# What stands in one program up to seven times: with a mark at each branch the verifier gives up (more than a million instructions).
# The last two are in the program of replies, which is longest while SNAT slots are being moved.
_COARSE = ("lbagent/bpf/include/flow/", "lbagent/bpf/include/forward/fwd.h", "lbagent/bpf/include/program/reply.h")
# The second repeats the condition of the first: with a mark in between the compiler keeps both, and the verifier treats them as two.
_UNMARKED = frozenset(("pkt_segment_len", "parse_full_l4"))
_NAME = re.compile(r"(\w+)\([^()]*\)\s*$")
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(if|el|endif)", re.MULTILINE)


def read_trees(paths: Sequence[Path]) -> dict[str, Tree]:
    """Return the trees of headers by their paths in the checkout."""
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    types = type_names(
        [path.read_text(encoding="utf-8") for path in (ROOT / "lbagent" / "bpf" / "include").rglob("*.h")]
    )
    return {path: replace(parse(text, types), coarse=path.startswith(_COARSE)) for path, text in texts.items()}


def edits(tree: Tree) -> list[Edit]:
    """Return every mutant of a file, in the order of the text."""
    found: list[Edit] = []
    for body in (*tree.functions, *tree.macros):
        found += _below(body, "")
    return sorted(found, key=lambda edit: (edit.node.start, edit.node.end, edit.form, edit.new))


def _below(node: Node, context: str) -> Iterator[Edit]:
    """Yield the edits of a node and of all below. `context` is where its truth counts: if, &&, ||, value or nowhere ('')."""
    if node.kind == "call" and node.op in _HINTS:
        return
    yield from _of(node, context)
    for kid in node.kids:
        yield from _below(kid, _context(node, kid, context))


def _context(node: Node, kid: Node, context: str) -> str:
    if node.kind == "binary" and node.op in {"&&", "||"}:
        return node.op
    if node.kind == "paren" or (node.kind == "call" and node.op in _WRAPPERS):
        return context
    if kid is node.kids[0] and node.kind in {"if", "cond"}:
        return "if"
    return "value" if node.op == "return" and node.kind == "stmt" else ""


def _of(node: Node, context: str) -> Iterator[Edit]:
    yield from _truth(node, context)
    if node.kind == "binary" and node.op in _SWAPS and not _is_frame_bound(node):
        yield Edit(node, "operator", _SWAPS[node.op])
    elif node.kind == "assign" and node.op in _ASSIGNMENT_SWAPS:
        yield Edit(node, "assignment", _ASSIGNMENT_SWAPS[node.op])
    elif node.kind == "unary" and node.op in {"~", "-"}:
        yield Edit(node, "unary")
    elif node.kind == "number":
        yield Edit(node, "number", _other_number(node.op))
    elif node.kind == "name" and node.op in {"true", "false"}:
        yield Edit(node, "number", "false" if node.op == "true" else "true")
    elif node.kind == "name" and node.op.startswith("REASON_") and node.op != "REASON_SLOTS":
        yield Edit(node, "number", f"({node.op} ^ 1)")
    elif node.kind == "stmt" and (node.op in {"break", "continue"} or (not node.op and node.kids[0].op not in _HINTS)):
        kid = node.kids[0] if node.kids else node
        if kid.kind == "assign" and kid.op == "=" and _is_local(kid.kids[0]):
            # without any value the compiler may take the one it likes, and it likes the one that was dropped
            if kid.kids[1].op not in {"0", "false", "NULL"}:
                yield Edit(kid.kids[1], "zero")
        else:
            yield Edit(node, "drop")


def _is_frame_bound(node: Node) -> bool:
    """Return whether a comparison is the one from which the verifier derives the length of the frame."""
    return node.op in {"<", "<=", ">", ">="} and any(kid.kind == "name" and kid.op == "end" for kid in node.kids)


def _is_local(node: Node) -> bool:
    """Return whether this is a variable of the function or a part of one."""
    return node.kind == "name" or (node.kind == "member" and node.op == "." and _is_local(node.kids[0]))


def _truth(node: Node, context: str) -> Iterator[Edit]:
    """Yield the edits by which a condition is always or never so; of a part of && or || the one that leaves it out."""
    if node.kind == "paren" or (node.kind == "call" and node.op in _WRAPPERS):
        return  # its inside is what counts
    is_truth = (node.kind == "binary" and node.op in _TRUTHS) or (node.kind == "unary" and node.op == "!")
    if context == "if" or (context == "value" and is_truth):
        yield Edit(node, "true")
        yield Edit(node, "false")
    elif context in {"&&", "||"} and not (node.kind == "binary" and node.op == context):
        yield Edit(node, "true" if context == "&&" else "false")


def _other_number(text: str) -> str:
    digits = text.rstrip("uUlL")
    suffix = text[len(digits) :]
    if digits.lower().startswith("0x"):
        return f"{int(digits, 16) ^ 1:#x}{suffix}"
    return f"{int(digits) + 1}{suffix}"


def describe(tree: Tree, path: str) -> list[Mutant]:
    """Return the mutants of a file as the report shows them."""
    return [_described(tree.text, path, position, edit) for position, edit in enumerate(edits(tree))]


def _described(text: str, path: str, position: int, edit: Edit) -> Mutant:
    node = edit.node
    begin = text.rfind("\n", 0, node.start) + 1
    end = text.find("\n", node.end)
    end = len(text) if end < 0 else end
    after = text[begin : node.start] + _plain(text, edit) + text[node.end : end]
    line = text.count("\n", 0, node.start) + 1
    return Mutant(path, position, line, one_line(text[begin:end]), one_line(after))


def _plain(text: str, edit: Edit) -> str:
    """Return what stands in the place of the node in a text of this mutant alone."""
    node = edit.node
    if edit.form in {"operator", "assignment"}:
        left, right = node.kids
        between = text[left.end : right.start].replace(node.op, edit.new, 1)
        return text[node.start : left.end] + between + text[right.start : node.end]
    if edit.form == "unary":
        return text[node.kids[0].start : node.end]
    if edit.form in {"true", "false"}:  # what the condition does is done
        return f"(({text[node.start : node.end]}) {'|| 1' if edit.form == 'true' else '&& 0'})"
    return {"number": edit.new, "drop": ";", "zero": "0"}[edit.form]


def mutated_text(tree: Tree, position: int) -> str:
    """Return the text of one mutant alone, without a switch. Its lines may be fewer."""
    edit = edits(tree)[position]
    return tree.text[: edit.node.start] + _plain(tree.text, edit) + tree.text[edit.node.end :]


def batch_text(tree: Tree, numbers: Mapping[int, int]) -> str:
    """Return the text with these mutants behind switches: position in the file -> number of the switch."""
    chosen: dict[Node, list[tuple[int, Edit]]] = defaultdict(list)
    for position, edit in enumerate(edits(tree)):
        if position in numbers:
            chosen[edit.node].append((numbers[position], edit))
    return _Renderer(tree.text, chosen, {}).render(tree)


def place_nodes(tree: Tree) -> list[Node]:
    """Return the statements in front of which a place is marked: the first of a block, what follows a branch or a directive (of `#if` and `#else`
    each family has one), the only one of a branch.

    Of a coarse tree only those that show whether a function is executed; where one begins with a loop or `#if` that is unknown.
    """
    functions = [body for body in tree.functions if _name_of(tree, body) not in _UNMARKED]
    if tree.coarse:
        return [kid for body in functions for kid in _first_place(tree.text, body)]
    return [kid for body in functions for node in body.walk() for kid in _places_of(tree.text, node)]


def _name_of(tree: Tree, body: Node) -> str:
    found = _NAME.search(tree.text, max(0, body.start - 400), body.start)
    return found[1] if found else ""


def _first_place(text: str, body: Node) -> list[Node]:
    kids = [kid for kid in body.kids if kid.kind in {"stmt", "if", "loop"}][:1]
    return [kid for kid in kids if kid.kind != "loop" and not _DIRECTIVE.search(text, body.start, kid.start)]


def _between_directives(text: str, block: Node) -> list[list[Node]]:
    """Return what stands in a block, in parts that directives separate."""
    parts: list[list[Node]] = [[]]
    at = block.start
    for kid in block.kids:
        if _DIRECTIVE.search(text, at, kid.start):
            parts.append([])
        parts[-1].append(kid)
        at = kid.end
    return parts


def _places_of(text: str, node: Node) -> Iterator[Node]:
    if node.kind == "block":
        for part in _between_directives(text, node):
            wanted = True
            for kid in part:
                if wanted and kid.kind in {"stmt", "if"}:  # a pragma must stay in front of its loop
                    yield kid
                    wanted = False
                wanted = wanted or kid.kind in {"if", "loop", "label"}
    elif node.kind in {"if", "loop"}:
        yield from (
            kid for kid in node.kids[node.kind == "if" or node.op in {"while", "switch"} :] if kid.kind == "stmt"
        )


def marked_text(tree: Tree, first: int) -> str:
    """Return the text with every place marked, numbered from `first`."""
    places = {node: first + index for index, node in enumerate(place_nodes(tree))}
    return _Renderer(tree.text, {}, places).render(tree)


def place_before(tree: Tree, first: int, position: int) -> int | None:
    """Return the number of the place that is executed if the mutant at `position` is; None where that is not known (a macro)."""
    node = edits(tree)[position].node
    numbers = {place: first + index for index, place in enumerate(place_nodes(tree))}
    for body in tree.functions:
        if body.start <= node.start < body.end:
            return _place_of(tree, body, node, numbers)
    return None


def _place_of(tree: Tree, within: Node, node: Node, numbers: Mapping[Node, int]) -> int | None:
    """Return the innermost place of a node: the last one in front of it in its block (of the same `#if`), or the first one there (declarations)."""
    found, kids = None, within.kids
    if within.kind == "block" and not tree.coarse:
        kids = next(
            (part for part in _between_directives(tree.text, within) if part and node.start < part[-1].end), kids
        )
    for kid in kids:
        if within.kind == "block" and kid in numbers and (found is None or kid.start <= node.start):
            found = numbers[kid]
        if kid.start <= node.start and node.end <= kid.end:
            inner = _place_of(tree, kid, node, numbers)
            found = inner if inner is not None else numbers.get(kid, found)
    return found


class _Renderer:
    """Rewrites a text, with switches and marks at some nodes."""

    def __init__(self, text: str, chosen: Mapping[Node, list[tuple[int, Edit]]], places: Mapping[Node, int]) -> None:
        self.text, self.chosen, self.places, self.newline = text, chosen, places, "\n"

    def render(self, tree: Tree) -> str:
        out, at = [], 0
        for body in sorted((*tree.functions, *tree.macros), key=lambda node: node.start):
            self.newline = "\n" if body.kind == "block" else "\\\n"
            out += [self.text[at : body.start], self.node(body)]
            at = body.end
        return "".join(out) + self.text[at:]

    def node(self, node: Node) -> str:
        found = self.chosen.get(node, ())
        operators = [(number, edit.new) for number, edit in found if edit.form == "operator"]
        out = self._operators(node, operators) if operators else self._inside(node)
        for number, edit in found:
            out = self._switch(out, number, edit)
        place = self.places.get(node)
        return out if place is None else f"{{ PLACE({place}); {out} }}"

    def _inside(self, node: Node) -> str:
        out, at = [], node.start
        for kid in node.kids:
            out += [self.text[at : kid.start], self.node(kid)]
            at = kid.end
        return "".join(out) + self.text[at : node.end]

    def _operators(self, node: Node, operators: list[tuple[int, str]]) -> str:
        """Write both sides once, for operands may be calls."""
        left, right = node.kids
        number = operators[0][0]
        a, b = f"left_{number}", f"right_{number}"
        value = f"{a} {node.op} {b}"
        for number, op in operators:
            value = f"MUTANT({number}) ? {a} {op} {b} : ({value})"
        lines = self.newline * self.text.count("\n", left.end, right.start)
        return f"({{ __auto_type {a} = ({self.node(left)}); {lines}__auto_type {b} = ({self.node(right)}); {value}; }})"

    def _switch(self, out: str, number: int, edit: Edit) -> str:
        """Put a switch around the text of a node."""
        mutant = f"MUTANT({number})"
        if edit.form == "true":
            return f"(({out}) || {mutant})"
        if edit.form == "false":
            return f"(({out}) && !{mutant})"
        if edit.form == "zero":
            value = f"value_{number}"
            return f"({{ __auto_type {value} = ({out}); {mutant} ? (__typeof__({value})){{0}} : {value}; }})"
        if edit.form == "drop":
            return f"{{ if (!{mutant}) {{ {out} }} }}"
        if edit.form in {"number", "unary", "assignment"}:
            return f"({mutant} ? ({one_line(_plain(self.text, edit))}) : ({out}))"
        return out
