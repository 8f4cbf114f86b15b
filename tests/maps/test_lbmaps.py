"""What both kinds of maps do alike."""

import struct

import pytest

from lbagent.errors import MapFull
from lbagent.maps.memory_maps import FaultyMaps, Killed, MemoryMaps, fail_at


def key(number: int) -> bytes:
    return struct.pack("=I", number)


def row(number: int) -> bytes:
    """Twelve bytes that say which."""
    return b"row" + number.to_bytes(9, "big")


def test_entries_are_written_read_and_deleted(maps):
    rows = [(key(n), row(n)) for n in range(1, 201)]
    maps.put_many("lb4_backend", rows)
    assert sorted(maps.items("lb4_backend")) == sorted(rows)
    assert maps.get("lb4_backend", key(7)) == row(7)
    maps.put_many("lb4_backend", [(key(7), row(1007))])
    assert maps.get("lb4_backend", key(7)) == row(1007)
    maps.delete_many("lb4_backend", [key(n) for n in range(1, 200)])
    assert maps.items("lb4_backend") == [(key(200), row(200))]


def test_deleting_what_is_not_there_is_fine(maps):
    maps.put_many("lb4_backend", [(key(n), row(n)) for n in (1, 2, 3)])
    maps.delete_many("lb4_backend", [key(9), key(1), key(9), key(8), key(3), key(7)])
    assert maps.items("lb4_backend") == [(key(2), row(2))]
    maps.delete_many("lb4_backend", [])


def test_a_key_that_is_not_there_is_none(maps):
    assert maps.get("lb4_backend", key(1)) is None
    assert maps.items("lb4_backend") == []


def test_packed_entries_are_a_part_of_what_lies_side_by_side(maps):
    keys, values = b"".join(map(key, range(10))), b"".join(map(row, range(10)))
    maps.put_batch("lb4_backend", keys, values, 3, 6)
    assert sorted(maps.items("lb4_backend")) == [(key(n), row(n)) for n in (3, 4, 5)]


def test_an_array_has_all_its_entries_and_lists_those_that_say_something(maps):
    maps.put_many("lb4_reverse_nat", [(key(5), b"abcdefgh"), (key(65535), b"ABCDEFGH")])
    assert maps.get("lb4_reverse_nat", key(4)) == bytes(8)
    assert sorted(maps.items("lb4_reverse_nat")) == [(key(5), b"abcdefgh"), (key(65535), b"ABCDEFGH")]
    maps.put_many("lb4_reverse_nat", [(key(5), bytes(8))])
    assert maps.items("lb4_reverse_nat") == [(key(65535), b"ABCDEFGH")]


def test_ranges_of_one_network_and_several_lengths_are_several_entries(maps):
    def lpm(bits, *address):
        return struct.pack("=I", 32 + bits) + b"\0\1\0\0" + bytes(address)

    rows = [(lpm(8, 10, 0, 0, 0), b"\1"), (lpm(16, 10, 0, 0, 0), b"\1"), (lpm(0, 0, 0, 0, 0), b"\1")]
    maps.put_many("lb4_source_range", rows)
    assert sorted(maps.items("lb4_source_range")) == sorted(rows)
    maps.delete_many("lb4_source_range", [rows[1][0]])
    assert sorted(maps.items("lb4_source_range")) == sorted([rows[0], rows[2]])


def test_a_full_map_keeps_what_it_has_and_says_what_to_raise(maps):
    rows = [(key(n), row(n)) for n in range(300)]
    with pytest.raises(MapFull) as caught:
        maps.put_many("lb4_backend", rows)
    assert caught.value.done == 256
    assert sorted(maps.items("lb4_backend")) == sorted(rows[:256])
    text = str(caught.value)
    assert "lb4_backend" in text
    assert "256 of 256" in text
    assert "--max-backends" in text
    maps.put_many("lb4_backend", [(key(9), row(99))])  # replacing needs no room
    assert maps.get("lb4_backend", key(9)) == row(99)


def test_a_full_range_map_says_so_too(maps):
    rows = [(struct.pack("=I", 64) + n.to_bytes(2, "big") + bytes(2) + bytes(4), b"\1") for n in range(100)]
    with pytest.raises(MapFull, match=r"lb4_source_range is full.*--max-source-ranges"):
        maps.put_many("lb4_source_range", rows)


def table(*ids: int) -> bytes:
    return struct.pack("=251I", *(ids[n % len(ids)] for n in range(251)))


def test_tables_are_swapped_whole_and_equal_ones_shared(maps):
    maps.set_maglev("lb4_maglev", {1: table(1, 2), 2: table(1, 2), 3: table(3)})
    found = maps.maglev("lb4_maglev")
    assert found == {1: table(1, 2), 2: table(1, 2), 3: table(3)}
    assert found[1] is found[2]
    maps.set_maglev("lb4_maglev", {2: table(3), 4: table(1, 2)})
    maps.delete_maglev("lb4_maglev", [3, 77])
    assert maps.maglev("lb4_maglev") == {1: table(1, 2), 2: table(3), 4: table(1, 2)}
    assert maps.maglev("lb6_maglev") == {}
    with pytest.raises(ValueError, match="1004 bytes"):
        maps.set_maglev("lb4_maglev", {1: b"short"})


def test_what_is_stored_through_a_window_is_in_the_map(maps):
    with maps.window("lb_filter", 4096 - 16, 32) as view:
        view[:] = bytes(range(32))
        view.cast("Q")[3] = 0x0807060504030201
    with maps.window("lb_filter", 4096, 16) as view:
        assert bytes(view) == bytes(range(16, 24)) + bytes((1, 2, 3, 4, 5, 6, 7, 8))
    with maps.window("lb_filter", 0, 16) as view:
        assert bytes(view) == bytes(16)


def test_a_window_beyond_the_array_is_refused(maps):
    with pytest.raises(ValueError, match="outside"), maps.window("lb4_path", 256 * 16 - 8, 16):
        pass


def test_words_are_stored_at_their_offsets_wherever_they_lie(maps):
    words = [(8 * n, n.to_bytes(8, "little")) for n in (0, 1, 511, 512, 3, 48 * 1024 - 1)]
    maps.store("lb_filter", words)
    with maps.window("lb_filter", 0, 384 * 1024) as view:
        cells = view.cast("Q")
        assert {n: cells[n] for n in range(48 * 1024) if cells[n]} == {1: 1, 511: 511, 512: 512, 3: 3, 49151: 49151}
        cells.release()


def test_counters_start_at_nothing(maps):
    assert maps.counters([0, 256 + 7]) == [(0, 0), (0, 0)]
    maps.zero_counters([0, 256 + 7])
    assert maps.counters([0, 256 + 7]) == [(0, 0), (0, 0)]


def test_a_fault_at_the_nth_write_leaves_the_ones_before(maps):
    faulty = FaultyMaps(maps, before=fail_at(2, MapFull("update", 7, "lb4_backend")))
    with pytest.raises(MapFull) as caught:
        faulty.put_many("lb4_backend", [(key(n), row(n)) for n in range(5)])
    assert caught.value.done == 2
    assert sorted(maps.items("lb4_backend")) == [(key(0), row(0)), (key(1), row(1))]


def test_a_kill_passes_every_handler_of_errors(maps):
    faulty = FaultyMaps(maps, before=fail_at(1, Killed()))
    with pytest.raises(Killed):
        faulty.store("lb_filter", [(0, b"12345678"), (8, b"12345678")])
    with maps.window("lb_filter", 0, 16) as view:
        assert bytes(view) == b"12345678" + bytes(8)


@pytest.mark.parametrize(("key", "value"), [(bytes(11), bytes(12)), (bytes(12), bytes(11)), (b"", b"")])
def test_an_entry_of_another_size_is_a_mistake_of_ours(key, value):
    with pytest.raises(ValueError, match=f"lb4_service: entry of {len(key)}"):
        MemoryMaps().put_many("lb4_service", [(key, value)])
