"""A syntax tree of the C headers: of function bodies and of macros that are expressions, as far as mutants need one.

Written for the C of lbagent/bpf/include. What it cannot read (a macro that is no expression, an initialiser in braces) has no nodes and
so no mutants: `parse` never fails on a file. Positions are character offsets into the text as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<directive>^[ \t]*\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<op><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||\#\#|[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]\#\\])""",
    re.VERBOSE | re.MULTILINE,
)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+\w+(?:\([^)]*\))?", re.MULTILINE)
_TYPEDEF = re.compile(r"\btypedef\b[^;{]*?(?:\{[^}]*\})?[^;{}]*?(\w+)\s*;")

_LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %")
PRECEDENCE = {op: level for level, ops in enumerate(_LEVELS, 1) for op in ops.split()}
ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="))
_BASE_TYPES = frozenset(
    [
        "void",
        "bool",
        "char",
        "int",
        "long",
        "short",
        "unsigned",
        "signed",
        "const",
        "volatile",
        "struct",
        "union",
        "enum",
        "static",
        "u8",
        "u16",
        "u32",
        "u64",
        "s8",
        "s16",
        "s32",
        "s64",
        "__be16",
        "__be32",
        "__u8",
        "__u16",
        "__u32",
        "__u64",
        "__s64",
    ]
)
_TAGGED = frozenset(("struct", "union", "enum"))
_OPAQUE_CALLS = frozenset(("sizeof", "__builtin_offsetof", "_Static_assert", "asm", "_Pragma", "typeof"))
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, frozenset(")]}")


class Unreadable(Exception):
    """The reader does not support this C."""


@dataclass(eq=False)
class Node:
    """A piece of the text. `op` is an operator, a name or a keyword; `kids` are in the order of the text."""

    kind: str  # name number call member index unary postfix binary assign cond cast paren opaque | stmt block if loop label decl
    start: int
    end: int
    op: str = ""
    kids: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Yield the node and everything below it."""
        yield self
        for kid in self.kids:
            yield from kid.walk()


@dataclass(frozen=True)
class Token:
    """A word of C."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Tree:
    """What was read of a file: bodies of functions and of macros."""

    text: str
    functions: list[Node]
    macros: list[Node]
    coarse: bool = False  # a mark at each function is enough


def type_names(texts: list[str]) -> frozenset[str]:
    """Return the names that stand for types in these files."""
    return _BASE_TYPES.union(*(set(_TYPEDEF.findall(_without_comments(text))) for text in texts), {"lb_addr", "lb_ctx"})


def parse(text: str, types: frozenset[str]) -> Tree:
    """Return the tree of a file."""
    clean = _without_comments(text)
    tokens = _tokens(_without_directives(clean), 0)
    functions, at, depth = [], 0, 0
    while at < len(tokens):
        if tokens[at].text == "{" and not depth and at and tokens[at - 1].text == ")":
            reader = Reader(tokens, at, types)
            functions.append(reader.block())
            at = reader.at
            continue
        depth += {"{": 1, "}": -1}.get(tokens[at].text, 0)
        at += 1
    return Tree(text, functions, list(_macros(clean, types)))


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _without_directives(text: str) -> str:
    lines, inside = [], False
    for line in text.split("\n"):
        inside = inside or line.lstrip().startswith("#")
        lines.append(" " * len(line) if inside else line)
        inside = inside and line.endswith("\\")
    return "\n".join(lines)


def _tokens(text: str, offset: int) -> list[Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable(text[at : at + 20])
        if match.lastgroup != "space":
            found.append(Token(str(match.lastgroup), match[0], offset + at, offset + match.end()))
        at = match.end()
    return found


def _macros(clean: str, types: frozenset[str]) -> Iterator[Node]:
    """Yield the bodies of macros that are one expression."""
    for match in _MACRO.finditer(clean):
        end = match.end()
        while (end := clean.find("\n", end)) >= 0 and clean[end - 1] == "\\":
            end += 1
        end = len(clean) if end < 0 else end
        body = clean[match.end() : end].replace("\\\n", " \n")
        try:
            reader = Reader(_tokens(body, match.end()), 0, types)
            node = reader.expression()
        except (Unreadable, IndexError):
            continue
        if reader.at == len(reader.tokens):
            yield node


class Reader:
    """Reads statements and expressions from tokens, from `at` on."""

    def __init__(self, tokens: list[Token], at: int, types: frozenset[str]) -> None:
        self.tokens, self.at, self.types = tokens, at, types

    def peek(self, ahead: int = 0) -> str:
        """Return the text of a token to come, '' behind the last one."""
        return self.tokens[self.at + ahead].text if self.at + ahead < len(self.tokens) else ""

    def take(self, wanted: str = "") -> Token:
        """Return the next token. Raises Unreadable where it is not the wanted one."""
        if self.at >= len(self.tokens) or (wanted and self.peek() != wanted):
            raise Unreadable(f"{self.peek()} instead of {wanted}")
        self.at += 1
        return self.tokens[self.at - 1]

    # --- statements ---

    def block(self) -> Node:
        """Read `{ ... }`; a statement that is not understood is skipped."""
        node = Node("block", self.take("{").start, 0)
        while self.peek() != "}":
            at = self.at
            try:
                node.kids.append(self.statement())
            except Unreadable:
                self.at = at
                node.kids.append(self._skipped())
        node.end = self.take("}").end
        return node

    def _skipped(self) -> Node:
        start = self.tokens[self.at].start
        while self.peek() not in {";", "{", "}"}:
            self._balanced() if self.peek() in {"(", "["} else self.take()
        self._balanced() if self.peek() == "{" else self.take(";")
        return Node("opaque", start, self.tokens[self.at - 1].end)

    def statement(self) -> Node:
        """Read one statement."""
        word, start = self.peek(), self.tokens[self.at].start
        if word == "{":
            return self.block()
        if word == ";":
            return Node("opaque", start, self.take().end)
        if word in {"if", "while", "switch"}:
            self.take()
            self.take("(")
            node = Node("if" if word == "if" else "loop", start, 0, word, [self.expression()])
            self.take(")")
            node.kids.append(self.statement())
            if word == "if" and self.peek() == "else":
                self.take()
                node.kids.append(self.statement())
            node.end = node.kids[-1].end
            return node
        if word == "for":
            self.take()
            self._balanced()
            body = self.statement()
            return Node("loop", start, body.end, "for", [body])
        if word == "NO_UNROLL":
            return Node("opaque", start, self.take().end)
        if word in {"case", "default"} or (self.peek(1) == ":" and self.tokens[self.at].kind == "name"):
            while self.take().text != ":":
                pass
            return Node("label", start, self.tokens[self.at - 1].end)
        return self._simple(word, start)

    def _simple(self, word: str, start: int) -> Node:
        if word in {"break", "continue", "goto", "return", "do"}:
            self.take()
            if word == "do":
                body = self.statement()
                self.take("while")
                self._balanced()
                return Node("loop", start, self.take(";").end, "do", [body])
            kids = [] if self.peek() == ";" else [self.expression()]
            return Node("stmt", start, self.take(";").end, word, kids)
        if self._starts_declaration():
            return self._declaration(start)
        kid = self.expression()
        return Node("stmt", start, self.take(";").end, "", [kid])

    def _starts_declaration(self) -> bool:
        first = self.peek()
        return first in self.types or (
            self.tokens[self.at].kind == "name"
            and self.at + 1 < len(self.tokens)
            and self.tokens[self.at + 1].kind == "name"
        )

    def _declaration(self, start: int) -> Node:
        node = Node("decl", start, 0)
        while self.peek() != ";":
            if self.peek() == "=" and self.peek(1) != "{":
                self.take()
                node.kids.append(self.assignment())
            elif self.peek() in _OPENING:
                self._balanced()
            else:
                self.take()
        node.end = self.take(";").end
        return node

    def _balanced(self) -> None:
        """Step over a bracket and what it holds."""
        depth = 0
        while True:
            token = self.take()
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if not depth:
                return

    # --- expressions ---

    def expression(self) -> Node:
        """Read an expression, commas included."""
        node = self.assignment()
        while self.peek() == ",":
            self.take()
            right = self.assignment()
            node = Node("opaque", node.start, right.end, ",", [node, right])
        return node

    def assignment(self) -> Node:
        """Read an expression without commas."""
        left = self._conditional()
        if self.peek() in ASSIGNMENTS:
            op = self.take().text
            right = self.assignment()
            return Node("assign", left.start, right.end, op, [left, right])
        return left

    def _conditional(self) -> Node:
        node = self._binary(1)
        if self.peek() != "?":
            return node
        self.take()
        chosen = self.expression()
        self.take(":")
        other = self._conditional()
        return Node("cond", node.start, other.end, "?", [node, chosen, other])

    def _binary(self, level: int) -> Node:
        left = self._unary()
        while PRECEDENCE.get(self.peek(), 0) >= level:
            op = self.take().text
            right = self._binary(PRECEDENCE[op] + 1)
            left = Node("binary", left.start, right.end, op, [left, right])
        return left

    def _unary(self) -> Node:
        token = self.tokens[self.at] if self.at < len(self.tokens) else self.take()
        if token.text in {"!", "~", "-", "+", "*", "&", "++", "--"}:
            self.take()
            kid = self._unary()
            return Node("unary", token.start, kid.end, token.text, [kid])
        if token.text == "(" and self._is_type(self.at + 1):
            self._balanced()
            if self.peek() == "{":
                raise Unreadable("compound literal")
            kid = self._unary()
            return Node("cast", token.start, kid.end, "", [kid])
        return self._postfix(self._primary())

    def _is_type(self, at: int) -> bool:
        """Return whether the tokens from `at` up to the closing bracket name a type."""
        first = self.tokens[at].text
        if first not in self.types:
            return False
        depth = 0
        while depth or self.tokens[at].text != ")":
            text = self.tokens[at].text
            depth += (text == "(") - (text == ")")
            if not (self.tokens[at].kind == "name" or text in "*()"):
                return False
            at += 1
        return True

    def _primary(self) -> Node:
        token = self.take()
        if token.text == "(":
            if self.peek() == "{":
                raise Unreadable("statement expression")
            kid = self.expression()
            return Node("paren", token.start, self.take(")").end, "", [kid])
        if token.kind not in {"name", "number", "string"} or token.text in _TAGGED:
            raise Unreadable(token.text)
        return Node(token.kind, token.start, token.end, token.text)

    def _postfix(self, node: Node) -> Node:
        while True:
            op = self.peek()
            if op == "(":
                node = self._call(node)
            elif op == "[":
                self.take()
                index = self.expression()
                node = Node("index", node.start, self.take("]").end, "", [node, index])
            elif op in {".", "->"}:
                self.take()
                node = Node("member", node.start, self.take().end, op, [node])
            elif op in {"++", "--"}:
                node = Node("postfix", node.start, self.take().end, op, [node])
            else:
                return node

    def _call(self, callee: Node) -> Node:
        node = Node("call", callee.start, 0, callee.op)
        if callee.op in _OPAQUE_CALLS or self.peek(1) in self.types:
            self._balanced()
            node.kind, node.end = "opaque", self.tokens[self.at - 1].end
            return node
        self.take("(")
        while self.peek() != ")":
            node.kids.append(self.assignment())
            if self.peek() == ",":
                self.take()
        node.end = self.take(")").end
        return node
