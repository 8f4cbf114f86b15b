"""The states that the operator sets for backends: `backend set-state`, `drain` and `clear-state` in the running agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lbagent.api.named_backends import services_left_empty, some
from lbagent.errors import LastBackend, LbError, NotFound, Refused
from lbagent.kernel.private_folder import unwritable
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import run_cooperatively
from lbagent.model.state import State
from lbagent.objects.object_event import ObjectEvent
from lbagent.objects.pod_reference import pod_reference
from lbagent.objects.records import OPERATOR
from lbagent.resolve.pod_backends import backends_of_pod, pods_at, pods_of_backends

if TYPE_CHECKING:
    from lbagent.objects.object_event import EventSink
    from lbagent.objects.records import FailedChecks, StateOverride
    from lbagent.objects.source import Source
    from lbagent.sources.operator import KeptDrain, OperatorSource
    from lbagent.sync.loop import SyncLoop
    from lbagent.sync.target_protocol import Target
    from lbagent.targets.data_plane import ShownState


class SetBy(NamedTuple):
    """Which state was set for a backend, by what (the operator, a place in a file), and when (seconds since 1970, 0: unknown)."""

    state: BackendState
    what: str
    at: float = 0.0


class OperatorStates:
    """Checks what the operator asks for, has it kept (sources/operator.py), and returns when it is in the maps."""

    def __init__(
        self,
        plane: ShownState,
        targets: Sequence[Target],
        loop: SyncLoop,
        sources: Sequence[Source],
        operator: OperatorSource,
        *,
        state_dir: str,
        node_name: str,
        events: Sequence[EventSink] = (),
        failed: Callable[[], Iterable[FailedChecks]] = tuple,
    ) -> None:
        """`events` receive an Event for each Pod whose state changes; `targets` put the States of `plane` in force.

        `failed` returns the backends whose health check fails.
        """
        self._failed = failed
        self._targets = targets
        self._plane, self._loop, self._sources, self._operator = plane, loop, sources, operator
        self._state_dir, self._node_name, self._events = state_dir, node_name, events

    @property
    def _state(self) -> State:
        return self._plane.current_state

    @property
    def addresses(self) -> Collection[L3n4Addr]:
        """The addresses for which the operator set a state, also those that no service has."""
        return self._operator.addresses

    def settable(self) -> Mapping[L3n4Addr, Backend]:
        """Return the backends with their states, from which the operator may change them.

        One that only its health check quarantines counts as active: the operator's state takes precedence.
        """
        known, set_states = self._state.backends, self._loop.effective_overrides().of_addresses()
        failed = {each for group in self._failed() for each in group.backends if each in known}
        quarantined = [
            each
            for each in failed
            if known[each].state is BackendState.QUARANTINED and set_states.get(each) is not BackendState.QUARANTINED
        ]
        if not quarantined:
            return known
        return {**known, **{each: replace(known[each], state=BackendState.ACTIVE) for each in quarantined}}

    def backends_of_pod(self, pod: str) -> Sequence[L3n4Addr]:
        """Return the backends of a Pod that are in the maps. Raises NotFound when it has none."""
        known = self._state.backends
        snapshots = (source.snapshot() for source in self._sources)
        found = [address for address in backends_of_pod(snapshots, pod) if address in known]
        if not found:
            raise NotFound(f"no service has a backend of the Pod {pod}; nothing was changed")
        return found

    async def pods_of(self, addresses: Collection[L3n4Addr]) -> Mapping[L3n4Addr, str]:
        """Return the key of the Pod of each of these backends, if an object names one."""
        snapshots = [source.snapshot() for source in self._sources]
        return await run_cooperatively(pods_at(snapshots, addresses), time.monotonic)

    async def states_set(self) -> Mapping[L3n4Addr, SetBy]:
        """Return what set the state of each backend whose state was set."""
        overrides = self._loop.effective_overrides()
        snapshots = [source.snapshot() for source in self._sources] if overrides.by_pod else []
        pod_of = await run_cooperatively(pods_of_backends(snapshots, overrides.by_pod), time.monotonic)
        found = {}
        for address in (*overrides.by_address, *pod_of):
            if holds := overrides.effective(address, pod_of.get(address, "")):
                found[address] = _set_by(holds)
        return found

    async def set_state(
        self,
        addresses: Sequence[L3n4Addr],
        state: BackendState,
        pods: Sequence[str] = (),
        *,
        spare_last: bool = False,
        drains: Sequence[KeptDrain] = (),
    ) -> None:
        """Write the state the operator sets, with the drains that begin, and return when it is in the maps.

        Raises NotFound, InvalidTransition, LastBackend, LbError where the state cannot be kept.
        """
        known = self.settable()
        of_pods = [address for pod in pods for address in self.backends_of_pod(pod)]
        for address in (*addresses, *of_pods):
            backend = known.get(address)
            if backend is None:
                raise NotFound(f"no service has a backend {address.with_protocol()}; nothing was changed")
            backend.with_state(state)
        if spare_last and state is not BackendState.ACTIVE:
            await self._spare_last({*addresses, *of_pods})
        await self._operator.set_states(addresses, state, pods=pods, backends_of_pods=of_pods, drains=drains)
        await self._settled({*addresses, *of_pods})
        await self._tell_pods({*addresses, *of_pods}, "BackendStateSet", f"the operator set the state {state.text} for")

    async def _spare_last(self, taken: Collection[L3n4Addr]) -> None:
        """Raise LastBackend where a Service would have no backend left; LbError where nothing can be changed anyway."""
        folder = self._state_dir
        if reason := unwritable(folder):
            raise LbError(f"--state-dir {folder} {reason}; nothing was changed")
        if left := await run_cooperatively(services_left_empty(self._state, taken), time.monotonic):
            raise LastBackend(f"no backend would be left to {some(left)}: new connections would be refused")

    async def clear_state(self, addresses: Sequence[L3n4Addr], pods: Sequence[str] = ()) -> list[str]:
        """Forget the state the operator set and return when it is in the maps. Raises NotFound, Refused, LbError."""
        operator, known = self._operator, self._state.backends
        overrides = self._loop.effective_overrides()
        snapshots = [source.snapshot() for source in self._sources] if overrides.by_pod or pods else []
        pod_of = await run_cooperatively(pods_of_backends(snapshots, {*overrides.by_pod, *pods}), time.monotonic)
        for address in addresses:
            name, pod = address.with_protocol(), pod_reference(pod_of.get(address, ""))
            if address not in known and not operator.has_state(name):
                raise NotFound(f"no service has a backend {name}, and no state was set for it; nothing was changed")
            if operator.has_state(pod) and not operator.has_state(name):
                raise Refused(f"the state of {name} was set for {pod}: clear that one; nothing was changed")
        for pod in pods:
            if pod not in pod_of.values() and not operator.has_state(pod_reference(pod)):
                raise NotFound(f"no service has a backend of the Pod {pod}; nothing was changed")
        of_pods = [address for address, pod in pod_of.items() if pod in pods]
        cleared = await operator.forget([*addresses, *of_pods], pods)
        await self._settled({*addresses, *of_pods})
        if cleared:
            await self._tell_pods({*addresses, *of_pods}, "BackendStateCleared", "the operator cleared the state of")
        return cleared

    async def end_flows(self, addresses: Sequence[L3n4Addr]) -> None:
        """End the flows of backends that take no new flow. Raises Refused where one takes some, NotFound."""
        known, wanted = self._state.backends, frozenset(addresses)
        for address in addresses:
            if address not in known:
                raise NotFound(f"no service has a backend {address.with_protocol()}; nothing was changed")
        for svc in self._state.services:
            for backend in svc.selectable:
                if backend.address in wanted:
                    name = backend.address.with_protocol()
                    raise Refused(f"{name} takes new flows of {svc.name}; its flows were not ended")
        await self._loop.end_flows(wanted, self._targets)

    async def _tell_pods(self, addresses: Collection[L3n4Addr], reason: str, what: str) -> None:
        """Give an Event to each Pod of these backends, where Events go anywhere."""
        if not self._events:
            return
        found: dict[str, list[str]] = {}
        for address, pod in (await self.pods_of(addresses)).items():
            found.setdefault(pod, []).append(address.with_protocol())
        for pod, names in sorted(found.items()):
            text = f"{what} {some(sorted(names))} on the node {self._node_name}"
            for sink in self._events:
                sink(ObjectEvent("Pod", pod, reason, text))

    async def _settled(self, wanted: Collection[L3n4Addr]) -> None:
        """Wait until a change of these backends is in the maps. Raises what failed there."""
        await self._loop.settled(*self._targets)
        for frontend, failure in self._plane.failing.items():
            svc = self._state.by_frontend.get(frontend)
            if svc is not None and any(backend.address in wanted for backend in svc.backends):
                raise failure.error


def _set_by(override: StateOverride) -> SetBy:
    """Return what set a state, in a few words."""
    what = OPERATOR if override.origin.source == OPERATOR else override.origin.place
    return SetBy(override.state, f"{what} ({override.subject})" if override.pod else what, override.created)
