"""The settings that are in force while nftables has connections from before, and afterwards."""

from __future__ import annotations

import pytest

from lbagent.config import Config
from lbagent.targets.bpf.beside_nftables import BesideNftables

OWN = Config(snat_ports="2000-3000")


@pytest.mark.parametrize(
    ("config", "pinned", "wanted"),
    [
        (Config(), None, "256-1023"),  # netfilter takes none of these
        (OWN, None, "2000-3000"),
        (Config(), (1024, 29999), "1024-29999"),  # flows have ports of it
        (Config(), (256, 1023), "256-1023"),
    ],
)
def test_while_nftables_has_connections(config: Config, pinned: tuple[int, int] | None, wanted: str) -> None:
    beside = BesideNftables()
    beside.snat_ports = pinned
    beside.begin(config, passing=True)
    found = beside.in_force(config)
    assert (found.snat_ports, found.new_flows) == (wanted, "syn")
    assert beside.passing is not None


def test_afterwards_flows_keep_their_ports() -> None:
    beside = BesideNftables()
    beside.begin(Config(), passing=False)
    shared = beside.in_force(Config())
    assert beside.all_ports(shared) == (256, 29999)
    wide = beside.in_force(beside.widen(shared))
    assert (wide.snat_ports, wide.new_flows) == ("256-29999", "syn")
    found = beside.in_force(beside.end(wide))
    assert (found.snat_ports, found.new_flows) == ("256-29999", "any")
    later = BesideNftables()
    later.snat_ports = (256, 29999)  # of the programs that a later agent finds
    assert later.in_force(Config()).snat_ports == "256-29999"


def test_without_nftables_the_settings_are_those_of_the_operator() -> None:
    beside = BesideNftables()
    beside.snat_ports = (1024, 29999)
    assert beside.in_force(OWN) is OWN
