"""A capture file whose disk becomes full: each block is whole, and the last ones are the statistics."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.cli.capture_stream import CaptureStream

ROOM = 1050


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file of this process become larger: a write is refused then, as by a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def blocks(path: Path) -> list[str]:
    """Return the blocks of a file: a letter a hundred times, or a part of that."""
    data = path.read_bytes()
    return [data[at : at + 100].decode() for at in range(0, len(data), 100)]


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        ("pppppppppp", "hpppppppp2"),  # a packet gives its place
        ("ppppppppsp", "hpppppppp1"),  # statistics of before give theirs
        ("pppppppiip", "hpppppppi1"),  # and an interface
    ],
)
def test_statistics_at_a_full_disk(tmp_path: Path, kinds: str, left: str) -> None:
    stream = CaptureStream(str(tmp_path / "x"), "-w", lambda _data: True, overwrite=False)
    stream.begin(b"h" * 100)
    whole = stream.write([kind.encode() * 100 for kind in kinds])
    assert whole == 9
    missing = kinds[whole:].count("p")
    stream.end(lambda removed: str(missing + b"".join(removed).count(b"p") // 100).encode() * 100)
    assert blocks(tmp_path / "x") == [letter * 100 for letter in left]


@pytest.mark.usefixtures("full_disk")
def test_a_file_without_room_for_statistics_is_whole(tmp_path: Path) -> None:
    stream = CaptureStream(str(tmp_path / "x"), "-w", lambda _data: True, overwrite=False)
    stream.begin(b"h" * 1000)
    assert stream.write([b"p" * 100]) == 0
    stream.end(lambda _removed: b"1" * 100)
    assert (tmp_path / "x").read_bytes() == b"h" * 1000
