"""A family has the size of its addresses."""

import ipaddress

import pytest

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
