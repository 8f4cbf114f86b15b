"""Whether service or backend ids run out. From 80 % on a namespace above its fair share gets no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.model.fair_share import guard_of
from lbagent.targets.bpf.namespace_use import BACKEND_IDS

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_ids(components: AgentComponents) -> Iterator[Condition]:
    """Name the kind of ids of which at least 80 % are in use, and the namespaces that have most."""
    for name, (used, size) in components.bpf.id_usage().items():
        if used >= guard_of(size):
            most = ", ".join(f"{each} {number}" for each, number in components.bpf.largest_namespaces(name).items())
            yield Condition(
                ConditionName.MAP_NEARLY_FULL,
                name,
                f"{used} of {size} {name} are in use ({used / size:.0%}), most of them by namespace: {most}",
                "raise --max-backends, or limit a namespace with --max-endpoints-per-namespace"
                if name == BACKEND_IDS
                else "use fewer ports or addresses in Services; lower --max-frontends-per-service",
            )
