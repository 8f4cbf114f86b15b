"""Sizes that follow from other settings."""

from __future__ import annotations

import pytest

from lbagent.config import Config
from lbagent.model.extra_snat_sources import ExtraSnatSources
from lbagent.targets.bpf import bpf_settings

A, B, SIX = b"\x0a\0\0\7", b"\x0a\0\0\x08", b"\xfd" + bytes(14) + b"\7"


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
    sizes = bpf_settings.sizes(config)
    assert (sizes.snat4, sizes.snat6) == (slots, slots)


def test_slots_for_the_ports_of_each_source_address() -> None:
    """Ports of extra SNAT addresses would be of no use in slots that are all held."""
    few = {"flow_table_size": 1024, "flow6_table_size": 1024, "snat_ports": "2000-3023"}
    sizes = bpf_settings.sizes(Config(snat_address=("10.0.0.7", "10.0.0.8", "fd00::7"), **few))  # type: ignore[arg-type]
    assert (sizes.snat4, sizes.snat6) == (4096, 4096)  # 3 * 1,024 ports


def test_numbers_of_extra_snat_addresses_outlive_a_change_of_their_order() -> None:
    """Programs and paths get the same numbers, which live flows have."""
    before = bpf_settings.extra_snat_sources(
        Config(snat_address=("10.0.0.7", "fd00::7", "10.0.0.8")), ExtraSnatSources()
    )
    assert before == ExtraSnatSources((A, B), (SIX,))
    config = Config(snat_address=("10.0.0.8",))
    after = bpf_settings.extra_snat_sources(config, before)
    assert after == ExtraSnatSources((b"", B))
    assert bpf_settings.program_settings(config, after, (1024, 2047)).extra_snat == after
    assert bpf_settings.path_settings(config, after).extra_snat == after


def test_snat_slots_follow_the_flow_table() -> None:
    """By default there are as many slots as flows."""
    sizes = bpf_settings.sizes(Config(flow_table_size=1 << 17))
    assert (sizes.flow6, sizes.snat4, sizes.snat6) == (1 << 16, 1 << 17, 1 << 16)
