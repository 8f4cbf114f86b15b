"""Sizes that follow from other settings."""

from __future__ import annotations

import pytest

from lbagent.agent import layer_settings
from lbagent.config import Config


@pytest.mark.parametrize(
    ("ports", "asked", "slots"),
    [
        ("1024-29999", 0, 32768),  # 28,976 ports
        ("1024-29999", 1024, 32768),
        ("1024-65535", 0, 65536),  # 64,512 ports
        ("2000-3023", 1024, 1024),
        ("2000-3024", 1024, 2048),
        ("1024-29999", 131072, 131072),
    ],
)
def test_as_many_snat_slots_as_ports(ports: str, asked: int, slots: int) -> None:
    """Two ports of one backend never share a slot, however small the tables: a late reply must not find another's flow."""
    config = Config(
        snat_ports=ports, flow_table_size=1024, flow6_table_size=1024, snat_table_size=asked, snat6_table_size=asked
    )
    sizes = layer_settings.sizes(config)
    assert (sizes.snat4, sizes.snat6) == (slots, slots)


def test_snat_slots_follow_the_flow_table() -> None:
    """By default there are as many slots as flows."""
    sizes = layer_settings.sizes(Config(flow_table_size=1 << 17))
    assert (sizes.flow6, sizes.snat4, sizes.snat6) == (1 << 16, 1 << 17, 1 << 16)
