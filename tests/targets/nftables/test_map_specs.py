"""Keys and values of maps, as bytes and as nft writes them."""

from __future__ import annotations

import sys

import pytest

from lbagent.model.address import L4Type, parse_ip
from lbagent.targets.nftables.map_specs import (
    MAPS,
    Element,
    backend_text,
    backend_value,
    device_key,
    frontend_key,
    range_key,
    slot_bytes,
)


@pytest.mark.parametrize(
    ("address", "name", "size"), [("10.96.0.1", "frontends4", 12), ("fd00::1", "frontends6", 24)], ids=["ipv4", "ipv6"]
)
def test_a_frontend(address: str, name: str, size: int) -> None:
    key = frontend_key(parse_ip(address), L4Type.UDP, 53)
    assert len(key) == MAPS[name].key_bytes == size
    assert MAPS[name].key_text(key) == f"{address} . udp . 53"
    assert (
        MAPS[name].element_text(key, Element("goto random4-3", "a/b c"))
        == f'{address} . udp . 53 comment "a/b c" : goto random4-3'
    )


def test_a_slot_is_in_the_order_of_this_machine() -> None:
    key = frontend_key(parse_ip("10.96.0.1"), L4Type.TCP, 80) + slot_bytes(258)
    assert key[-4:] == (258).to_bytes(4, sys.byteorder)
    assert MAPS["backends4"].key_text(key) == "10.96.0.1 . tcp . 80 . 258"


def test_a_backend() -> None:
    value = backend_value(parse_ip("fd01::2"), 8080)
    assert (len(value), backend_text(value)) == (20, "fd01::2 . 8080")


def test_ranges() -> None:
    frontend = frontend_key(parse_ip("10.96.0.1"), L4Type.TCP, 80)
    key = range_key(frontend, parse_ip("10.0.0.0"), parse_ip("10.255.255.255"))
    assert MAPS["ranges4"].key_text(key) == "10.96.0.1 . tcp . 80 . 10.0.0.0/8"
    one = range_key(frontend, parse_ip("10.0.0.7"), parse_ip("10.0.0.7"))
    assert MAPS["ranges4"].key_text(one) == "10.96.0.1 . tcp . 80 . 10.0.0.7"


def test_a_device() -> None:
    assert MAPS["pod_devices"].key_text(device_key("veth12")) == '"veth12"'
    assert len(device_key("veth12")) == MAPS["pod_devices"].key_bytes


def test_a_single_field_is_not_padded() -> None:
    assert MAPS["protocols"].key_bytes == 1
    assert MAPS["protocols"].key_text(b"\x06") == "tcp"


def test_every_map_has_both_families_or_none() -> None:
    names = {name.rstrip("46") for name in MAPS if name[-1] in "46"}
    assert {f"{name}{digit}" for name in names for digit in "46"} | {"protocols", "pod_devices"} == set(MAPS)
