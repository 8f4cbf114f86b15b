"""Sizes and offsets, against Cilium's headers (offsetof on x86-64) and docs/datapath.md."""

import socket
import struct

import pytest

from lbagent.maps import layout
from lbagent.maps.layout import MapType, Sizes, filter_hash, map_specs
from lbagent.maps.reasons import REASON_SLOTS, Reason, label


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("LB4_KEY", 12), ("LB6_KEY", 24), ("LB_SERVICE", 12), ("LB4_BACKEND", 12), ("LB6_BACKEND", 24),
        ("LB4_REVERSE_NAT", 8), ("LB6_REVERSE_NAT", 24), ("LB4_AFFINITY_KEY", 16), ("LB6_AFFINITY_KEY", 24),
        ("LB_AFFINITY_VALUE", 16), ("LB_AFFINITY_MATCH", 8), ("LB4_SOURCE_RANGE_KEY", 12), ("LB6_SOURCE_RANGE_KEY", 24),
        ("LB4_PATH", 16), ("LB6_PATH", 64), ("LB_NEXTHOP", 16), ("LB_COUNTER", 16),
    ],
)  # fmt: skip
def test_size_of_a_record(name, size):
    assert getattr(layout, name).size == size


@pytest.mark.parametrize(
    ("name", "field", "offset"),
    [
        ("LB4_KEY", "dport", 4), ("LB4_KEY", "backend_slot", 6), ("LB4_KEY", "proto", 8), ("LB4_KEY", "scope", 9),
        ("LB6_KEY", "dport", 16), ("LB6_KEY", "backend_slot", 18), ("LB6_KEY", "proto", 20), ("LB6_KEY", "scope", 21),
        ("LB_SERVICE", "count", 4), ("LB_SERVICE", "rev_nat_index", 6), ("LB_SERVICE", "flags", 8), ("LB_SERVICE", "flags2", 9),
        ("LB_SERVICE", "qcount", 10), ("LB4_BACKEND", "port", 4), ("LB4_BACKEND", "flags", 7), ("LB4_BACKEND", "zone", 10),
        ("LB6_BACKEND", "port", 16), ("LB6_BACKEND", "flags", 19), ("LB6_BACKEND", "cluster_id", 20),
        ("LB4_AFFINITY_KEY", "rev_nat_index", 8), ("LB_AFFINITY_MATCH", "rev_nat_index", 4),
        ("LB4_SOURCE_RANGE_KEY", "rev_nat_index", 4), ("LB4_SOURCE_RANGE_KEY", "address", 8),
    ],
)  # fmt: skip
def test_offset_of_a_field(name, field, offset):
    assert getattr(layout, name).offsets()[field] == offset


@pytest.mark.parametrize("record", [layout.LB4_PATH, layout.LB6_PATH])
def test_the_meta_of_a_path_is_one_aligned_word(record):
    at = record.offsets()
    assert at["port"] % 8 == 0
    assert [at[name] - at["port"] for name in ("port", "gen", "flags", "nexthop", "mtu")] == [0, 2, 3, 4, 6]
    assert record.size % 16 == 0, "records do not straddle cache lines"


def test_records_pack_as_c_lays_them_out():
    packed = layout.LB_SERVICE.pack(0x04030201, 0x0605, b"\7\x08", 9, 10, 0x0C0B)
    assert packed == bytes(range(1, 13))
    assert layout.LB_SERVICE.unpack(packed) == (0x04030201, 0x0605, b"\7\x08", 9, 10, 0x0C0B)


def test_map_names_fit_what_pins_and_symbols_need():
    specs = map_specs()
    assert len(specs) + len(layout.OLD_MAPS) == len(set(layout.MAP_NAMES))
    assert set(layout.OLD_MAPS.values()) <= specs.keys()
    assert all(name.isidentifier() for name in specs)
    assert {spec.key_size for spec in specs.values() if spec.type in (MapType.ARRAY, MapType.PERCPU_ARRAY)} == {4}


def test_sizes_reach_the_maps():
    specs = map_specs(Sizes(flow4=1 << 12, backends=1 << 10, services=77, source_ranges=5))
    assert specs["lb4_flow"].value_size == 32 << 12
    assert specs["lb6_path"].value_size == 64 << 10
    assert specs["lb6_service"].max_entries == 77
    assert specs["lb4_source_range"].max_entries == 5
    assert layout.counter_row(Sizes(backends=1 << 10)) == (256 + 65536 + 1024) * 16


def test_counters_have_a_row_a_cpu_as_far_as_programs_reach(monkeypatch):
    for cpus, rows in ((1, 1), (96, 96), (4096, (1 << 29) // ((256 + 65536 + (1 << 17)) * 16))):
        monkeypatch.setattr(layout, "possible_cpus", lambda cpus=cpus: cpus)
        assert layout.counter_rows(Sizes(backends=1 << 17)) == rows
        assert map_specs(Sizes(backends=1 << 17))["lb_metrics"].value_size <= 1 << 29


@pytest.mark.parametrize(
    ("address", "position"),
    [
        (bytes((10, 96, 0, 1)), (0x0100600A * 0x9E3779B1 % (1 << 32)) >> 12),
        (bytes(16), 0),
        (struct.pack("<2Q", 1, 0), ((0x9E3779B97F4A7C15 ^ 0x9E3779B9) * 0xBF58476D1CE4E5B9 % (1 << 64)) >> 44),
        (struct.pack("<2Q", 0, 1), 0xBF58476D1CE4E5B9 >> 44),
    ],
)
def test_the_filter_hashes_words_as_the_kernel_loads_them(address, position):
    assert filter_hash(address) == position


@pytest.mark.parametrize(
    ("vips", "pods"),
    [("fd00:96::", "fd00:244::"), ("fd00:10:96::", "fd00:10:244::"), ("2001:db8:1::", "2001:db8:1:1::")],
)
def test_neighbouring_ipv6_prefixes_do_not_lie_over_each_other(vips, pods):
    # 10,000 VIPs take 1 % of the positions; pods numbered alike must meet them by chance alone
    def numbered(prefix):
        base = int.from_bytes(socket.inet_pton(socket.AF_INET6, prefix), "big")
        return {filter_hash((base + n).to_bytes(16, "big")) for n in range(1, 10001)}

    assert len(numbered(vips) & numbered(pods)) < 300


def test_reasons_have_room_and_texts_of_their_own():
    assert max(Reason) < REASON_SLOTS
    assert len({label(reason) for reason in Reason}) == len(Reason)
    assert label(Reason.DROP_SNAT_EXHAUSTED) == "drop_snat_exhausted"
