"""The data plane `none` as `--renderer` and `lbagent renderers` name it, and as a renderer of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbagent.config import Config
from lbagent.config.renderer_words import RendererSettings
from lbagent.errors import ConfigError
from lbagent.render.renderer_types import Difference, Interfaces, IPAddresses, ResolvedService, ResyncEventData
from lbagent.targets.data_plane import DataPlane, Feature
from lbagent.targets.plain_plane import PlainPlane

NAME = "none"
FEATURES: frozenset[Feature] = frozenset()


class NonePlane(PlainPlane):
    """Puts each State in force by remembering it."""

    name = NAME
    features = FEATURES


class NoneRenderer:
    """Takes each call, and does nothing."""

    async def add_service(self, service: ResolvedService) -> None:
        """Do nothing."""

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        """Do nothing."""

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        """Do nothing."""

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        """Do nothing."""

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Do nothing."""

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Do nothing."""

    async def resync(self, snapshot: ResyncEventData) -> None:
        """Do nothing."""

    async def flush(self) -> None:
        """Do nothing."""

    async def dump(self) -> list[str]:
        """Nothing is in force."""
        return []

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        """Nothing can differ."""
        del snapshot
        return []

    def capabilities(self) -> frozenset[str]:
        """It can do nothing."""
        return frozenset()

    async def close(self, keep: bool) -> None:
        """Nothing is open."""


def make(config: Config, settings: RendererSettings) -> DataPlane:
    """Return the data plane. It has no settings."""
    del settings
    return NonePlane(config)


def factory(settings: Mapping[str, str]) -> NoneRenderer:
    """Return the renderer. Raises ConfigError for any setting."""
    if settings:
        raise ConfigError("--renderer none: none has no settings")
    return NoneRenderer()


def unavailable() -> str:
    """It needs nothing."""
    return ""
