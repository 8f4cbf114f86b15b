"""Collects the faults of one object while its fields are read, and reads the fields of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from socket import AF_INET, inet_pton
from typing import Any, TypeVar

from msgspec.structs import replace

from lbagent.model.address import L4Type, parse_ip
from lbagent.model.backend import MAX_WEIGHT
from lbagent.model.message import Message
from lbagent.nearest_word import nearest
from lbagent.objects.decode.annotation_words import OURS
from lbagent.objects.decode.misspelling import MisspeltField
from lbagent.objects.decode.wire import Meta
from lbagent.objects.records import LastGoodObject, Origin
from lbagent.textfile.field_path import FieldPath, path_text

T = TypeVar("T")
CILIUM = "service.cilium.io/"
_OUR_PREFIX = OURS.removesuffix("/")


def seconds(text: str) -> float:
    """Return a time (RFC 3339; without a zone it is UTC) in seconds since 1970. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Report:
    """The messages of one object. `locate` finds the line of a field; without it messages have the object's own line.

    `last` finds the object's last good form, whose values a running agent keeps for faulty parts
    (objects/decode/last_good_parts.py).
    """

    def __init__(
        self,
        origin: Origin,
        locate: Callable[[FieldPath], int] | None = None,
        last: Callable[[], LastGoodObject | None] | None = None,
        *,
        kind: str = "",
        key: str = "",
    ) -> None:
        self.origin = origin
        self.kind, self.key = kind, key
        self.messages: list[Message] = []
        self.kept: dict[str, int] = {}  # fields whose last good value was kept -> its generation
        self.wrong_type_fields: set[FieldPath] = set()
        self.names_left_out: dict[FieldPath, str] = {}  # names of list items that are not readable as a whole
        self._locate = locate
        self._find_last = last
        self._last: LastGoodObject | None = None
        self._faults: dict[
            FieldPath, list[int]
        ] = {}  # a field, and each field that contains it -> numbers of its messages

    def error(self, path: FieldPath, problem: str, kept: str = "") -> None:
        """Report a part that was left out."""
        for length in range(len(path) + 1):
            self._faults.setdefault(path[:length], []).append(len(self.messages))
        self._add(path, problem, kept, warning=False)

    def wrong_type(self, path: FieldPath, problem: str, kept: str, item: Any) -> None:
        """Report a part of a wrong type; `item` is the removed part with its contents."""
        self.error(path, problem, kept)
        self.wrong_type_fields.add(path)
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            at = max(place for place, step in enumerate(path) if isinstance(step, int)) + 1
            self.names_left_out[path[:at]] = item["name"]

    def warn(self, path: FieldPath, problem: str, kept: str = "") -> None:
        """Report a valid part without effect."""
        self._add(path, problem, kept, warning=True)

    def misspelt(self, field: MisspeltField) -> None:
        """Report a misspelt field. The intended field counts as faulty if it is not given, too.

        So a running agent keeps its last good value.
        """
        number, word = len(self.messages), field.probable[-1]
        kept = f"{word} is used as it is given" if field.is_given else f"{word} counts as not given"
        self.error(field.path, f"unknown field; did you mean {word}?", f"it is ignored: {kept}")
        if not field.is_given:
            self._faults.setdefault(field.probable, []).append(number)

    def check_annotations(self, meta: Meta, known: frozenset[str]) -> None:
        """Report the annotations and labels of lbagent that have no effect on this kind of object.

        A misspelling of one of `known` (its word, or the prefix) is an error, any other unknown word a warning.
        """
        for field, what, words in (("annotations", "annotation", meta.annotations), ("labels", "label", meta.labels)):
            for key in words or ():
                if not isinstance(key, str):
                    continue
                prefix, _, word = key.partition("/")
                if prefix == _OUR_PREFIX:
                    if word in known:
                        continue
                    probable = nearest(word, known)
                elif word in known and nearest(prefix, (_OUR_PREFIX,)):
                    probable = word
                else:
                    continue
                path = ("metadata", field, key)
                if probable:
                    self.error(path, f"unknown {what}; did you mean {OURS}{probable}?", "it has no effect")
                else:
                    self.warn(path, f"unknown {what}", "it has no effect")

    def _add(self, path: FieldPath, problem: str, kept: str, *, warning: bool) -> None:
        line = self._locate(path) if self._locate and self.origin.file else self.origin.line
        text = path_text(path)
        self.messages.append(Message(problem, kept, text, self.kind, self.key, self.origin.file, line, warning))

    # --- the last good values ---

    def is_faulty(self, path: FieldPath) -> bool:
        """Return whether a field, or anything in it, has an error."""
        return path in self._faults

    @property
    def last(self) -> LastGoodObject | None:
        """The last good form of an object that has errors now."""
        if self._find_last is not None and self._faults:
            self._last, self._find_last = self._find_last(), None
        return self._last

    def last_value(self, field: str) -> Any:
        """Return the last good value of a field of this object; None if there is none."""
        last = self.last
        return getattr(last.obj, field) if last is not None else None

    def say_kept(self, path: FieldPath, what: str) -> None:
        """Add to the messages about a field that its last good value was kept."""
        last, text = self.last, path_text(path)
        assert last is not None
        generation = self.kept[text] = last.parts.get(text, last.generation)
        for number in self._faults.get(path, ()):
            self.messages[number] = replace(self.messages[number], kept=f"kept {what} of generation {generation}")

    # --- fields that more than one kind has ---

    def address(self, path: FieldPath, text: str | None, kept: str) -> bytes | None:
        """Return the packed address; None and an error if it cannot be the destination of a packet."""
        if (plain := plain_ip(text)) is not None:
            return plain
        try:
            packed = parse_ip((text or "").strip())
        except ValueError as error:
            self.error(path, str(error), kept)
            return None
        if what := special(packed):
            self.error(path, f"{text} is {what}", kept)
            return None
        return packed

    def port(self, path: FieldPath, number: int | None, kept: str) -> int:
        """Return a port of 1-65535; 0 and an error for another value."""
        if number is None:
            self.error(path, "the port is missing", kept)
        elif 1 <= number <= 65535:
            return number
        else:
            self.error(path, f"{number} is not a port of 1-65535", kept)
        return 0

    def protocol(self, path: FieldPath, text: str | None, kept: str) -> L4Type | None:
        """Return the protocol, TCP when none is given; None and an error for an unknown one. Case counts, as in Kubernetes."""
        if not text:
            return L4Type.TCP
        known = _PROTOCOLS.get(text)
        if known is None:
            self.error(path, f"unknown protocol {text!r}; TCP, UDP or SCTP is possible", kept)
        return known

    def choice(self, path: FieldPath, text: str | None, words: dict[str, T], default: str, field: str) -> T:
        """Return the value of a word; for an unknown one an error, and the last good value of `field`, else `default`."""
        if text and text not in words:
            self.error(path, f"unknown value {text!r}; one of {', '.join(words)} is possible", f"{default} is used")
        if not self.is_faulty(path):
            return words[text or default]
        for word, value in words.items():
            if value == self.last_value(field):
                self.say_kept(path, word)
                return value
        return words[default]

    def timestamp(self, meta: Meta) -> float:
        """Return creationTimestamp in seconds since 1970, 0 if there is none or it is not a time (RFC 3339)."""
        text, path = meta.creationTimestamp, ("metadata", "creationTimestamp")
        if not text:
            return self._was_created(path) if self.is_faulty(path) else 0.0
        try:
            return seconds(text)
        except ValueError:
            self.error(path, f"{text!r} is not a time", "the object counts as the youngest")
            return self._was_created(path)

    def _was_created(self, path: FieldPath) -> float:
        if not (created := self.last_value("created")):
            return 0.0
        self.say_kept(path, datetime.fromtimestamp(created, UTC).isoformat())
        return float(created)

    def weight(self, meta: Meta) -> int | None:
        """Return the weight annotation, 0-65535; None if there is none or it is invalid."""
        found = annotation(meta, "weight")
        if found is None:
            return None
        path, text = found
        if text.isascii() and text.isdecimal() and int(text) <= MAX_WEIGHT:
            return int(text)
        self.error(path, f"{text!r} is not a weight of 0-{MAX_WEIGHT}", "the default weight is used")
        last: int | None = self.last_value("weight")
        if last is not None:
            self.say_kept(path, f"weight {last}")
        return last


def plain_ip(text: str | None) -> bytes | None:
    """Return the packed address of an ordinary IPv4 text, by C code; None: `Report.address` checks it in detail."""
    try:
        packed = inet_pton(AF_INET, text or "")
    except (OSError, ValueError):
        return None
    return packed if 0 < packed[0] < 224 and packed[0] != 127 and packed[:2] != _LINK_LOCAL4 else None


_PROTOCOLS = {"TCP": L4Type.TCP, "UDP": L4Type.UDP, "SCTP": L4Type.SCTP}


def special(address: bytes) -> str:
    """Return why an address can be neither frontend nor backend, '' if it can. Source: ValidateNonSpecialIP of Kubernetes."""
    first = address[0]
    if len(address) == 4:
        if first == 0:
            return "an unspecified address"
        if first == 127:
            return "a loopback address"
        if address[:2] == _LINK_LOCAL4:
            return "a link-local address"
        if first >= 240:
            return "a reserved address"
        return "a multicast address" if first >= 224 else ""
    if address == bytes(16):
        return "an unspecified address"
    if address == _LOOPBACK6:
        return "a loopback address"
    if first == 0xFE and address[1] & 0xC0 == 0x80:
        return "a link-local address"
    return "a multicast address" if first == 0xFF else ""


_LOOPBACK6 = bytes(15) + b"\x01"
_LINK_LOCAL4 = bytes((169, 254))


def text_of(value: Any) -> str:
    """Return an annotation's or label's text; manifests may have bare numbers and booleans there."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def annotation(meta: Meta, name: str, *cilium_names: str) -> tuple[FieldPath, str] | None:
    """Return (path, text) of an annotation of lbagent, else a label of lbagent, else Cilium's annotation; None if there is none."""
    notes = meta.annotations or {}
    key = OURS + name
    if key in notes:
        return ("metadata", "annotations", key), text_of(notes[key])
    if meta.labels and key in meta.labels:
        return ("metadata", "labels", key), text_of(meta.labels[key])
    for key in notes and (CILIUM + other for other in (*cilium_names, name)):
        if key in notes:
            return ("metadata", "annotations", key), text_of(notes[key])
    return None


def label(meta: Meta, key: str) -> str | None:
    """Return a label's text, None if there is none."""
    return text_of(meta.labels[key]) if meta.labels and key in meta.labels else None


def present(items: Iterable[T | None] | None) -> Iterable[tuple[int, T]]:
    """Iterate over (index, item) of a list that may be null or contain nulls."""
    return ((index, item) for index, item in enumerate(items or ()) if item is not None)
