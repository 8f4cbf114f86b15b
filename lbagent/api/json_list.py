"""JSON of lists, in pieces, so that 10,000 services do not stop the agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

_PIECE_BYTES = 64 * 1024


def json_list(rows: Iterable[object]) -> Iterator[bytes]:
    """Yield a JSON list in pieces."""
    encoder = msgspec.json.Encoder()
    piece = bytearray(b"[")
    separator = b""
    for row in rows:
        piece += separator
        encoder.encode_into(row, piece, -1)
        separator = b","
        if len(piece) > _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece + b"]\n")
