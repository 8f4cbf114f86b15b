"""Firewall rules of the node that drop balanced packets."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.kernel import nftables
from lbagent.model.check import Check, Level, Result, When
from lbagent.targets.bpf.checks.offline_context import OfflineContext


def drops_invalid(context: OfflineContext) -> Iterator[Result]:
    """Find rules that drop packets of which conntrack sees one direction only (docs/network.md, "Firewalls beside lbagent")."""
    ruleset = nftables.read_ruleset()
    for chain in nftables.chains_that_drop_invalid(ruleset) if ruleset else ():
        yield Result(str(chain), {"chain": chain}, level=Level.WARNING if context.config.pod_device else Level.NOTE)


CHECKS = (
    Check(
        "drops-invalid",
        "nftables rules that drop `ct state invalid`",
        drops_invalid,
        "nftables: a rule in the chain {chain} drops `ct state invalid`: conntrack sees one direction of the connections to this"
        " node's pods, and takes their packets for invalid",
        "before that rule add one that accepts what goes to pods, like: nft insert rule {chain} oifname POD-DEVICE accept",
        when=When.OFFLINE,
    ),
)
