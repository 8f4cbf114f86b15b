"""What the API server asks of the agent: the methods here, and those that are an answer by themselves, which api_routes.py names.

The agent implements both (agent/facade.py); nothing else of it is reachable over the socket.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from lbagent.api.types import DrainRow
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.state import State
from lbagent.targets.data_plane import EgressOf, FlowCounts


class SetBy(NamedTuple):
    """Which state was set for a backend, by what (the operator, a place in a file), and when (seconds since 1970, 0: unknown)."""

    state: BackendState
    what: str
    at: float = 0.0


class AgentApi(Protocol):
    """The agent as the server sees it. All methods run in the agent's event loop and must not block it."""

    def state(self) -> State:
        """Return the State that is in the maps, ids filled in; an empty one before the first."""
        ...

    def external_clusterip(self) -> bool:
        """Return whether sources outside the node reach ClusterIPs."""
        ...

    async def count_flows(self) -> FlowCounts:
        """Count live flows now; where that takes long or fails, return the last counts with their age."""
        ...

    def backend_egress(self) -> EgressOf:
        """Return a function that says, as of now, how packets get to a backend."""
        ...

    async def states_set(self) -> Mapping[L3n4Addr, SetBy]:
        """Return what set the state of each backend whose state was set, by the operator or a BackendState."""
        ...

    def set_by_operator(self) -> Collection[L3n4Addr]:
        """Return the addresses for which the operator set a state, also those that no service has."""
        ...

    def backends_of_pod(self, pod: str) -> Sequence[L3n4Addr]:
        """Return the backends of a Pod, by its key NAMESPACE/NAME. Raises NotFound when it has none."""
        ...

    async def set_state(
        self,
        addresses: Sequence[L3n4Addr],
        state: BackendState,
        *,
        pods: Sequence[str] = (),
        spare_last: bool = False,
    ) -> None:
        """Set the operator's state of these backends, and of all of these Pods' backends, now and later.

        Returns when it is in the maps. All or nothing: NotFound when one is not known, InvalidTransition when one may not,
        with `spare_last` LastBackend when a Service would have none left, before anything is changed.
        """
        ...

    async def start_drain(
        self,
        addresses: Sequence[L3n4Addr],
        timeout_s: float,
        *,
        pods: Sequence[str] = (),
        further: Sequence[L3n4Addr] = (),
        spare_last: bool = False,
    ) -> None:
        """Set maintenance as `set_state` does, and drain these backends and `further` ones, which keep their state.

        A backend that is drained already goes on so, until the later of both deadlines.
        """
        ...

    def drains(self) -> Sequence[DrainRow]:
        """Return the drains as they were at the last count, those that go on first."""
        ...

    async def clear_state(self, addresses: Sequence[L3n4Addr], *, pods: Sequence[str] = ()) -> list[str]:
        """Forget what the operator set for these backends, for these Pods and for the Pods' backends; return the names.

        Their drains end. Returns when it is in the maps. All or nothing: NotFound for a backend or Pod of which nothing is known,
        Refused where the state was set for the whole Pod of a backend.
        """
        ...

    async def wait_change(self, generation: int, timeout_s: float) -> int:
        """Return the generation in the maps as soon as it differs from `generation`, at the latest after `timeout_s`."""
        ...

    async def verify(self) -> Sequence[str]:
        """Return in what the maps differ from what the agent wrote, and the paths from what its State asks for, one sentence each.

        Raises KernelError, and TimedOut before the first State is in the maps.
        """
        ...

    def settings(self) -> Mapping[str, object]:
        """Return the configuration in force, by key."""
        ...
