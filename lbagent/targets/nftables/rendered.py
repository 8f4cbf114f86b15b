"""The rule set of a State as `lbagent render` prints it, without the kernel: text for `nft -f`, or JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from lbagent.model.service import SVC, ServiceName
from lbagent.targets.nftables.chains import TableSettings
from lbagent.targets.nftables.nft_text import table_json, table_text
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.rule_set import RuleSet


def ruleset_text(svcs: Iterable[SVC], node: NodePlace, settings: TableSettings) -> str:
    """Return the table for `nft -f`, which replaces the one that is there: the same frontends give the same bytes."""
    return table_text(_rule_set(svcs, node, settings))


def ruleset_json(svcs: Iterable[SVC], node: NodePlace, settings: TableSettings) -> dict[str, Any]:
    """Return the table as libnftables lists it in JSON."""
    return table_json(_rule_set(svcs, node, settings))


def unsupported(svcs: Iterable[SVC], node: NodePlace, settings: TableSettings) -> list[tuple[ServiceName, str]]:
    """Return what of Services is not served, and why."""
    return list(_rule_set(svcs, node, settings).unsupported())


def _rule_set(svcs: Iterable[SVC], node: NodePlace, settings: TableSettings) -> RuleSet:
    by_name: dict[ServiceName, list[SVC]] = {}
    for svc in svcs:
        by_name.setdefault(svc.name, []).append(svc)
    rules = RuleSet(replace(settings, as_text=True), node.is_local)
    rules.set_node(node.devices, node.nodes)
    for name, rows in by_name.items():
        rules.update(name, rows)
    return rules
