"""No code parses the text of a message or an error: these have fields. Exceptions for other programs' texts are listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "lbagent"
# Texts of other programs without fields: the file, and the expression that reads it.
FOREIGN = {
    ("kube/reflector.py", "TOO_LARGE_TEXT in str(error)"),  # servers before 1.19 name no cause
}
PARSERS = {
    "startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix", "find", "index",
    "replace",
}  # fmt: skip
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer"}  # of a compiled pattern, or of `re`
# attributes and names whose value is a sentence for an operator
SENTENCES = {"problem", "message", "remedy", "advice", "strerror"}


def is_sentence(node: ast.expr, caught: frozenset[str]) -> bool:
    """Return whether an expression is the text of an error or a field of a message; `caught` are names of errors and of texts."""
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in caught
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Attribute(attr=name)]):
            return name in SENTENCES | {"error", "failure"}
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="args")):
            return name in caught
        case ast.Attribute(attr=name):
            return name in SENTENCES
        case ast.Name(id=name):
            return name in SENTENCES or f"{name}:text" in caught
        case _:
            return False


def names_of_errors(tree: ast.AST) -> frozenset[str]:
    """Return the names that `except` binds, and as `NAME:text` the names of their texts."""
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    texts = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if is_sentence(value, frozenset(errors)):
                texts.add(f"{target}:text")
    return frozenset(errors | texts)


def readings(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that parse a sentence, or compare it with a text in the code."""
    caught = names_of_errors(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                if is_sentence(right, caught) and (is_constant(left) or isinstance(right, ast.Call)):
                    yield node
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                sides = (is_sentence(left, caught), is_sentence(right, caught))
                is_text = all(isinstance(each, ast.Call) for each in (left, right))  # errors have a key for comparisons
                if (sides[0] and is_constant(right)) or (sides[1] and is_constant(left)) or (any(sides) and is_text):
                    yield node
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
                is_told = isinstance(value, ast.Attribute) and value.attr in ("reason", "subject")
                is_parser = name in PARSERS and (is_told or is_sentence(value, caught)) and arguments
                if is_parser or (name in PATTERNS and any(is_sentence(each, caught) for each in arguments)):
                    yield node


def is_constant(node: ast.expr) -> bool:
    """Return whether it is a text of the code: a literal that is not '', or a name in capitals."""
    match node:
        case ast.Constant(value=str() as text):
            return bool(text)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.JoinedStr():
            return True
        case _:
            return False


def test_no_code_reads_the_text_of_a_message() -> None:
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {(str(path.relative_to(PACKAGE)), ast.unparse(node)) for node in readings(tree)}
    assert found == FOREIGN


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("try: f()\nexcept E as error:\n  g('full' in str(error))", 1),
        ("try: f()\nexcept E as error:\n  g(path in str(error))", 1),
        ("try: f()\nexcept E as error:\n  text = str(error)\n  g(text.startswith('--config'))", 1),
        ("try: f()\nexcept E as error:\n  g(PLACE.search(str(error)))", 1),
        ("try: f()\nexcept E as error:\n  g(error.args[0] == 'x', error.strerror == NOT_REGULAR)", 2),
        ("kind, _, key = message.subject.partition(' ')", 1),
        ("advice = next(text for begin, text in ADVICE if row.reason.startswith(begin))", 1),
        ("if str(before.error) != str(known): pass", 1),
        ("if each.problem == 'the node is cordoned': pass", 1),
        (
            "try: f()\nexcept E as error:\n  g(' '.join(str(error).split()), error.errno == EIO, error.key == other.key)",
            0,
        ),
        ("if message.problem or self.problem != before: log(message.problem)", 0),
        ("if message not in known: pass", 0),
    ],
)
def test_what_counts_as_reading(code: str, number: int) -> None:
    assert len(list(readings(ast.parse(code)))) == number
