"""The rules of a Service about its new flows: how many it may have, how many may begin in a second, how new backends start."""

from __future__ import annotations

from msgspec import Struct


class FlowRules(Struct, frozen=True, gc=False, kw_only=True):
    """Numbers are of one node and over all frontends of the Service; 0: no limit, no slow start.

    `is_restored`: the maps have rules for the frontend, and no object has named them yet: they stay as they are.
    """

    max_flows: int = 0
    max_flows_per_backend: int = 0
    new_flow_rate: int = 0
    reject: bool = False  # a flow beyond a limit is answered, not dropped
    slow_start_s: int = 0
    is_restored: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is limited, and no backend starts slowly."""
        return not (self.max_flows or self.max_flows_per_backend or self.new_flow_rate or self.slow_start_s)


NO_RULES = FlowRules()
RESTORED_RULES = FlowRules(is_restored=True)
