"""Other programs of this node that balance Services, and firewall rules that drop balanced packets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lbagent.checks.kube_proxy_leftovers import leftovers
from lbagent.checks.offline_context import OfflineContext
from lbagent.kernel import nftables
from lbagent.model.check import Check, Level, Result, When

_OTHERS = {"kube-proxy": "Services are balanced twice", "cilium-agent": "Cilium balances Services as well"}
_KUBE_PROXY = "let only one of them serve a Service; `lbagent doctor --kubernetes` lists its leftovers"


def drops_invalid(context: OfflineContext) -> Iterator[Result]:
    """Find rules that drop packets of which conntrack sees one direction only (docs/network.md, "Firewalls beside lbagent")."""
    ruleset = nftables.read_ruleset()
    for chain in nftables.chains_that_drop_invalid(ruleset) if ruleset else ():
        yield Result(str(chain), {"chain": chain}, level=Level.WARNING if context.config.pod_device else Level.NOTE)


def other_balancer(context: OfflineContext) -> Iterator[Result]:
    """Find the processes, and the device of kube-proxy's mode ipvs."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add((entry / "comm").read_text(encoding="utf-8", errors="replace").strip())
            except OSError:
                continue
    if "kube-ipvs0" in context.present:
        found.add("kube-proxy")
    for name in sorted(found & _OTHERS.keys()):
        remedy = _KUBE_PROXY if name == "kube-proxy" else None
        yield Result(name, {"name": name, "effect": _OTHERS[name]}, remedy=remedy)


def kube_proxy_left(context: OfflineContext) -> Iterator[Result]:
    """Find leftovers of kube-proxy on this node, if requested (--kubernetes)."""
    if context.kubernetes:
        found = list(leftovers())
        yield from found or [Result(level=Level.OK)]


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
    Check(
        "other-balancer",
        "processes of kube-proxy and Cilium",
        other_balancer,
        "{name} is running here: {effect}",
        "let only one of them serve a Service",
        when=When.OFFLINE,
    ),
    Check(
        "kube-proxy-left",
        "with `--kubernetes`: tables, chains, the device and the ports of kube-proxy",
        kube_proxy_left,
        good="nothing of kube-proxy is on this node: no rules, no addresses, no ports",
        when=When.OFFLINE,
    ),
)
