"""Sizes and offsets, against Cilium's headers (offsetof on x86-64) and docs/datapath.md."""

import struct

import pytest

from lbagent.maps import layout
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


def test_reasons_have_room_and_texts_of_their_own():
    assert max(Reason) < REASON_SLOTS
    assert len({label(reason) for reason in Reason}) == len(Reason)
    assert label(Reason.DROP_SNAT_EXHAUSTED) == "drop_snat_exhausted"


def test_probes_of_a_device_go_round_the_end():
    assert [layout.device_position(7, probe) for probe in range(3)] == [7, 8, 9]
    assert [layout.device_position(layout.DEVICES - 2, probe) for probe in range(4)] == [
        layout.DEVICES - 2,
        layout.DEVICES - 1,
        0,
        1,
    ]
    assert layout.device_position(5 * layout.DEVICES + 3, 0) == 3


def test_numbers_side_by_side_are_in_host_order():
    assert list(layout.u32_values(struct.pack("=3I", 1, 0x10203, 7))) == [1, 0x10203, 7]
