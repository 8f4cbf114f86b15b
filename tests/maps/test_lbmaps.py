"""Behaviour that both kinds of maps share."""

import errno
import struct

import pytest

from lbagent.errors import KernelError, MapFull
from lbagent.maps.lbmaps import backend_counter, map_full, service_counter
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.testing.faulty_maps import FaultyMaps, Killed, fail_at, fail_often


def key(number: int) -> bytes:
    return struct.pack("=I", number)


def row(number: int) -> bytes:
    """Twelve bytes with a number."""
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


@pytest.mark.parametrize(("name", "stride", "at", "width"), [("lb4_path", 16, 8, 8), ("lb6_path", 64, 0, 32)])
def test_parts_of_records_are_stored_as_their_words_would_be(maps, name, stride, at, width):
    parts = bytes(number % 251 for number in range(40 * width))
    maps.store_parts(name, 3 * stride + at, stride, parts, width)
    with maps.window(name, 0, 50 * stride) as view:
        records = [bytes(view[n * stride : (n + 1) * stride]) for n in range(50)]
    empty = bytes(stride)
    assert records[:3] + records[43:] == [empty] * 10
    for n, record in enumerate(records[3:43]):
        assert record == empty[:at] + parts[n * width : (n + 1) * width] + empty[at + width :], n


def test_words_side_by_side_are_not_stored_as_parts(maps):
    """Python would copy them all at once, in any pieces."""
    with pytest.raises(ValueError, match="one by one"):
        maps.store_parts("lb_filter", 0, 8, bytes(32), 8)


@pytest.mark.parametrize("width", [8, 32])
def test_a_fault_among_parts_leaves_the_words_before(maps, width):
    faulty = FaultyMaps(maps, before=fail_at(5, KernelError("mmap", 12, "lb6_path")))
    with pytest.raises(KernelError) as caught:
        faulty.store_parts("lb6_path", 0, 64, b"\1" * (3 * 32), width)
    assert caught.value.done == 5
    with maps.window("lb6_path", 0, 12 * 64) as view:
        assert bytes(view).count(1) == 5 * 8


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


def test_a_full_map_names_its_option_if_it_has_one():
    assert "raise --max-backends; everything" in str(map_full("lb4_backend", 8, 8))
    assert str(map_full("lb_neighbor", 8, 8)) == (
        "map lb_neighbor is full: 8 of 8 entries used; everything already written keeps serving"
    )
    assert "8 of 8 entries used, 2 more needed; raise" in str(map_full("lb4_path", 8, 8, needed=2))


def test_an_array_ends_with_its_last_entry(maps):
    maps.put_many("lb4_reverse_nat", [(key(65535), b"abcdefgh")])
    assert maps.get("lb4_reverse_nat", key(65535)) == b"abcdefgh"
    assert maps.get("lb4_reverse_nat", key(65536)) is None
    with pytest.raises(MapFull):
        maps.put_many("lb4_reverse_nat", [(key(65536), b"abcdefgh")])


def test_nothing_is_deleted_of_an_array(maps):
    maps.put_many("lb4_reverse_nat", [(key(5), b"abcdefgh")])
    with pytest.raises(KernelError) as caught:
        maps.delete_many("lb4_reverse_nat", [key(5)])
    assert caught.value.errno == errno.EINVAL
    assert maps.get("lb4_reverse_nat", key(5)) == b"abcdefgh"


def test_an_entry_of_zeros_is_an_entry_of_a_hash(maps):
    maps.put_many("lb4_backend", [(key(0), bytes(12)), (key(3), row(3))])
    assert sorted(maps.items("lb4_backend")) == [(key(0), bytes(12)), (key(3), row(3))]
    maps.delete_many("lb4_backend", [key(3)])
    assert maps.items("lb4_backend") == [(key(0), bytes(12))]


def test_entries_are_read_side_by_side(maps):
    assert list(maps.batches("lb4_backend")) == []
    maps.put_many("lb4_backend", [(key(n), row(n)) for n in range(5)])
    found = []
    for keys, values, count in maps.batches("lb4_backend"):
        assert (len(keys), len(values)) == (4 * count, 12 * count)
        found += [(keys[4 * n : 4 * n + 4], values[12 * n : 12 * n + 12]) for n in range(count)]
    assert sorted(found) == [(key(n), row(n)) for n in range(5)]


@pytest.mark.parametrize(("offset", "length"), [(-8, 16), (8, -8), (4096, 8)])
def test_a_window_is_inside_the_array(maps, offset, length):
    size = maps.specs["lb4_path"].value_size
    assert size == 256 * 16 == 4096
    with pytest.raises(ValueError, match="outside"), maps.window("lb4_path", offset, length):
        pass
    with maps.window("lb4_path", 8, 0) as view:
        assert len(view) == 0


def test_only_some_maps_are_memory(maps):
    with pytest.raises(KernelError, match="lb4_reverse_nat"), maps.window("lb4_reverse_nat", 0, 8):
        pass
    with pytest.raises(KernelError, match="lb4_backend"):
        maps.store("lb4_backend", [(0, bytes(8))])


def test_counters_are_zeroed(maps):
    for index in (7, 8):
        with maps.window("lb_metrics", 16 * index, 16) as cell:
            cell[:] = struct.pack("=QQ", index, 10 * index)
    assert maps.counters([7, 8]) == [(7, 70), (8, 80)]
    maps.zero_counters([7])
    assert maps.counters([7, 8]) == [(0, 0), (8, 80)]


def test_maps_without_a_fault_are_what_they_are(maps):
    """Every call has the same effect through FaultyMaps, one write after the other."""
    written = []
    faulty = FaultyMaps(maps, after=lambda number, name: written.append((number, name)))
    faulty.put_many("lb4_backend", [(key(1), row(1)), (key(2), row(2))])
    faulty.put_batch("lb4_backend", b"".join(map(key, range(9))), b"".join(map(row, range(9))), 7, 9)
    faulty.delete_many("lb4_backend", [key(2), key(7)])
    assert written == [(number, "lb4_backend") for number in range(6)]
    assert (
        sorted(faulty.items("lb4_backend")) == sorted(maps.items("lb4_backend")) == [(key(1), row(1)), (key(8), row(8))]
    )
    assert faulty.get("lb4_backend", key(8)) == row(8)
    assert [count for _, _, count in faulty.batches("lb4_backend")] == [2]
    faulty.set_maglev("lb4_maglev", {1: table(1), 2: table(2)})
    faulty.delete_maglev("lb4_maglev", [1])
    assert faulty.maglev("lb4_maglev") == maps.maglev("lb4_maglev") == {2: table(2)}
    faulty.store("lb_metrics", [(16 * 7, struct.pack("=Q", 5))])
    with faulty.window("lb_metrics", 16 * 7, 8) as view:
        assert bytes(view) == struct.pack("=Q", 5)
    assert faulty.counters([7]) == [(5, 0)]
    faulty.zero_counters([7])
    assert faulty.counters([7]) == [(0, 0)]
    assert [name for _, name in written[6:]] == ["lb4_maglev"] * 3 + ["lb_metrics"] * 2
    assert faulty.writes == 11


def test_faults_come_as_often_as_asked():
    def failures(probability: float, seed: int) -> list[int]:
        hook, found = fail_often(probability, seed), []
        for number in range(1000):
            try:
                hook(number, "lb4_backend")
            except KernelError:
                found.append(number)
        return found

    assert (failures(0, 1), len(failures(1, 1))) == ([], 1000)
    assert 150 < len(failures(0.2, 1)) < 250
    assert failures(0.2, 1) == failures(0.2, 1) != failures(0.2, 2)


def test_counters_of_services_come_before_those_of_backends():
    assert (service_counter(0), service_counter(7)) == (256, 263)
    assert (backend_counter(0), backend_counter(3)) == (256 + 65536, 256 + 65536 + 3)
