"""Other programs of this node that balance Services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lbagent.checks.kube_proxy_leftovers import has_ipvs_device, leftovers
from lbagent.checks.offline_node import OfflineNode
from lbagent.model.check import Check, Level, Result, When

_OTHERS = {"kube-proxy": "Services are balanced twice", "cilium-agent": "Cilium balances Services as well"}
_KUBE_PROXY = "let only one of them serve a Service; `lbagent doctor --kubernetes` lists its leftovers"


def other_balancer(node: OfflineNode) -> Iterator[Result]:
    """Find the processes, and the device of kube-proxy's mode ipvs; not where no data plane of --renderer balances packets."""
    if not node.balances:
        return
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add((entry / "comm").read_text(encoding="utf-8", errors="replace").strip())
            except OSError:
                continue
    if has_ipvs_device():
        found.add("kube-proxy")
    for name in sorted(found & _OTHERS.keys()):
        remedy = _KUBE_PROXY if name == "kube-proxy" else None
        yield Result(name, {"name": name, "effect": _OTHERS[name]}, remedy=remedy)


def kube_proxy_left(node: OfflineNode) -> Iterator[Result]:
    """Find leftovers of kube-proxy on this node, if requested (--kubernetes)."""
    if node.kubernetes:
        found = list(leftovers())
        yield from found or [Result(level=Level.OK)]


CHECKS = (
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
