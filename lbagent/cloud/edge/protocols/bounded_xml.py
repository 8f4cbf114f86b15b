"""Parses untrusted XML: no document type, no entities, bounds on depth and size. Names are without namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from xml.parsers import expat

from msgspec import Struct, field

MAX_BYTES = 256 << 10  # descriptions of real routers have 2 to 40 KiB
MAX_DEPTH = 32
MAX_ELEMENTS = 5000


class BadXml(ValueError):
    """The text is not XML, or exceeds a bound."""


class Element(Struct):
    """An element; `text` is its own text, stripped."""

    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def child(self, name: str) -> Element | None:
        """Return the first child with a name."""
        return next((each for each in self.children if each.name == name), None)

    def text_of(self, name: str) -> str:
        """Return the text of the first child with a name, '' without one."""
        found = self.child(name)
        return found.text if found else ""

    def every(self, name: str) -> Iterator[Element]:
        """Iterate over the descendants with a name, in document order."""
        for each in self.children:
            if each.name == name:
                yield each
            yield from each.every(name)


def parse_xml(data: bytes) -> Element:
    """Return the root of a document. Raises BadXml."""
    if len(data) > MAX_BYTES:
        raise BadXml(f"larger than {MAX_BYTES >> 10} KiB")
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = builder.refuse_doctype
    parser.EntityDeclHandler = builder.refuse_doctype
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise BadXml(f"line {error.lineno}: {expat.ErrorString(error.code)}") from None
    except (LookupError, ValueError) as error:  # an encoding that Python lacks
        raise BadXml(str(error)) from None
    assert builder.root is not None
    return builder.root


class _Builder:
    """Builds the tree of one document."""

    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0

    def refuse_doctype(self, *_: object) -> None:
        raise BadXml("it has a document type")

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= MAX_DEPTH:
            raise BadXml(f"more than {MAX_DEPTH} levels")
        if self._count > MAX_ELEMENTS:
            raise BadXml(f"more than {MAX_ELEMENTS} elements")
        element = Element(name.rpartition(" ")[2])
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _name: str) -> None:
        element = self._open.pop()
        element.text = element.text.strip()

    def text(self, data: str) -> None:
        self._open[-1].text += data
