"""Pins, and behaviour of the kernel's maps alone."""

import os
import stat
import struct

import pytest

from lbagent.errors import LayoutMismatch, NotFound
from lbagent.kernel import bpf_map, bpfsys
from lbagent.kernel.cpus import possible_cpus
from lbagent.maps import mmap_window
from lbagent.maps.flow_layout import FLOW_LAYOUT
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB_CONFIG
from lbagent.maps.specs import Sizes, map_specs
from tests.lab.open_files import open_files
from tests.maps.conftest import SMALL, pin_settings, settings_of_layout

pytestmark = [pytest.mark.root, pytest.mark.bpf]


def resized(**change) -> Sizes:
    return Sizes(**{**{name: getattr(SMALL, name) for name in Sizes.__dataclass_fields__}, **change})


def test_every_map_is_pinned_with_what_the_layout_says(bpffs):
    with KernelMaps.open(bpffs, SMALL) as maps:
        for name, spec in map_specs(SMALL).items():
            if name in (
                "lb_config",
                "lb_crc32c",
                "lb_calls_xdp",
                "lb_calls_tc",
            ):  # made with each generation of programs
                assert not os.path.exists(f"{bpffs}/v1/{name}")
                continue
            info = bpf_map.map_info(maps.fd(name))
            found = (info.type, info.key_size, info.value_size, info.max_entries, info.flags)
            assert found == (spec.type, spec.key_size, spec.value_size, spec.max_entries, spec.flags), name
            assert os.path.exists(f"{bpffs}/v1/{name}")
    assert stat.S_IMODE(os.stat(f"{bpffs}/v1").st_mode) == 0o700


def test_a_second_start_finds_the_same_maps_with_their_contents(bpffs):
    with KernelMaps.open(bpffs, SMALL) as maps:
        maps.put_many("lb4_backend", [(struct.pack("=I", 1), b"abcdefghijkl")])
        idents = {name: bpf_map.map_info(fd).id for name, fd in maps.fds.items()}
    with KernelMaps.open(bpffs, SMALL) as maps:
        assert {name: bpf_map.map_info(fd).id for name, fd in maps.fds.items()} == idents
        assert maps.items("lb4_backend") == [(struct.pack("=I", 1), b"abcdefghijkl")]


@pytest.mark.parametrize("create", [True, False], ids=["agent", "tool"])
def test_flow_tables_of_another_layout_are_refused(bpffs, create):
    """Nothing is created or read; versions that did not write the number had layout 1."""
    KernelMaps.open(bpffs, SMALL).close()
    os.unlink(f"{bpffs}/v1/lb_live")
    pin_settings(bpffs, settings_of_layout(FLOW_LAYOUT + 1))
    with pytest.raises(LayoutMismatch, match=f"have layout {FLOW_LAYOUT + 1}, this lbagent has layout {FLOW_LAYOUT}"):
        KernelMaps.open(bpffs, SMALL if create else None, create=create)
    assert not os.path.exists(f"{bpffs}/v1/lb_live")


@pytest.mark.parametrize("length", [LB_CONFIG.offsets()["flow_layout"], LB_CONFIG.size + 8], ids=["earlier", "later"])
def test_settings_of_another_version_do_not_matter(bpffs, length):
    KernelMaps.open(bpffs, SMALL).close()
    pin_settings(bpffs, settings_of_layout(FLOW_LAYOUT)[:length].ljust(length, b"\1"))
    KernelMaps.open(bpffs, create=False).close()


def test_a_start_after_a_broken_one_makes_the_missing_maps(bpffs):
    KernelMaps.open(bpffs, SMALL).close()
    os.unlink(f"{bpffs}/v1/lb_filter")
    with KernelMaps.open(bpffs, SMALL) as maps:
        maps.store("lb_filter", [(0, b"12345678")])


@pytest.mark.parametrize(
    ("change", "name", "found", "wanted"),
    [
        ({"services": 512}, "lb4_service", "256", "512"),
        ({"flow4": 1 << 11}, "lb4_flow", str(32 << 10), str(32 << 11)),
        ({"maglev_size": 509}, "lb_maglev_inner", str(4 * 251), str(4 * 509)),
    ],
)
def test_a_pinned_map_of_another_size_is_refused(bpffs, change, name, found, wanted):
    KernelMaps.open(bpffs, SMALL).close()
    before = sorted(os.listdir(f"{bpffs}/v1"))
    open_before = open_files()
    with pytest.raises(LayoutMismatch) as caught:
        KernelMaps.open(bpffs, resized(**change))
    for part in (name, found, wanted, "lbagent cleanup"):
        assert part in str(caught.value)
    assert sorted(os.listdir(f"{bpffs}/v1")) == before
    assert open_files() <= open_before


def test_a_pinned_map_of_another_type_is_refused(bpffs):
    KernelMaps.open(bpffs, SMALL).close()
    os.unlink(f"{bpffs}/v1/lb_nexthop_id")
    fd = bpf_map.map_create(2, 4, 4, 1)
    bpfsys.obj_pin(fd, f"{bpffs}/v1/lb_nexthop_id")
    os.close(fd)
    with pytest.raises(LayoutMismatch, match="lb_nexthop_id.*type 2, wanted 1"):
        KernelMaps.open(bpffs, SMALL)


def test_opened_as_they_are_the_maps_tell_their_sizes(bpffs):
    KernelMaps.open(bpffs, SMALL).close()
    with KernelMaps.open(bpffs, create=False) as maps:
        assert maps.sizes == SMALL


def test_nothing_is_made_when_only_looking(bpffs):
    with pytest.raises(NotFound, match="no agent has run"):
        KernelMaps.open(bpffs, create=False)
    assert os.listdir(bpffs) == []


def test_inner_tables_go_with_their_last_service(kernel_maps):
    def inner_ids():
        outer = kernel_maps.fd("lb4_maglev")
        found = []
        key = bpf_map.map_next_key(outer, None, 4)
        while key is not None:
            found.append(struct.unpack("=I", bpf_map.map_lookup(outer, key, 4))[0])
            key = bpf_map.map_next_key(outer, key, 4)
        return found

    one, two = struct.pack("=251I", *[1] * 251), struct.pack("=251I", *[2] * 251)
    kernel_maps.set_maglev("lb4_maglev", {1: one, 2: one, 3: two})
    assert len(set(inner_ids())) == 2
    kernel_maps.set_maglev("lb4_maglev", {4: one})
    assert len(set(inner_ids())) == 2, "an equal table that came later shares too"
    kernel_maps.delete_maglev("lb4_maglev", [1, 2, 4])
    kernel_maps.set_maglev("lb4_maglev", {5: one})
    assert kernel_maps.maglev("lb4_maglev") == {3: two, 5: one}
    assert kernel_maps.maglev_ids("lb4_maglev") == {3, 5}
    assert kernel_maps.maglev_ids("lb6_maglev") == set()


def test_counters_are_summed_over_the_cpus(kernel_maps):
    cpus = possible_cpus()
    row = kernel_maps.specs["lb_metrics"].value_size // cpus
    for cpu in range(cpus):
        with kernel_maps.window("lb_metrics", cpu * row + 300 * 16, 16) as cell:
            cell[:] = struct.pack("=QQ", cpu + 1, 100 * (cpu + 1))
    total = cpus * (cpus + 1) // 2
    assert kernel_maps.counters([299, 300]) == [(0, 0), (total, 100 * total)]
    kernel_maps.zero_counters(range(250, 300))
    assert kernel_maps.counters([300]) == [(total, 100 * total)]
    kernel_maps.zero_counters(range(250, 301))
    assert kernel_maps.counters([300]) == [(0, 0)]


def test_zeroing_a_counter_maps_its_page_alone(kernel_maps, monkeypatch):
    """All of them are MiBs a CPU: to map them took longer than the rest of a change."""
    mapped = []
    real = mmap_window.window

    def noted(fd, offset, length, limit):
        if fd == kernel_maps.fds["lb_metrics"]:
            mapped.append(length)
        return real(fd, offset, length, limit)

    monkeypatch.setattr(mmap_window, "window", noted)
    last = kernel_maps.specs["lb_metrics"].value_size // possible_cpus() // 16 - 1
    kernel_maps.zero_counters([7, last, 8, 3])
    assert max(mapped) <= mmap_window.SPAN_BYTES
    rows = len(mapped) // (2 if last * 16 > mmap_window.SPAN_BYTES else 1)
    assert rows == possible_cpus()
    before = sum(mapped)
    kernel_maps.zero_counters([last])
    assert sum(mapped) - before == 16 * possible_cpus()


def test_many_counters_say_what_single_ones_say(kernel_maps):
    """Neighbours are read at once: from an odd place, with gaps, backwards, up to the last."""
    cpus = possible_cpus()
    row = kernel_maps.specs["lb_metrics"].value_size // cpus
    last = row // 16 - 1
    for index in (1, 302, 303, 397, last):
        for cpu in range(cpus):
            with kernel_maps.window("lb_metrics", cpu * row + index * 16, 16) as cell:
                cell[:] = struct.pack("=QQ", index + cpu, 7)

    def written(index: int) -> tuple[int, int]:
        return (sum(index + cpu for cpu in range(cpus)), 7 * cpus) if index in (1, 302, 303, 397, last) else (0, 0)

    asked = [list(range(301, 400)), list(range(397, 300, -1)), list(range(1, 400, 2)), list(range(last - 99, last + 1)),
             [0, *range(1, 100)], [5, *range(last - 99, last + 1)], [last, 1], []]  # fmt: skip
    for indexes in asked:
        assert kernel_maps.counters(indexes) == [written(index) for index in indexes]


def test_batches_and_single_calls_say_the_same(kernel_maps, monkeypatch):
    """Kernels without a batch operation for a map type return ENOTSUPP; the result must not depend on it."""
    refused = bpf_map.Batch(0, bpfsys.ENOTSUPP)
    monkeypatch.setattr(bpf_map, "map_update_batch", lambda *_: refused)
    monkeypatch.setattr(bpf_map, "map_delete_batch", lambda *_: refused)

    def no_reading(self):
        raise OSError(bpfsys.ENOTSUPP, "no batch")

    monkeypatch.setattr(bpf_map.BatchReader, "read", no_reading)
    rows = [(struct.pack("=I", n), n.to_bytes(12, "big")) for n in range(1, 9)]
    kernel_maps.put_many("lb4_backend", rows)
    kernel_maps.delete_many("lb4_backend", [rows[0][0], struct.pack("=I", 99)])
    assert sorted(kernel_maps.items("lb4_backend")) == rows[1:]
    table = struct.pack("=251I", *range(251))
    kernel_maps.set_maglev("lb4_maglev", {1: table, 2: table})
    assert kernel_maps.maglev("lb4_maglev") == {1: table, 2: table}
    kernel_maps.put_many("lb4_reverse_nat", [(struct.pack("=I", 3), b"abcdefgh")])
    assert kernel_maps.items("lb4_reverse_nat") == [(struct.pack("=I", 3), b"abcdefgh")]


def test_a_bucket_larger_than_a_piece_is_read_whole(kernel_maps):
    rows = [(struct.pack("=I", n), n.to_bytes(12, "big")) for n in range(200)]
    kernel_maps.put_many("lb4_backend", rows)
    reader = bpf_map.BatchReader(kernel_maps.fd("lb4_backend"), 4, 12, room=1)
    found = []
    keys, values, count = reader.read()
    while count:
        found += [(keys[i * 4 : i * 4 + 4], values[i * 12 : i * 12 + 12]) for i in range(count)]
        keys, values, count = reader.read()
    assert sorted(found) == sorted(rows)
