"""The table of sources: which there are, when each is configured, how it is built. A new source is one line here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.model.message import Message
from lbagent.objects.object_event import EventSink
from lbagent.objects.records import FOLDER, KUBE, NATIVE_POOLS, OPERATOR, SYNTHETIC
from lbagent.objects.source import Source
from lbagent.sources.operator import OperatorSource

# A source is imported where it is built: an agent has one or two of them.
if TYPE_CHECKING:
    from lbagent.apilb.instance import Instance
    from lbagent.apilb.native.native_source import NativeSource
    from lbagent.sources.kube.source import KubeSource


class _SourceKind(NamedTuple):
    name: str
    is_configured: Callable[[Config], bool]
    build: Callable[[Config], Source]
    reconfigure: Callable[[Any, Config], None] = lambda _source, _config: None  # at SIGHUP
    event_sink: Callable[[Any], EventSink | None] = lambda _source: None  # where Events about its objects go


def _folder(config: Config) -> Source:
    from lbagent.sources.folder.source import FolderSource

    return FolderSource(config.manifests, last_good=os.path.join(config.state_dir, "manifests"))


def _synthetic(config: Config) -> Source:
    from lbagent.sources import synthetic

    return synthetic.SyntheticSource(*synthetic.parse_synthetic(config.synthetic))


def _native_pools(config: Config) -> Source:
    from lbagent.apilb.native.native_source import NativeSource

    return NativeSource(config.apilb, config.state_dir, _read_pools)


def _read_pools(path: str) -> tuple[Sequence[Instance], Sequence[Message]]:
    """Read one pool file. How this process would log in to other hosts is not asked: it goes to none."""
    from lbagent.apilb.files.pool_files import read_pool_files

    found = read_pool_files([path], environ={"SSH_AUTH_SOCK": path})
    return found.instances, found.warnings


def _kube(config: Config) -> Source:
    from lbagent.kube.kube_settings import KubeSettings
    from lbagent.sources.kube.source import KubeSource

    settings = KubeSettings(
        kubeconfig=config.kubeconfig,
        node_name=config.name_of_node,
        state_dir=config.state_dir,
        max_delete_ratio=config.max_delete_ratio,
    )
    return KubeSource(settings)


def _kube_events(source: KubeSource) -> EventSink:
    return source.events.write


def _reconfigure_kube(source: KubeSource, config: Config) -> None:
    source.set_max_delete_ratio(config.max_delete_ratio)


# In the order in which they win: of an object that two sources give, the one of the first source holds. The operator, who gives
# no Services, comes before them all.
_KINDS = (
    _SourceKind(FOLDER, lambda config: bool(config.manifests), _folder),
    _SourceKind(
        KUBE,
        lambda config: bool(config.kubeconfig or config.in_cluster),
        _kube,
        _reconfigure_kube,
        _kube_events,
    ),
    _SourceKind(NATIVE_POOLS, lambda config: bool(config.apilb), _native_pools),
    _SourceKind(SYNTHETIC, lambda config: bool(config.synthetic), _synthetic),
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
    if not services and config.services:
        raise ConfigError(
            "no source of services: give --manifests DIR, --kubeconfig FILE, --in-cluster or --apilb PATH"
        )
    return operator, [operator, *services]


def native_pools(sources: Sequence[Source]) -> NativeSource | None:
    """Return the source of native pools, whose servers are checked and shown too."""
    found = next((source for source in sources if source.name == NATIVE_POOLS), None)
    return cast("NativeSource | None", found)


def event_sinks(sources: Sequence[Source]) -> list[EventSink]:
    """Return where Events about the objects of these sources go."""
    kinds = {kind.name: kind for kind in _KINDS}
    sinks = [kinds[source.name].event_sink(source) for source in sources if source.name in kinds]
    return [sink for sink in sinks if sink is not None]


def reconfigure_sources(sources: Sequence[Source], config: Config) -> None:
    """Let the sources take over what can change while they run."""
    kinds = {kind.name: kind for kind in _KINDS}
    for source in sources:
        if source.name in kinds:
            kinds[source.name].reconfigure(source, config)
