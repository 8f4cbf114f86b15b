"""The bytes of one gRPC health check: a request of HTTP/2 (RFC 9113), and what its answer means. Pure.

Source: the gRPC health checking protocol, version 1; RFC 7541 for the header fields, which are sent as literals.
"""

from __future__ import annotations

from enum import IntEnum

from lbagent.probes.probe_protocol import NotHttp

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS, _PADDED = 0x1, 0x4, 0x8
_STREAM = 1
_HEAD = 9  # bytes of a frame before its payload
_MESSAGE_HEAD = 5  # bytes of a gRPC message before its contents: compressed or not, length
NOT_HTTP2 = "the answer is not HTTP/2"
NO_HEALTH = "the answer has no health: the server does not serve grpc.health.v1, or not for this service"


class ServingStatus(IntEnum):
    """HealthCheckResponse.ServingStatus."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def health_request(authority: str, service: str) -> bytes:
    """Return the bytes of a connection that sends grpc.health.v1.Health/Check for a service ('' = the server)."""
    fields = b"".join(
        (
            b"\x83",  # :method POST, of the static table
            b"\x86",  # :scheme http
            b"\x04" + _text("/grpc.health.v1.Health/Check"),  # :path
            b"\x01" + _text(authority),  # :authority
            b"\x00" + _text("te") + _text("trailers"),
            b"\x0f\x10" + _text("application/grpc"),  # content-type
            b"\x0f\x2b" + _text("lbagent"),  # user-agent
        )
    )
    name = service.encode()
    wanted = b"\x0a" + _varint(len(name)) + name if name else b""
    message = b"\x00" + len(wanted).to_bytes(4) + wanted
    return (
        PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, _STREAM, fields)
        + _frame(_DATA, _END_STREAM, _STREAM, message)
    )


def health_answer(data: bytes) -> ServingStatus | None:
    """Return the status in the bytes received so far; None while it is not complete. Raises NotHttp."""
    if len(data) > 4 and (data[3] != _SETTINGS or data[4] & 1):
        raise NotHttp(NOT_HTTP2)  # the first frame of a server is its SETTINGS
    message, at = b"", 0
    while at + _HEAD <= len(data):
        length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
        stream = int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF
        payload = data[at + _HEAD : at + _HEAD + length]
        if len(payload) < length:
            return None
        at += _HEAD + length
        if kind == _GOAWAY and stream == 0:
            raise NotHttp("the server ends the connection (GOAWAY)")
        if stream != _STREAM:
            continue
        if kind == _RST_STREAM:
            raise NotHttp("the server ends the request (RST_STREAM)")
        if kind == _DATA:
            message += payload[1 : length - payload[0]] if flags & _PADDED and payload else payload
            if (status := _status(message)) is not None:
                return status
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            raise NotHttp(NO_HEALTH)
    return None


def _status(message: bytes) -> ServingStatus | None:
    """Return the status of a HealthCheckResponse in a gRPC message; None while it is not complete."""
    length = int.from_bytes(message[1:_MESSAGE_HEAD])
    if len(message) < _MESSAGE_HEAD or len(message) < _MESSAGE_HEAD + length:
        return None
    body = message[_MESSAGE_HEAD : _MESSAGE_HEAD + length]
    if message[0] or (body and (body[0] != 0x08 or len(body) < 2)):
        raise NotHttp("the answer of grpc.health.v1 cannot be read")
    try:
        return ServingStatus(body[1]) if body else ServingStatus.UNKNOWN
    except ValueError:
        return ServingStatus.UNKNOWN


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _text(text: str) -> bytes:
    """Return a string literal without Huffman code (RFC 7541, 5.2)."""
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    return b"\x7f" + _varint(len(raw) - 127) + raw


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))
