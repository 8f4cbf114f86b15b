"""What the filters of `lbagent flow` select, and which words they refuse."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.errors import ConfigError
from lbagent.maps.flow_filter import FlowFilter, endpoint, flow_filter, network
from lbagent.maps.layout import PathL4
from lbagent.model.family import Family

addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).filter(lambda each: each.ipv4_mapped is None))


@given(addresses, addresses, st.integers(0, 128), st.booleans())
def test_a_network_has_the_addresses_that_ipaddress_has_in_it(one, other, bits: int, near: bool) -> None:
    bits = min(bits, one.max_prefixlen)
    wanted = network("--client", f"{one}/{bits}")
    if near:
        other = ipaddress.ip_address(type(one)(int(one) ^ (1 << (one.max_prefixlen - bits) >> 1)).packed)
    of = ipaddress.ip_network(f"{one}/{bits}", strict=False)
    assert wanted.has(other.packed) == (other in of)


@given(addresses, st.integers(0, 65535), st.sampled_from(["", "/TCP", "/udp", "/Sctp"]))
def test_an_endpoint_is_read_as_it_is_written(address, port: int, word: str) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    found = endpoint("--frontend", f"{host}:{port}{word}")
    assert (found.address, found.port) == (address.packed, port)
    assert found.l4 == {"": None, "/TCP": PathL4.TCP, "/udp": PathL4.UDP, "/Sctp": PathL4.SCTP}[word]
    assert endpoint("--frontend", f"{address}{word}").port is None
    assert found.matches(address.packed, port, found.l4 or 0)
    assert not found.matches(address.packed, port ^ 1, found.l4 or 0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"client": "10.0.0.0/33"}, "--client 10.0.0.0/33: it is not a CIDR"),
        ({"client": "10.0.0/8"}, "--client 10.0.0/8: it is not a CIDR"),
        ({"client": "x"}, "--client x: it is not a CIDR, ADDRESS or ADDRESS:PORT"),
        ({"client": "10.0.0.1:"}, "--client 10.0.0.1:"),
        ({"client": "[10.0.0.1]:80"}, "--client [10.0.0.1]:80"),
        ({"client": "[fd00::1]80"}, "--client [fd00::1]80"),
        ({"frontend": "10.0.0.1:70000"}, "--frontend 10.0.0.1:70000: '70000' is not a port"),
        ({"frontend": "10.0.0.1:80/ICMP"}, "--frontend 10.0.0.1:80/ICMP: 'ICMP' is not a protocol"),
        ({"backend": "web"}, "--backend web"),
        ({"service": "a/b/c"}, "--service a/b/c"),
        ({"service": "/web"}, "--service /web"),
        ({"client": "10.0.0.1", "frontend": "fd00::1"}, "--frontend is IPv6 and --client is IPv4"),
        ({"client": "10.0.0.1", "families": [Family.IPV6]}, "--client is IPv4 and -6 selects IPv6"),
        ({"frontend": "10.0.0.1:80/TCP", "proto": "udp"}, "--frontend, --backend and --proto name different protocols"),
    ],
)
def test_words_that_select_nothing_are_refused(words: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flow_filter(**words)  # type: ignore[arg-type]
    assert str(caught.value).startswith(text)
    assert caught.value.exit_code == 2


def test_without_words_everything_is_selected() -> None:
    assert flow_filter() == FlowFilter()
    assert flow_filter().is_empty
    assert not flow_filter(service="web").is_empty
    assert flow_filter(service="web").service == "default/web"
    assert flow_filter(client="10.0.0.1").families == (Family.IPV4,)
    assert network("--client", "::ffff:10.0.0.1").family is Family.IPV4
