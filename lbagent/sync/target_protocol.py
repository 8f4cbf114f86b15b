"""Target: what makes a State true somewhere: in the maps of the programs, in nftables, in a file.

The loop (sync/loop.py) uses targets by this module alone. Each target runs in a task of its own (sync/runner.py): one that
fails is tried again with growing pauses, one that is slow is given the latest State when it is free, and neither holds up
another. What else a data plane has, the agent uses by targets/data_plane.py; how to add one: docs/architecture.md.
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
    """Which sources the objects behind a State come from: for a target that keeps entries of an earlier agent.

    `untrusted` are the sources whose last list was not good; `services_of_unlisted` are the keys of the Services (and Pods) of
    which those hold a part that gave no whole list yet, `services_with_endpoints` those whose endpoints any source names.
    `remembered_services` are the keys of the Services (and Pods), and `remembered_endpoints` of those with endpoints, that only
    sources hold which remember them of an earlier agent. `overrides` are the states set by the operator and by health checks.
    """

    untrusted: tuple[str, ...]
    services_of_unlisted: Collection[str]
    services_with_endpoints: Collection[str]
    overrides: Mapping[L3n4Addr, BackendState]
    remembered_services: Collection[str] = frozenset()
    remembered_endpoints: Collection[str] = frozenset()


class ObjectFacts(Struct, frozen=True):
    """What a target may need of the objects and no State has."""

    node_addresses: tuple[bytes, ...] = ()  # of this node: those that NodePorts have
    addresses_of_nodes: frozenset[bytes] = frozenset()  # of every node of the cluster
    services_with_endpoints: frozenset[str] = (
        frozenset()
    )  # NAMESPACE/NAME of those that have a slice, also an empty one


class Desired(Struct, frozen=True):
    """What a target makes true: a State without ids.

    `provenance` is given from the first untrusted source on, while a target retains: also when all are trusted again.
    `facts` are given while a target needs them.
    """

    state: State
    provenance: Provenance | None = None
    facts: ObjectFacts | None = None


class Target(Protocol):
    """One place where the State is made true. All of it runs in the agent's event loop."""

    name: str  # one word, as `lbagent status` shows it
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
        """Frontends that could not be written, and when each is tried again."""

    @property
    def error(self) -> str:
        """What failed last beside single frontends; '' when nothing did."""

    def retry_at(self) -> float | None:
        """Return when `reconcile` must be called again though nothing changed (monotonic seconds); None: not at all."""

    @property
    def retains(self) -> bool:
        """Whether it holds entries of an earlier agent that no State has replaced yet: then it is given the provenance."""

    def restored_backends(self) -> Collection[L3n4Addr]:
        """Return the backends of an earlier agent that it has entries for: an endpoint with an entry keeps it."""

    async def reconcile(self, desired: Desired) -> None:
        """Make the State true. Never called twice at a time.

        Let other tasks run in between (model/cooperative.py). What fails for single frontends is in `failing` and
        `retry_at`; LbError and OSError mean that all failed: they are logged and tried again with growing pauses. Anything
        else is a defect and ends the agent; what is in force goes on serving.
        """

    async def watch(self) -> None:
        """Follow for ever what may make the target untrue from outside (drift), and set `wake`; or return at once."""
