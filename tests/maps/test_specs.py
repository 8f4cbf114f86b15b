"""Maps get the sizes an operator chose, and names that pins and C symbols can have."""

from lbagent.maps import specs
from lbagent.maps.specs import MAP_NAMES, OLD_MAPS, MapType, Sizes, counter_row, counter_rows, map_specs


def test_map_names_fit_what_pins_and_symbols_need():
    found = map_specs()
    assert len(found) + len(OLD_MAPS) == len(set(MAP_NAMES))
    assert set(OLD_MAPS.values()) <= found.keys()
    assert all(name.isidentifier() for name in found)
    assert {spec.key_size for spec in found.values() if spec.type in (MapType.ARRAY, MapType.PERCPU_ARRAY)} == {4}


def test_sizes_reach_the_maps():
    found = map_specs(Sizes(flow4=1 << 12, backends=1 << 10, services=77, source_ranges=5))
    assert found["lb4_flow"].value_size == 32 << 12
    assert found["lb6_path"].value_size == 64 << 10
    assert found["lb6_service"].max_entries == 77
    assert found["lb4_source_range"].max_entries == 5
    assert counter_row(Sizes(backends=1 << 10)) == (256 + 65536 + 1024) * 16


def test_counters_have_a_row_a_cpu_as_far_as_programs_reach(monkeypatch):
    for cpus, rows in ((1, 1), (96, 96), (4096, (1 << 29) // ((256 + 65536 + (1 << 17)) * 16))):
        monkeypatch.setattr(specs, "possible_cpus", lambda cpus=cpus: cpus)
        assert counter_rows(Sizes(backends=1 << 17)) == rows
        assert map_specs(Sizes(backends=1 << 17))["lb_metrics"].value_size <= 1 << 29


def test_what_a_program_sees_as_one_record_is_an_array_of_one_entry():
    """All of it is mapped at once, so its size is that of its only value."""
    for spec in map_specs().values():
        if spec.flags == specs.F_MMAPABLE:
            assert (spec.type, spec.key_size, spec.max_entries) == (MapType.ARRAY, 4, 1), spec.name
            assert spec.value_size % 8 == 0, spec.name
