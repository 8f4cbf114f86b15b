"""The datagrams by which agents find out that a node lives: a question and its answer, of equal length. Pure.

    magic 4 | kind 1 | time step 8 | nonce 16 | length of the name 1 | name of the node that is asked | HMAC-SHA256 32

Numbers are big-endian. The HMAC is over everything before it. Only a host with the key gets an answer, and an answer counts only
for the question whose nonce it repeats: one that is forged, sent again or old is of no question.
"""

from __future__ import annotations

import hmac
import struct

from msgspec import Struct

MAGIC = b"lbn1"
QUESTION, ANSWER = 1, 2
STEP_S = 30.0  # clocks of nodes may differ by so much at least, and by less than twice as much
NONCE_BYTES = 16
_HEAD = struct.Struct(f">4sBQ{NONCE_BYTES}sB")
_MAC_BYTES = 32
MAX_NAME = 253  # bytes: of a DNS subdomain
MAX_BYTES = _HEAD.size + MAX_NAME + _MAC_BYTES


class Echo(Struct, frozen=True, gc=False):
    """A datagram whose HMAC is right."""

    kind: int
    step: int
    nonce: bytes
    node: str


def step_at(seconds: float) -> int:
    """Return the time step of a time, in seconds since the epoch."""
    return int(seconds // STEP_S)


def write_echo(echo: Echo, key: bytes) -> bytes:
    """Return the datagram. Raises ValueError for a name that is too long."""
    name = echo.node.encode()
    if len(name) > MAX_NAME:
        raise ValueError(f"{echo.node!r} is longer than {MAX_NAME} bytes")
    head = _HEAD.pack(MAGIC, echo.kind, echo.step, echo.nonce, len(name)) + name
    return head + _mac(head, key)


def read_echo(data: bytes, key: bytes) -> Echo | None:
    """Return the contents of a datagram; None for one that no host with the key has made."""
    if len(data) < _HEAD.size + _MAC_BYTES or not data.startswith(MAGIC):
        return None
    magic, kind, step, nonce, length = _HEAD.unpack_from(data)
    head = data[: _HEAD.size + length]
    if magic != MAGIC or len(data) != len(head) + _MAC_BYTES or kind not in (QUESTION, ANSWER):
        return None
    if not hmac.compare_digest(data[len(head) :], _mac(head, key)):
        return None
    return Echo(kind, step, nonce, head[_HEAD.size :].decode("utf-8", "replace"))


def answer_to(data: bytes, key: bytes, node: str, step: int) -> bytes | None:
    """Return the answer of a node to a datagram; None if it is no question for this node, or of another time."""
    if not key:
        return None
    echo = read_echo(data, key)
    if echo is None or echo.kind != QUESTION or echo.node != node or abs(echo.step - step) > 1:
        return None
    return write_echo(Echo(ANSWER, echo.step, echo.nonce, node), key)


def _mac(head: bytes, key: bytes) -> bytes:
    return hmac.digest(key, head, "sha256")
