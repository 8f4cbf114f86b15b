"""What the API server asks of the agent. The agent implements it; nothing else of the agent is reachable over the socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lbagent.api.types import Status
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.state import State


class AgentApi(Protocol):
    """The agent as the server sees it. All methods run in the agent's event loop and must not block it."""

    def state(self) -> State:
        """Return the State that is in the maps, ids filled in; an empty one before the first."""
        ...

    def status(self) -> Status:
        """Return how the agent is, now."""
        ...

    def live_flows(self) -> Mapping[int, int] | None:
        """Return live flows by backend id as of the last sweep (a missing id has none); None before the first sweep."""
        ...

    def backends_of_pod(self, pod: str) -> Sequence[L3n4Addr]:
        """Return the backends of a Pod, by its key NAMESPACE/NAME. Raises NotFound when it has none."""
        ...

    async def set_state(self, addresses: Sequence[L3n4Addr], state: BackendState, *, pods: Sequence[str] = ()) -> None:
        """Set the operator's state of these backends, and of all of these Pods' backends, now and later.

        Returns when it is in the maps. All or nothing: NotFound when one is not known, InvalidTransition when one may not,
        before anything is changed.
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

    def metrics(self) -> Iterable[str]:
        """Yield the Prometheus text in pieces of at most some 64 KiB (observe.metrics.render)."""
        ...
