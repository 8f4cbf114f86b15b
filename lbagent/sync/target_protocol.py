"""Target: applies a State: to the maps of the programs, to nftables, to a file.

The loop (sync/loop.py) uses targets only by this module. Each target runs in a task of its own (sync/runner.py): a failed one is
retried with growing pauses, a slow one gets the latest State when it is free, and neither delays another. targets/data_plane.py
has the rest of a data plane's interface; how to add one: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.state import State
from lbagent.sync.backoff import Failure


class Provenance(Struct, frozen=True):
    """The sources of the objects of a State: for a target that keeps entries of an earlier agent.

    `untrusted` are the sources whose last list was not good; `services_of_unlisted` are the keys of the Services (and Pods) with
    a part in a source without a whole list yet, `services_with_endpoints` those with an endpoint object in any source.
    `remembered_services` are the keys of the Services (and Pods), and `remembered_endpoints` of those with endpoints, that are
    only in sources which stored them for an earlier agent. `overrides` are the states set by the operator and by health checks.
    """

    untrusted: tuple[str, ...]
    services_of_unlisted: Collection[str]
    services_with_endpoints: Collection[str]
    overrides: Mapping[L3n4Addr, BackendState]
    remembered_services: Collection[str] = frozenset()
    remembered_endpoints: Collection[str] = frozenset()


class ObjectFacts(Struct, frozen=True):
    """Facts of the objects that a target may need and no State has."""

    node_addresses: tuple[bytes, ...] = ()  # of this node: those that NodePorts have
    addresses_of_nodes: frozenset[bytes] = frozenset()  # of every node of the cluster
    services_with_endpoints: frozenset[str] = (
        frozenset()
    )  # NAMESPACE/NAME of those that have a slice, also an empty one


class Desired(Struct, frozen=True):
    """The input of a target: a State without ids.

    `provenance` is set from the first untrusted source on, while a target retains, also if all are trusted again. `facts` are set
    while a target needs them. `left_alone`: frontends of which no packet is answered either, as another proxy has them.
    """

    state: State
    provenance: Provenance | None = None
    facts: ObjectFacts | None = None
    left_alone: frozenset[L3n4Addr] = frozenset()


class Target(Protocol):
    """One place to which States are applied. All of it runs in the agent's event loop."""

    name: str  # one word, for `lbagent status`
    ready: asyncio.Event  # set when the first full State is in force, never cleared
    wake: asyncio.Event  # the target sets it to have `reconcile` called again, with the State given last
    needs_facts: bool  # `Desired.facts` is given

    @property
    def generation(self) -> int:
        """Counter of the States that were put in force; grows and never repeats while the agent runs."""

    @property
    def waiting(self) -> str:
        """Why the target is not ready although it has a State: one sentence, '' when there is no reason."""

    @property
    def failing(self) -> Mapping[L3n4Addr, Failure]:
        """Frontends that could not be written, and when each is retried."""

    @property
    def error(self) -> str:
        """The last failure beside single frontends; '' if there is none."""

    def retry_at(self) -> float | None:
        """Return when `reconcile` must be called again without a change (monotonic seconds); None: not at all."""

    @property
    def retains(self) -> bool:
        """Whether it holds entries of an earlier agent that no State has replaced yet: then it gets the provenance."""

    def restored_backends(self) -> Collection[L3n4Addr]:
        """Return the backends with entries of an earlier agent: an endpoint with an entry keeps it."""

    def restored_inside_rows(self) -> Collection[L3n4Addr]:
        """Return the frontends of scope INTERNAL with entries of an earlier agent: a frontend keeps them."""

    async def reconcile(self, desired: Desired) -> None:
        """Apply the State. Never called twice at a time.

        It lets other tasks run in between (model/cooperative.py). Failures of single frontends are in `failing` and `retry_at`;
        LbError and OSError mean that all failed: they are logged and retried with growing pauses. Any other exception is a defect
        and ends the agent; entries in force continue to serve.
        """

    async def watch(self) -> None:
        """Detect outside changes (drift) without end, and set `wake`; or return at once."""
