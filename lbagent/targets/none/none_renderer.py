"""The data plane `none` as `--renderer` and `lbagent renderers` name it."""

from __future__ import annotations

from lbagent.config import Config
from lbagent.config.renderer_words import RendererSettings
from lbagent.targets.data_plane import DataPlane, Feature
from lbagent.targets.plain_plane import PlainPlane

NAME = "none"
FEATURES: frozenset[Feature] = frozenset()


class NonePlane(PlainPlane):
    """Puts each State in force by remembering it."""

    name = NAME
    features = FEATURES


def make(config: Config, settings: RendererSettings) -> DataPlane:
    """Return the data plane. It has no settings."""
    del settings
    return NonePlane(config)


def unavailable() -> str:
    """It needs nothing."""
    return ""
