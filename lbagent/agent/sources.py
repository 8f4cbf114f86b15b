"""The table of sources: which there are, when each is configured, how it is built. A new source is one line here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.objects.records import OPERATOR
from lbagent.objects.source import Source
from lbagent.sources import synthetic
from lbagent.sources.folder import manifest_files
from lbagent.sources.folder.source import FolderSource
from lbagent.sources.operator import OperatorSource


class _SourceKind(NamedTuple):
    name: str
    is_configured: Callable[[Config], bool]
    build: Callable[[Config], Source]


def _folder(config: Config) -> Source:
    return FolderSource(config.manifests, last_good=os.path.join(config.state_dir, "manifests"))


def _synthetic(config: Config) -> Source:
    return synthetic.SyntheticSource(*synthetic.parse_synthetic(config.synthetic))


# In the order in which they win: of an object that two sources give, the one of the first source holds. The operator, who gives
# no Services, comes before them all.
_KINDS = (
    _SourceKind(manifest_files.SOURCE, lambda config: bool(config.manifests), _folder),
    _SourceKind(synthetic.SOURCE, lambda config: bool(config.synthetic), _synthetic),
)


def source_names(config: Config) -> tuple[str, ...]:
    """Return the names of the configured sources, in the order in which they win."""
    return (OPERATOR, *(kind.name for kind in _KINDS if kind.is_configured(config)))


def build_sources(config: Config) -> tuple[OperatorSource, list[Source]]:
    """Return the operator's source, and all configured ones in the order in which they win.

    Raises ConfigError when none is configured that can give Services.
    """
    operator = OperatorSource(config.state_dir)
    services = [kind.build(config) for kind in _KINDS if kind.is_configured(config)]
    if not services:
        raise ConfigError("no source of services: give --manifests DIR")
    return operator, [operator, *services]
