"""Words and counters in a mapped array; a memfd stands in for the map."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from lbagent.maps import mmap_window
from lbagent.maps.mmap_window import counters, store, store_words, window, zero_counters

SIZE = 3 * mmap_window.PAGE


@pytest.fixture
def fd() -> Iterator[int]:
    handle = os.memfd_create("array")
    os.ftruncate(handle, SIZE)
    yield handle
    os.close(handle)


def word(number: int) -> bytes:
    return struct.pack("=Q", number)


@pytest.mark.parametrize(
    ("offset", "length", "fine"),
    [
        (0, SIZE, True),
        (8, 0, True),
        (-1, 8, False),
        (0, -1, False),
        (1, SIZE, False),
        (SIZE, 1, False),
    ],
)
def test_a_window_is_inside_the_array(fd: int, offset: int, length: int, fine: bool) -> None:
    if not fine:
        with pytest.raises(ValueError, match=f"window {offset}"), window(fd, offset, length, SIZE):
            pass
        return
    with window(fd, offset, length, SIZE) as view:
        assert len(view) == length


def test_what_is_written_through_a_window_is_where_it_says(fd: int) -> None:
    at = mmap_window.PAGE + 24
    with window(fd, at, 16, SIZE) as view:
        view[:] = b"0123456789abcdef"
    assert os.pread(fd, 18, at - 1) == b"\0" + b"0123456789abcdef" + b"\0"


def test_words_far_from_each_other_are_stored_in_order(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap_window, "SPAN_BYTES", mmap_window.PAGE)
    words = [(8, word(1)), (0, word(2)), (SIZE - 8, word(3)), (mmap_window.PAGE, word(4)), (16, word(5))]
    assert store(fd, iter(words), SIZE) == 5
    assert store(fd, [], SIZE) == 0
    assert {at: struct.unpack("=Q", os.pread(fd, 8, at))[0] for at, _ in words} == {
        8: 1, 0: 2, SIZE - 8: 3, mmap_window.PAGE: 4, 16: 5,
    }  # fmt: skip


def test_a_word_before_the_first_one_is_stored_where_it_says(fd: int) -> None:
    assert store(fd, [(2 * mmap_window.PAGE + 8, word(1)), (8, word(2)), (mmap_window.PAGE, word(3))], SIZE) == 3
    found = struct.unpack(f"={SIZE // 8}Q", os.pread(fd, SIZE, 0))
    assert {8 * at: number for at, number in enumerate(found) if number} == {
        2 * mmap_window.PAGE + 8: 1, 8: 2, mmap_window.PAGE: 3,
    }  # fmt: skip


def test_words_are_counted() -> None:
    memory = bytearray(32)
    assert store_words(memoryview(memory), 64, [(64, word(7)), (88, word(8))]) == 2
    assert bytes(memory) == word(7) + bytes(16) + word(8)


def cells(rows: int, count: int) -> bytearray:
    """Return rows of counters: packets are ten times row + index, bytes a hundred times that."""
    return bytearray(
        b"".join(
            struct.pack("=2Q", 10 * row + index, 100 * (10 * row + index))
            for row in range(rows)
            for index in range(count)
        )
    )


@pytest.mark.parametrize("indexes", [[], [3], [0, 1, 2], [2, 0], [0, 9], [9, 3, 4], [1, 9], [5, 6, 9], [6, 7, 8, 9]])
def test_counters_are_summed_over_the_rows(indexes: list[int]) -> None:
    found = counters(memoryview(cells(2, 10)), 160, indexes)
    assert found == [(10 + 2 * index, 100 * (10 + 2 * index)) for index in indexes]


@pytest.mark.parametrize("indexes", [[], [0], [9], [3, 4, 5], [5, 3, 8], [2, 2]])
def test_counters_are_zeroed_in_every_row(indexes: list[int]) -> None:
    memory = cells(2, 10)
    zero_counters(memoryview(memory), 160, indexes)
    expected = cells(2, 10)
    for row in range(2):
        for index in indexes:
            expected[160 * row + 16 * index : 160 * row + 16 * index + 16] = bytes(16)
    assert memory == expected


def test_neighbours_are_zeroed_at_once() -> None:
    """A hundred rows, each one slice."""
    stores = []

    class Noted(bytearray):
        def __setitem__(self, where, value) -> None:  # type: ignore[no-untyped-def]
            stores.append(where)
            super().__setitem__(where, value)

    zero_counters(Noted(cells(2, 10)), 160, [4, 3, 5, 8])  # type: ignore[arg-type]
    assert [(at.start, at.stop) for at in stores] == [(48, 96), (208, 256), (128, 144), (288, 304)]


def test_a_window_ends_with_its_use(fd: int) -> None:
    with window(fd, mmap_window.PAGE + 24, 16, SIZE) as view:
        assert len(view) == 16
    with pytest.raises(ValueError, match="released"):
        bytes(view)


def test_a_word_beyond_the_array_is_refused(fd: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        store(fd, [(SIZE, word(1))], SIZE)
