"""A family has the size of its addresses and the names of its maps."""

import ipaddress

import pytest

from lbagent.maps.specs import map_specs
from lbagent.model import Family


@pytest.mark.parametrize(
    ("text", "family"),
    [("10.96.0.1", Family.IPV4), ("0.0.0.0", Family.IPV4), ("fd00::1", Family.IPV6), ("::", Family.IPV6)],
)
def test_an_address_tells_its_family(text, family):
    packed = ipaddress.ip_address(text).packed
    assert Family.of(packed) is family
    assert family.address_bytes == len(packed)
    assert family == ipaddress.ip_address(text).version


def test_the_unspecified_address():
    assert [str(ipaddress.ip_address(family.unspecified)) for family in Family] == ["0.0.0.0", "::"]


def test_names_of_maps_carry_the_digit():
    assert [family.map("service") for family in Family] == ["lb4_service", "lb6_service"]
    assert f"flow{Family.IPV6}" == "flow6"


def test_each_map_belongs_to_its_family_or_to_both():
    of = {name: Family.of_map(name) for name in map_specs()}
    assert of["lb4_path"] is Family.IPV4
    assert of["lb6_reverse_nat"] is Family.IPV6
    assert of["lb_filter"] is None
    for family in Family:
        assert all(family.map(name.partition("_")[2]) == name for name, owner in of.items() if owner is family)
