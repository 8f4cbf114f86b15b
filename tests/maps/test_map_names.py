"""The names of maps have the digit of their family."""

from lbagent.maps.map_names import family_map, family_of_map
from lbagent.maps.specs import map_specs
from lbagent.model import Family


def test_names_of_maps_carry_the_digit():
    assert [family_map(family, "service") for family in Family] == ["lb4_service", "lb6_service"]
    assert f"flow{Family.IPV6}" == "flow6"


def test_each_map_belongs_to_its_family_or_to_both():
    of = {name: family_of_map(name) for name in map_specs()}
    assert of["lb4_path"] is Family.IPV4
    assert of["lb6_reverse_nat"] is Family.IPV6
    assert of["lb_filter"] is None
    for family in Family:
        assert all(family_map(family, name.partition("_")[2]) == name for name, owner in of.items() if owner is family)
