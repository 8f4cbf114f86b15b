"""Which namespaces use most of a table: for `lbagent status` when one is nearly full. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lbagent.maps.map_names import family_map
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.model.id_claims import namespace_of
from lbagent.model.service import SVC
from lbagent.targets.bpf.shadow import entry_counts

BACKEND_IDS, SERVICE_IDS = "backend ids", "service ids"
_SHOWN = 3
_BACKEND_MAPS = {family_map(family, "backend"): family for family in Family}


def largest_namespaces(services: Sequence[SVC], table: str) -> dict[str, int]:
    """Return how many entries of a table each of the namespaces uses that use most, the largest first.

    `table` is the name of a map, or BACKEND_IDS or SERVICE_IDS. A backend counts once in each namespace.
    """
    return dict(_uses(services, table).most_common(_SHOWN))


def _uses(services: Sequence[SVC], table: str) -> Counter[str]:
    if table == BACKEND_IDS:
        return _backends(services, tuple(Family))
    if table in _BACKEND_MAPS:
        return _backends(services, (_BACKEND_MAPS[table],))
    found: Counter[str] = Counter()
    for svc in services:
        number = not svc.wildcard if table == SERVICE_IDS else entry_counts(svc.frontend.family, svc).get(table, 0)
        if number:
            found[namespace_of(svc.name)] += number
    return found


def _backends(services: Sequence[SVC], families: tuple[Family, ...]) -> Counter[str]:
    found: dict[str, set[L3n4Addr]] = {}
    for svc in services:
        addresses = found.setdefault(namespace_of(svc.name), set())
        addresses.update(each.address for each in svc.backends if each.address.family in families)
    return Counter({namespace: len(addresses) for namespace, addresses in found.items() if addresses})
