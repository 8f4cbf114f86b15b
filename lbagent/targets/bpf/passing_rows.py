"""Rows by which bpf begins no flow: packets of no flow pass to the stack, where another data plane has them. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from lbagent.model.flags import ServiceFlags
from lbagent.model.service import SVC
from lbagent.model.state import State


class PassingRows:
    """Makes rows whose frontends begin no flows, and keep those they have: the same object for the same row."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[SVC, SVC]] = {}  # by the identity of the row, which is kept

    def state(self, state: State) -> State:
        """Return the State of these rows."""
        made = {id(svc): self._made.get(id(svc)) or (svc, passing(svc)) for svc in state.services}
        self._made = made
        return State(state.generation, tuple(row for _, row in made.values()))


def passing(svc: SVC) -> SVC:
    """Return the row as one of an L7 proxy without a port. A row without a port has no flows, and stays."""
    if svc.wildcard:
        return svc
    return replace(svc, flags=ServiceFlags(svc.flags | ServiceFlags.L7_LOAD_BALANCER), l7_lb_proxy_port=0)
