"""Services for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import Backend
from lbagent.model.service import SVC, ServiceName
from lbagent.targets.nftables.chains import TableSettings
from lbagent.targets.nftables.rule_set import RuleSet

WEB = ServiceName("default", "web")


def backend(text: str, *, local: bool = False, weight: int = 100) -> Backend:
    """Return a backend of `ADDRESS:PORT[/PROTO]`."""
    return Backend(0, L3n4Addr.parse(text), weight=weight, local=local)


def row(frontend: str, *backends: str, local: Sequence[str] = (), name: ServiceName = WEB, **fields: Any) -> SVC:
    """Return a frontend of `ADDRESS:PORT[/PROTO][/i]` with these backends, of which some are local."""
    made = tuple(backend(text, local=text in local) for text in backends)
    return SVC(L3n4Addr.parse(frontend), 0, name, port_name=fields.pop("port_name", "http"), selectable=made, **fields)


def wildcard(address: str, name: ServiceName = WEB) -> SVC:
    """Return the row of a ClusterIP that stands for all ports."""
    return SVC(L3n4Addr(address, 0, L4Type.NONE, Scope.EXTERNAL), 0, name, wildcard=True)


def rule_set(*rows: SVC, **settings: Any) -> RuleSet:
    """Return the rule set of these rows."""
    made = RuleSet(TableSettings(**settings), lambda each: each.local)
    by_name: dict[ServiceName, list[SVC]] = {}
    for each in rows:
        by_name.setdefault(each.name, []).append(each)
    for name, found in by_name.items():
        made.update(name, found)
    return made


def words(rules: RuleSet, name: str) -> list[str]:
    """Return the elements of a set or map as nft writes them."""
    from lbagent.targets.nftables.map_specs import MAPS

    return [MAPS[name].element_text(key, element) for key, element in sorted(rules.elements()[name].items())]
