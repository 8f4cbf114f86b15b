"""Netlink messages of nf_tables: batches that are one transaction, and reading of one table.

Source: include/uapi/linux/netfilter/{nf_tables,nfnetlink}.h. The data plane reads nothing of another table; targets/kube_proxy
reads the table of kube-proxy. All calls block; a batch of 2,000 elements takes some milliseconds.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from lbagent.errors import KernelError
from lbagent.kernel.netlink_attributes import (
    MAX_BYTES,
    attribute,
    attributes_of,
    nested,
    read_attributes,
    read_text,
    read_u32,
    text,
    u32,
)
from lbagent.model.family import Family
from lbagent.targets.nftables.map_specs import AFFINITY_SIZE, INSIDE_OFFSET, MARKER, Element, Field, MapSpec, Value
from lbagent.targets.nftables.statements import CHAIN_VERDICTS, VERDICTS, Chain, verdict_data

NETLINK_NETFILTER = 12
SUBSYSTEM = 10  # NFNL_SUBSYS_NFTABLES
NEW_TABLE, GET_TABLE, DEL_TABLE, NEW_CHAIN, GET_CHAIN, DEL_CHAIN, NEW_RULE, GET_RULE, DEL_RULE = range(9)
NEW_SET, GET_SET, DEL_SET, NEW_ELEMENT, GET_ELEMENT, DEL_ELEMENT = range(9, 15)
GET_GENERATION = 16
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_REQUEST, _ACK, _DUMP, _CREATE, _APPEND = 1, 4, 0x300, 0x400, 0x800
_ERROR, _DONE, _INTERRUPTED = 2, 3, 0x10  # NLM_F_DUMP_INTR
_INET, _UNSPECIFIED = 1, 0  # NFPROTO_*
NFPROTO = {Family.IPV4: 2, Family.IPV6: 10}
_HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
_MESSAGE = struct.Struct("=IHHII")
_HEADER = struct.Struct("!BBH")  # family, version, resource id
_FLAG_INTERVAL, _FLAG_MAP, _FLAG_TIMEOUT, _FLAG_EVAL, _FLAG_CONCAT = 4, 8, 0x10, 0x20, 0x80
_VERDICT_TYPE = 0xFFFFFF00
_RECEIVE_BYTES = 1 << 20
_ELEMENTS_BYTES = MAX_BYTES - 1024  # of the attribute with the elements of a message
_TIMEOUT_S = 30.0
_TRIES = 20  # reads that another transaction interrupted
_REHASH_S = 0.002
T = TypeVar("T")
_ACCEPT = 1
_DORMANT = 1  # NFT_TABLE_F_DORMANT
_VERDICT_WORDS = {code: word for word, code in (VERDICTS | CHAIN_VERDICTS).items()}


class Message(NamedTuple):
    """A message of a batch, and the object that an error names."""

    kind: int
    flags: int
    body: bytes
    what: str


class RuleRow(NamedTuple):
    """A rule as the kernel has it: its chain and its expressions."""

    chain: str
    expressions: bytes


# --- messages ---


def new_table(name: str, comment: str) -> Message:
    """Create the table, or do nothing where it is there."""
    return Message(
        NEW_TABLE, _CREATE, text(1, name) + u32(2, 0) + attribute(6, _comment(comment)), f"table inet {name}"
    )


def set_dormant(name: str, *, dormant: bool) -> Message:
    """Take the chains of a table out of the path of packets, or put them back; what it has stays."""
    return Message(NEW_TABLE, 0, text(1, name) + u32(2, _DORMANT if dormant else 0), f"table {name}")


def delete_table(name: str) -> Message:
    """Delete the table with all that it has."""
    return Message(DEL_TABLE, 0, text(1, name), f"table inet {name}")


def new_chain(table: str, name: str, chain: Chain) -> Message:
    """Create a chain without its rules, or do nothing where it is there."""
    body = text(1, table) + text(3, name)
    if chain.hook:
        body += nested(4, u32(1, _HOOKS[chain.hook]), u32(2, chain.priority)) + u32(5, _ACCEPT) + text(7, "nat")
    return Message(NEW_CHAIN, _CREATE, body, f"chain {name}")


def delete_chain(table: str, name: str) -> Message:
    """Delete a chain, whose rules are gone."""
    return Message(DEL_CHAIN, 0, text(1, table) + text(3, name), f"chain {name}")


def delete_rules(table: str, chain: str) -> Message:
    """Delete the rules of a chain."""
    return Message(DEL_RULE, 0, text(1, table) + text(2, chain), f"rules of chain {chain}")


def new_rules(table: str, name: str, chain: Chain) -> Iterator[Message]:
    """Append the rules of a chain."""
    for rule in chain.rules:
        body = text(1, table) + text(2, name) + nested(4, rule.expressions)
        yield Message(NEW_RULE, _CREATE | _APPEND, body, f"rule of chain {name}: {rule.text}")


def new_set(table: str, spec: MapSpec, number: int) -> Message:
    """Create a set or map, or do nothing where it is there; `number` is unique in a batch."""
    flags, family = 0, spec.family
    body = text(1, table) + text(2, spec.name)
    key_type = 0
    for field in spec.key:
        key_type = key_type << 6 | field.type_number(family)
    tail = b""
    if spec.value is not Value.NOTHING:
        flags |= _FLAG_MAP
        is_verdict = spec.value is Value.VERDICT
        address = Field.ADDRESS.type_number(family)
        tail += u32(6, _VERDICT_TYPE if is_verdict else address << 6 | Field.PORT.type_number(family))
        tail += u32(7, 16 if is_verdict else family.address_bytes + 4)
    described = b""
    if spec.ranges:
        flags |= _FLAG_INTERVAL | _FLAG_CONCAT
        described = nested(2, *(nested(1, u32(1, field.size(family))) for field in spec.key))
    if spec.dynamic:
        flags |= _FLAG_TIMEOUT | _FLAG_EVAL
        described = u32(1, AFFINITY_SIZE)
    body += u32(3, flags) + u32(4, key_type) + u32(5, spec.key_bytes) + tail + u32(10, number)
    if described:
        body += nested(9, described)
    return Message(NEW_SET, _CREATE, body + attribute(13, user_data(spec)), f"{spec.word} {spec.name}")


def elements(kind: int, table: str, spec: MapSpec, found: Sequence[tuple[bytes, Element]]) -> Iterator[Message]:
    """Add or delete elements (`kind`: NEW_ELEMENT or DEL_ELEMENT), in messages that are not too long."""
    head, size, what = text(1, table) + text(2, spec.name), 0, ""
    some: list[bytes] = []
    flags = _CREATE if kind == NEW_ELEMENT else 0
    for key, element in found:
        part = _element(spec, key, element if kind == NEW_ELEMENT else None)
        if size + len(part) > _ELEMENTS_BYTES:
            yield Message(kind, flags, head + nested(3, *some), what)
            some, size = [], 0
        if not some:
            what = f"element of {spec.word} {spec.name}: {spec.element_text(key, element)}"
        some.append(part)
        size += len(part)
    if some:
        yield Message(kind, flags, head + nested(3, *some), what)


def _element(spec: MapSpec, key: bytes, element: Element | None) -> bytes:
    parts = [nested(1, attribute(1, key[: spec.key_bytes]))]
    if spec.ranges:
        parts.append(nested(10, attribute(1, key[spec.key_bytes :])))
    if element is not None:
        if isinstance(element.value, str):
            parts.append(nested(2, verdict_data(element.value)))
        elif element.value is not None:
            parts.append(nested(2, attribute(1, element.value)))
        if element.comment:
            parts.append(attribute(6, _comment(element.comment)))
    return nested(1, *parts)


# --- what nft reads and the kernel only keeps ---


def _tlv(kind: int, value: bytes) -> bytes:
    return bytes((kind, len(value))) + value


def _number(kind: int, value: int) -> bytes:
    return _tlv(kind, struct.pack("=I", value))


def _comment(words: str) -> bytes:
    return _tlv(0, words.encode() + b"\0")


def read_comment(data: bytes) -> str:
    """Return the comment in what nft keeps of a table or an element; '' where there is none."""
    return read_text(data[2 : 2 + data[1]]) if len(data) > 2 and not data[0] else ""


def user_data(spec: MapSpec) -> bytes:
    """Return what nft keeps of a set: byte orders, and of which expressions a key with a slot is made.

    Source: nftables src/{mnl,netlink_linearize,payload,meta,numgen}.c (the numbers of expressions, protocols and fields).
    """
    out = _number(0, 0)
    if spec.value is not Value.NOTHING:
        out += _number(1, 0)
    if spec.has_slot:
        ip, daddr = (12, 12) if spec.family is Family.IPV4 else (13, 9)
        address = _tlv_expression(7, _number(0, ip) + _number(1, daddr))
        port = _tlv_expression(7, _number(0, 11) + _number(1, 2))
        protocol = _tlv_expression(9, _number(0, 16))
        slot = _tlv_expression(23, _number(0, 1) + _number(1, INSIDE_OFFSET) + _number(2, 0))
        out += _concatenation(3, address, protocol, port, slot) + _concatenation(4, address, port)
        return out + _number(6, 0)
    return out


def _tlv_expression(kind: int, data: bytes) -> bytes:
    return _number(0, kind) + _tlv(1, data)


def _concatenation(kind: int, *parts: bytes) -> bytes:
    inner = b"".join(_tlv(number, part) for number, part in enumerate(parts))
    return _tlv(kind, _number(0, 13) + _tlv(1, inner))


# --- the socket ---


def is_our_comment(comment: str) -> bool:
    """Whether a table with this comment is ours, also one of another form."""
    return comment.split(" ", maxsplit=1)[0] == MARKER.split(" ")[0]


class NfTables:
    """A socket for nf_tables of the calling thread's network namespace. Raises OSError where the kernel has none."""

    def __init__(self, family: int = _INET) -> None:
        """Use the tables of a family: a number of NFPROTO_*."""
        self._family = family
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        self._socket.settimeout(_TIMEOUT_S)
        self._lock = threading.Lock()  # one request at a time, from whichever thread
        self._sequence = 0
        self._send_bytes = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def transact(self, messages: Sequence[Message]) -> None:
        """Put messages in force, all or none. Raises KernelError, which names the object of the first error."""
        if messages:
            with self._lock:
                self._transact(messages)

    def _transact(self, messages: Sequence[Message]) -> None:
        begin = self._sequence + 1
        parts = [_packed(_BATCH_BEGIN, _REQUEST, begin, _HEADER.pack(_UNSPECIFIED, 0, SUBSYSTEM))]
        for number, message in enumerate(messages, begin + 1):
            flags = message.flags | _REQUEST | (_ACK if number == begin + len(messages) else 0)
            body = _HEADER.pack(self._family, 0, 0) + message.body
            parts.append(_packed(SUBSYSTEM << 8 | message.kind, flags, number, body))
        last = begin + len(messages)
        self._sequence = last + 1
        parts.append(_packed(_BATCH_END, _REQUEST, last + 1, _HEADER.pack(_UNSPECIFIED, 0, SUBSYSTEM)))
        self._send(b"".join(parts))
        first: tuple[int, int] | None = None
        acknowledged = False
        while not acknowledged and first is None:
            for kind, _flags, sequence, body in self._receive():
                if kind != _ERROR or not begin <= sequence <= last + 1:
                    continue
                number = -struct.unpack_from("=i", body)[0]
                if number:
                    first = first or (sequence, number)
                elif sequence == last:
                    acknowledged = True
        if first is not None:
            sequence, number = first
            self._drain()
            what = messages[sequence - begin - 1].what if begin < sequence <= last else "the transaction"
            raise KernelError("nftables transaction", number, what)

    def _send(self, data: bytes) -> None:
        if len(data) > self._send_bytes:
            self._send_bytes = len(data) + (1 << 16)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, 32, self._send_bytes)  # SO_SNDBUFFORCE
            except OSError:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_bytes)
        self._socket.sendto(data, (0, 0))

    def _receive(self) -> Iterator[tuple[int, int, int, bytes]]:
        data = self._socket.recv(_RECEIVE_BYTES)
        at = 0
        while at + _MESSAGE.size <= len(data):
            length, kind, flags, sequence, _ = _MESSAGE.unpack_from(data, at)
            yield kind, flags, sequence, data[at + _MESSAGE.size : at + length]
            at += length + (-length % 4)

    def _drain(self) -> None:
        """Read the other errors of a batch."""
        self._socket.setblocking(False)
        try:
            while self._socket.recv(_RECEIVE_BYTES):
                pass
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(_TIMEOUT_S)

    def _ask(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """Return the attributes of each answer. Raises OSError; EINTR: another transaction came in between."""
        with self._lock:
            return list(self._answers(kind, flags, body))

    def _answers(self, kind: int, flags: int, body: bytes) -> Iterator[bytes]:
        self._sequence += 1
        mine = self._sequence
        self._send(_packed(SUBSYSTEM << 8 | kind, _REQUEST | flags, mine, _HEADER.pack(self._family, 0, 0) + body))
        interrupted = False
        while True:
            for found, found_flags, sequence, answer in self._receive():
                if sequence != mine:
                    continue
                interrupted |= bool(found_flags & _INTERRUPTED)
                if found in (_ERROR, _DONE):
                    number = -struct.unpack_from("=i", answer)[0] if len(answer) >= 4 else 0
                    if number:
                        raise OSError(number, os.strerror(number))
                    if interrupted:
                        raise OSError(errno.EINTR, os.strerror(errno.EINTR))
                    return
                yield answer[_HEADER.size :]

    def _dump(self, kind: int, body: bytes) -> list[bytes]:
        for _ in range(_TRIES):
            try:
                return self._ask(kind, _DUMP, body)
            except OSError as error:
                if error.errno != errno.EINTR:
                    raise
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))

    # --- what is there ---

    def comment(self, table: str) -> str | None:
        """Return the comment of a table; None: there is no such table. Raises OSError."""
        try:
            (found,) = self._ask(GET_TABLE, _ACK, text(1, table))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return read_comment(attributes_of(found).get(6, b""))

    def is_dormant(self, table: str) -> bool:
        """Return whether the chains of a table have no effect: it has the flag `dormant`. Raises OSError (ENOENT: no such one)."""
        (found,) = self._ask(GET_TABLE, _ACK, text(1, table))
        return bool(read_u32(attributes_of(found)[2]) & _DORMANT)

    def generation(self) -> int:
        """Return the number of the last transaction in this network namespace. Raises OSError."""
        (found,) = self._ask(GET_GENERATION, _ACK, b"")
        return read_u32(attributes_of(found)[1])

    def elements(self, table: str, spec: MapSpec) -> dict[bytes, Element]:
        """Return the elements of a set or map. Raises OSError (ENOENT: no such one)."""

        def read(items: Iterator[bytes]) -> tuple[dict[bytes, Element], bool]:
            out, count = {}, 0
            for key, element in map(read_element, items):
                out[key] = element
                count += 1
            return out, len(out) == count

        return self._whole(table, spec.name, read)

    def element_attributes(self, table: str, name: str) -> list[dict[int, bytes]]:
        """Return the attributes (NFTA_SET_ELEM_*) of the elements of a set. Raises OSError (ENOENT: no such one)."""

        def read(items: Iterator[bytes]) -> tuple[list[dict[int, bytes]], bool]:
            found = list(map(attributes_of, items))
            return found, len({(parts.get(1), parts.get(10)) for parts in found}) == len(found)

        return self._whole(table, name, read)

    def _whole(self, table: str, name: str, read: Callable[[Iterator[bytes]], tuple[T, bool]]) -> T:
        """Return what `read` makes of the elements of a set; again, as long as it returns False: one is listed twice.

        The kernel lists a set part by part. While it makes the set's hash table larger or smaller, each part may begin in another
        order: then it lists some elements twice, and leaves out as many.
        """
        for _ in range(_TRIES):
            found, is_whole = read(self._items(table, name))
            if is_whole:
                return found
            time.sleep(_REHASH_S)
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))

    def _items(self, table: str, name: str) -> Iterator[bytes]:
        for message in self._dump(GET_ELEMENT, text(1, table) + text(2, name)):
            for kind, value in read_attributes(message):
                if kind == 3:
                    for _, item in read_attributes(value):
                        yield item

    def set_timeout_ms(self, table: str, name: str) -> int:
        """Return after how many milliseconds an element of a set ends; 0: never. Raises OSError (ENOENT: no such one)."""
        (found,) = self._ask(GET_SET, _ACK, text(1, table) + text(2, name))
        return int.from_bytes(attributes_of(found).get(11, b""), "big")

    def rules(self, table: str) -> list[RuleRow]:
        """Return the rules of a table, chain by chain. Raises OSError."""
        found = []
        for message in self._dump(GET_RULE, text(1, table)):
            parts = attributes_of(message)
            if read_text(parts.get(1, b"")) == table:
                found.append(RuleRow(read_text(parts[2]), parts.get(4, b"")))
        return found

    def hook(self, table: str, chain: str) -> tuple[int, int] | None:
        """Return the hook and the priority of a chain; None: it is not there, or has none. Raises OSError."""
        try:
            (found,) = self._ask(GET_CHAIN, _ACK, text(1, table) + text(3, chain))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        hook = attributes_of(attributes_of(found).get(4, b""))
        if 1 not in hook or 2 not in hook:
            return None
        return read_u32(hook[1]), struct.unpack("!i", hook[2])[0]

    def set_data(self, table: str, name: str) -> bytes | None:
        """Return what nft keeps of a set (`user_data`); None: there is no such set. Raises OSError."""
        try:
            (found,) = self._ask(GET_SET, _ACK, text(1, table) + text(2, name))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return attributes_of(found).get(13, b"")


def hook_of(chain: Chain) -> tuple[int, int]:
    """Return the hook and the priority of a chain, as `NfTables.hook` does."""
    return _HOOKS[chain.hook], chain.priority


def read_element(item: bytes) -> tuple[bytes, Element]:
    """Return the key and the element of the attributes of one."""
    parts = attributes_of(item)
    key = attributes_of(parts[1]).get(1, b"")
    if 10 in parts:
        key += attributes_of(parts[10]).get(1, b"")
    value: str | bytes | None = None
    if 2 in parts:
        data = attributes_of(parts[2])
        if 2 in data:
            verdict = attributes_of(data[2])
            word = _VERDICT_WORDS.get(struct.unpack("!i", verdict[1])[0], "unknown")
            value = f"{word} {read_text(verdict[2])}" if 2 in verdict else word
        else:
            value = data.get(1)
    return key, Element(value, read_comment(parts.get(6, b"")))


def _packed(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return _MESSAGE.pack(_MESSAGE.size + len(body), kind, flags, sequence, 0) + body + bytes(-len(body) % 4)
