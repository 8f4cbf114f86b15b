"""Answers the requests about backends: list them, set and clear their states, drain them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lbagent.api.backend_details import KnownBackend, backends_with, using_frontends
from lbagent.api.checked_backends import NOTHING_CHECKED, CheckedBackends
from lbagent.api.drains import DrainRow, Drains
from lbagent.api.listed_backends import ListedBackend, listed_backends
from lbagent.api.named_backends import ClearState, EndFlows, NamedBackends, SetState, StartDrain, named_backends
from lbagent.api.operator_states import OperatorStates
from lbagent.api.used_backends import backends_used
from lbagent.errors import ConfigError, NotFound, Refused
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.cooperative import run_cooperatively
from lbagent.objects.pod_reference import is_pod_reference
from lbagent.targets.data_plane import ShownPlane

if TYPE_CHECKING:
    from lbagent.apilb.native.pool_rows import NativePools

MAX_TIMED = 5000  # with more backends a list has no handshakes: `backend get` and the metrics
LAST_COUNT_S = 60.0  # until a drain whose flows were ended must have been counted


class _ToSet(NamedTuple):
    """Backends whose state is to be set: `every` one by address and of `pods`. Of `further` some may not take the state."""

    addresses: list[L3n4Addr]
    pods: list[str]
    every: list[L3n4Addr]
    further: list[L3n4Addr]


class BackendRequests:
    """The methods are the answers of capabilities/node_backends.py."""

    def __init__(
        self,
        plane: ShownPlane,
        states: OperatorStates,
        drains: Drains,
        checked: CheckedBackends = NOTHING_CHECKED,
        native: NativePools | None = None,
    ) -> None:
        """`native`: the native pools that this agent serves."""
        self._plane, self._states, self._drains = plane, states, drains
        self._checked, self._native = checked, native

    async def listed(self, only: Collection[L3n4Addr] | None = None) -> Iterator[ListedBackend]:
        """Return backends, all or `only` these, with flows counted now."""
        flows, states_set = await self._plane.count_flows(), await self._states.states_set()
        used = await run_cooperatively(backends_used(self._plane.current_state, only), time.monotonic)
        few = len(used) <= MAX_TIMED
        handshakes = self._plane.handshakes([backend.id for backend, _ in used]) if few else {}
        checks = await run_cooperatively(self._checked.by_backend(only), time.monotonic)
        ways, drains = self._plane.egress_paths(), self._drains.rows()
        return listed_backends(used, flows, states_set, ways, drains, handshakes, checks)

    async def details(self, address: str) -> tuple[ListedBackend, KnownBackend]:
        """Return everything about one backend. Raises NotFound, ConfigError for a text that is no address or names several."""
        state = self._plane.current_state
        names = backends_with(address, state.backends)
        if not names:
            raise NotFound(f"no backend {address} is served here; see `lbagent backend list`")
        if len(names) > 1:
            raise ConfigError(f"{address} names {', '.join(each.with_protocol() for each in names)}: name one of them")
        (listed,) = await self.listed(names)
        traffic = self._plane.counters().backends.get(listed.backend.id, (0, 0))
        pods = await self._states.pods_of(names)
        checks = self._native.checks_of(names[0]) if self._native else []
        frontends = list(using_frontends(state, names[0]))
        return listed, KnownBackend(pods.get(names[0], ""), frontends, traffic, listed.handshakes, checks)

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

    async def end_flows(self, wanted: EndFlows) -> Iterator[ListedBackend]:
        """End the flows of backends that take no new ones; returns when it is in the maps. Raises NotFound, Refused, LbError.

        A drain of one of them that timed out begins again, so that it ends as drained.
        """
        current = self._plane.current_state
        asked = named_backends(wanted, current, current.backends)
        of_pods = (address for pod in asked.pods for address in self._states.backends_of_pod(pod))
        every = list(dict.fromkeys((*asked.addresses, *asked.found, *of_pods)))
        if not every:
            raise ConfigError("no backend was named; nothing was changed")
        await self._states.end_flows(every)
        drained = {row.address for row in self._drains.rows()}
        drains = self._drains.begun([each for each in every if each.with_protocol() in drained], LAST_COUNT_S)
        await self._states.set_state([], BackendState.MAINTENANCE, drains=drains)
        return await self.listed(every)

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
        addresses, pods = asked.eligible_for(state, self._states.settable()), asked.pods
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
