"""Maps get the operator's sizes, and names that are valid for pins and C symbols."""

import pytest

from lbagent.maps import specs
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.map_names import family_map
from lbagent.maps.specs import (
    MAP_NAMES,
    OLD_MAPS,
    TRACE_MAP,
    MapType,
    Sizes,
    counter_stripe_bytes,
    counter_stripes,
    maglev_inner,
    map_specs,
    roles,
)
from lbagent.model.family import Family


def test_map_names_fit_what_pins_and_symbols_need():
    found = map_specs()
    assert {*found, *OLD_MAPS, TRACE_MAP, EVENT_MAP} == set(MAP_NAMES)
    assert len(found) + len(OLD_MAPS) + 2 == len(MAP_NAMES)
    assert set(OLD_MAPS.values()) <= found.keys()
    assert all(name.isidentifier() for name in found)
    assert {spec.key_size for spec in found.values() if spec.type in (MapType.ARRAY, MapType.PERCPU_ARRAY)} == {4}


def test_sizes_reach_the_maps():
    found = map_specs(Sizes(flow4=1 << 12, backends=1 << 10, services=77, source_ranges=5))
    assert found["lb4_flow"].value_size == 32 << 12
    assert found["lb6_path"].value_size == 64 << 10
    assert found["lb6_service"].max_entries == 77
    assert found["lb4_source_range"].max_entries == 5
    assert counter_stripe_bytes(Sizes(backends=1 << 10)) == (256 + 65536 + 1024) * 16


def test_counters_have_a_row_a_cpu_as_far_as_programs_reach(monkeypatch):
    for cpus, rows in ((1, 1), (96, 96), (4096, (1 << 29) // ((256 + 65536 + (1 << 17)) * 16))):
        monkeypatch.setattr(specs, "possible_cpus", lambda cpus=cpus: cpus)
        assert counter_stripes(Sizes(backends=1 << 17)) == rows
        assert map_specs(Sizes(backends=1 << 17))["lb_metrics"].value_size <= 1 << 29


def test_what_a_program_sees_as_one_record_is_an_array_of_one_entry():
    """All of it is mapped at once, so its size is that of its only value."""
    for spec in map_specs().values():
        if spec.flags == specs.F_MMAPABLE:
            assert (spec.type, spec.key_size, spec.max_entries) == (MapType.ARRAY, 4, 1), spec.name
            assert spec.value_size % 8 == 0, spec.name


@pytest.mark.parametrize(
    ("name", "kind", "sizes"),
    [
        # key, value, entries; the records and positions of docs/datapath.md
        ("lb_nexthop", MapType.ARRAY, (4, 4096 * 16, 1)),
        ("lb_nexthop_id", MapType.HASH, (12, 4, 4096)),
        ("lb_device", MapType.ARRAY, (4, 1024 * 16, 1)),
        ("lb_direct", MapType.ARRAY, (4, 4096 * 4, 1)),
        ("lb4_stream", MapType.ARRAY, (4, 32768 * 24, 1)),
        ("lb6_stream", MapType.ARRAY, (4, 32768 * 48, 1)),
        ("lb_live", MapType.ARRAY, (4, 2 * 1024 * 4, 1)),
        ("lb4_left", MapType.HASH, (16, 8, 65536)),
        ("lb6_left", MapType.HASH, (40, 8, 65536)),
        ("lb_closing", MapType.ARRAY, (4, 2 * 1024 * 4, 1)),
        ("lb_handshake", MapType.ARRAY, (4, 8192 * 24, 1)),
        ("lb_tcp", MapType.ARRAY, (4, 1024 * 96, 1)),
        ("lb_filter", MapType.ARRAY, (4, 3 << 17, 1)),
        ("lb_scratch", MapType.PERCPU_ARRAY, (4, 256, 1)),
        ("lb_ratelimit", MapType.PERCPU_ARRAY, (4, 16, 1)),
        ("lb_datagram", MapType.PERCPU_ARRAY, (4, 1 << 14, 1)),
        ("lb_neighbor", MapType.HASH, (20, 1, 1024)),
        ("lb_affinity_match", MapType.HASH, (8, 1, 512)),
        ("lb4_source_range", MapType.LPM_TRIE, (12, 1, 256)),
        ("lb6_source_range", MapType.LPM_TRIE, (24, 1, 256)),
        ("lb4_port_range", MapType.LPM_TRIE, (16, 4, 65536)),
        ("lb6_port_range", MapType.LPM_TRIE, (28, 4, 65536)),
        ("lb4_reverse_nat", MapType.ARRAY, (4, 8, 65536)),
        ("lb6_reverse_nat", MapType.ARRAY, (4, 24, 65536)),
        ("lb4_backend", MapType.HASH, (4, 12, 1024)),
        ("lb6_backend", MapType.HASH, (4, 24, 1024)),
        ("lb4_path", MapType.ARRAY, (4, 1024 * 16, 1)),
        ("lb4_snat", MapType.ARRAY, (4, 2048 * 16, 1)),
        ("lb6_snat", MapType.ARRAY, (4, 4096 * 32, 1)),
        ("lb6_flow", MapType.ARRAY, (4, 8192 * 64, 1)),
        ("lb4_maglev", MapType.HASH_OF_MAPS, (4, 4, 65536)),
        ("lb6_maglev", MapType.HASH_OF_MAPS, (4, 4, 65536)),
        ("lb_calls_xdp", MapType.PROG_ARRAY, (4, 4, 64)),
        ("lb_calls_tc", MapType.PROG_ARRAY, (4, 4, 64)),
        ("lb_crc32c", MapType.ARRAY, (4, 8192, 1)),
    ],
)
def test_what_a_map_holds(name, kind, sizes):
    chosen = Sizes(backends=1 << 10, services=512, source_ranges=256, snat4=2048, snat6=4096, flow6=8192)
    spec = map_specs(chosen)[name]
    assert (spec.type, (spec.key_size, spec.value_size, spec.max_entries)) == (kind, sizes)


def test_settings_are_one_record_that_programs_only_read():
    spec = map_specs()["lb_config"]
    assert (spec.type, spec.key_size, spec.max_entries, spec.flags) == (MapType.ARRAY, 4, 1, 1 << 7)


def test_a_maglev_table_is_one_value_of_backend_ids():
    spec = maglev_inner(Sizes(maglev_size=251))
    assert (spec.name, spec.type, spec.key_size, spec.value_size, spec.max_entries, spec.flags) == (
        "lb_maglev_inner", MapType.ARRAY, 4, 4 * 251, 1, 0,
    )  # fmt: skip


def test_the_role_of_a_map_is_what_its_name_ends_with() -> None:
    """So that both families have the same roles; maps without entries that plans add and delete have none."""
    assert {name: role.name.lower() for name, role in roles().items()} == {
        family_map(family, word): word
        for family in Family
        for word in ("service", "backend", "reverse_nat", "source_range", "port_range", "maglev")
    } | {"lb_affinity_match": "affinity_match"}
    assert {"lb4_path", "lb4_flow", "lb_filter", "lb_metrics", "lb_former_backend"}.isdisjoint(roles())
