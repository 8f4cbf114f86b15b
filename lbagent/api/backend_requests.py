"""Answers the requests about backends: list them, set and clear their states, drain them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from lbagent.api.drains import DrainRow, Drains
from lbagent.api.listed_backends import ListedBackend, listed_backends
from lbagent.api.named_backends import ClearState, NamedBackends, SetState, StartDrain, named_backends
from lbagent.api.operator_states import OperatorStates
from lbagent.api.used_backends import backends_used
from lbagent.errors import ConfigError, Refused
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.cooperative import run_cooperatively
from lbagent.objects.pod_reference import is_pod_reference
from lbagent.targets.data_plane import DataPlane


class _ToSet(NamedTuple):
    """Backends whose state is to be set: `every` one by address and of `pods`. Of `further` some may not take the state."""

    addresses: list[L3n4Addr]
    pods: list[str]
    every: list[L3n4Addr]
    further: list[L3n4Addr]


class BackendRequests:
    """The methods are the answers of capabilities/node_backends.py."""

    def __init__(self, plane: DataPlane, states: OperatorStates, drains: Drains) -> None:
        self._plane, self._states, self._drains = plane, states, drains

    async def listed(self, only: Collection[L3n4Addr] | None = None) -> Iterator[ListedBackend]:
        """Return backends, all or `only` these, with flows counted now."""
        flows, states_set = await self._plane.count_flows(), await self._states.states_set()
        used = await run_cooperatively(backends_used(self._plane.current_state, only), time.monotonic)
        return listed_backends(used, flows, states_set, self._plane.egress_paths(), self._drains.rows())

    async def set_state(self, wanted: SetState) -> Iterator[ListedBackend]:
        """Set the operator's state of these backends, and of all of these Pods' backends, now and later.

        Returns when it is in the maps. All or nothing: raises NotFound when one is not known, InvalidTransition or Refused when one
        may not, with `spare_last` LastBackend when a Service would have none left, before anything is changed.
        """
        state = BackendState.parse(wanted.state) if wanted.state else BackendState.INVALID
        named = self._to_set(wanted, state)
        if state in (BackendState.TERMINATING, BackendState.INVALID):
            raise self._not_to_set(named.every[0], wanted.state or "''")
        await self._states.set_state(named.addresses, state, named.pods, spare_last=wanted.spare_last)
        return await self.listed({*named.every, *named.further})

    async def start_drain(self, wanted: StartDrain) -> Iterator[ListedBackend]:
        """Set maintenance as `set_state` does, and drain these backends and those that cannot take the state.

        A backend that is drained already continues, until the later of both deadlines.
        """
        if wanted.timeout_s < 0:
            raise ConfigError("timeout_s must not be negative; nothing was changed")
        named = self._to_set(wanted, BackendState.MAINTENANCE)
        drains = self._drains.begun(dict.fromkeys((*named.every, *named.further)), wanted.timeout_s)
        await self._states.set_state(
            named.addresses, BackendState.MAINTENANCE, named.pods, spare_last=wanted.spare_last, drains=drains
        )
        await self._drains.check()
        return await self.listed({*named.every, *named.further})

    async def clear_state(self, wanted: ClearState) -> tuple[list[str], Iterator[ListedBackend]]:
        """Forget what the operator set for these backends, for these Pods and for the Pods' backends. Their drains end.

        Returns, when it is in the maps, what had a state (addresses, pod/NAMESPACE/NAME) and the backends as they are now. All or
        nothing: raises NotFound for a backend or Pod of which nothing is known, Refused where the state was set for the whole Pod
        of a backend.
        """
        state = self._plane.current_state
        single, found, pods = named_backends(wanted, state, {*state.backends, *self._states.addresses})
        addresses = [*single, *found]
        if not addresses and not pods:
            raise ConfigError("no backend was named; nothing was changed")
        cleared = await self._states.clear_state(addresses, pods)
        of_backends = (L3n4Addr.parse(name) for name in cleared if not is_pod_reference(name))
        return cleared, await self.listed({*addresses, *of_backends})

    async def drains(self) -> Sequence[DrainRow]:
        """Count flows and return the drains."""
        await self._drains.check()
        return self._drains.rows()

    def flows_left(self, most: int) -> Mapping[str, int]:
        """Return the flows of backends whose drain continues, by address, of at most so many."""
        return self._drains.flows_left(most)

    def _to_set(self, wanted: NamedBackends, state: BackendState) -> _ToSet:
        """Return whose state is to be set. Raises ConfigError where no backend is named, NotFound."""
        current = self._plane.current_state
        asked = named_backends(wanted, current, current.backends)
        addresses, pods = asked.eligible_for(state, current.backends), asked.pods
        every = [*addresses, *(address for pod in pods for address in self._states.backends_of_pod(pod))]
        if not every:
            raise ConfigError("no backend was named; nothing was changed")
        return _ToSet(addresses, pods, every, asked.found)

    def _not_to_set(self, address: L3n4Addr, word: str) -> Refused:
        """Return the refusal of a state that set-state cannot give; it names both states, as every refusal of a state does."""
        known = self._plane.current_state.backends.get(address)
        was = f"state {known.state.text}" if known else "its state"
        return Refused(
            f"backend {address.with_protocol()}: {was} cannot become {word} by set-state; use active, maintenance or"
            " quarantined; nothing was changed"
        )
