"""What a check of the agent that holds for every data plane reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # doctor imports this module, too, and needs no module of the agent
    from lbagent.announce.announcer import Announcer
    from lbagent.config import Config
    from lbagent.healthz.node_servers import NodeServers
    from lbagent.liveness.node_liveness import NodeLiveness
    from lbagent.objects.source import Source
    from lbagent.sources.backend_health import BackendHealthSource
    from lbagent.sync.loop import SyncLoop
    from lbagent.sync.object_verification import ObjectVerification
    from lbagent.targets.data_plane import DataPlane


class OwnersFile(Protocol):
    """The file of frontend owners (lbagent/agent/frontend_owners.py)."""

    path: str
    failure: str


class RunningAgent(Protocol):
    """The parts of the agent that checks read (lbagent/agent/parts.py).

    `announcer` is None without --announce, `liveness` without --node-liveness.
    """

    @property
    def config(self) -> Config: ...  # noqa: D102
    @property
    def sources(self) -> Sequence[Source]: ...  # noqa: D102
    @property
    def loop(self) -> SyncLoop: ...  # noqa: D102
    @property
    def plane(self) -> DataPlane: ...  # noqa: D102
    @property
    def translating(self) -> Sequence[DataPlane]: ...  # noqa: D102
    @property
    def owners(self) -> OwnersFile | None: ...  # noqa: D102
    @property
    def node_servers(self) -> NodeServers | None: ...  # noqa: D102
    @property
    def announcer(self) -> Announcer | None: ...  # noqa: D102
    @property
    def health(self) -> BackendHealthSource: ...  # noqa: D102
    @property
    def liveness(self) -> NodeLiveness | None: ...  # noqa: D102
    @property
    def verification(self) -> ObjectVerification | None: ...  # noqa: D102
    @property
    def problems(self) -> Mapping[str, str]: ...  # noqa: D102
