"""The data plane `nftables` as `--renderer` and `lbagent renderers` name it. It is imported whole when it is used."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from lbagent.errors import LbError
from lbagent.targets.data_plane import Feature, LiveFlows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lbagent.config import Config
    from lbagent.config.renderer_words import RendererSettings
    from lbagent.model.address import L3n4Addr
    from lbagent.model.family import Family
    from lbagent.model.state import State
    from lbagent.render.renderer_types import Difference
    from lbagent.render.service_renderer import ServiceRenderer
    from lbagent.targets.data_plane import DataPlane
    from lbagent.targets.nftables.left_nft import LeftNft

NAME = "nftables"
TEXT_FORMS = ("nft", "json")  # of `text_of`
FEATURES = frozenset(
    {
        Feature.AFFINITY,
        Feature.FLOWS,
        Feature.MAGLEV,
        Feature.REJECT,
        Feature.SNAT,
        Feature.SOURCE_RANGES,
        Feature.WEIGHTS,
    }
)


def make(config: Config, settings: RendererSettings) -> DataPlane:
    """Return the data plane, not opened yet; its settings are `table` and `priority`. Raises ConfigError."""
    from lbagent.targets.nftables.nft_plane import NftPlane

    return NftPlane(config, _with_family(settings), FEATURES)


def factory(settings: Mapping[str, str]) -> ServiceRenderer:
    """Return the table behind the calls of the renderer API; settings `table`, `priority`, `family`. Raises ConfigError."""
    from lbagent.config import Config
    from lbagent.targets.nftables.nft_service_renderer import NftServiceRenderer

    return NftServiceRenderer(settings, FEATURES, Config())


def text_of(config: Config, settings: RendererSettings, state: State, form: str) -> str:
    """Return the table of a State as text: `form` nft is for `nft -f`, json is libnftables' JSON. Raises ConfigError."""
    from lbagent.targets.nftables.nft_settings import table_settings
    from lbagent.targets.nftables.node_place import NodePlace
    from lbagent.targets.nftables.rendered import ruleset_json, ruleset_text

    table = table_settings(_with_family(settings), config)
    nodes = () if table.egress_snat else None
    place = NodePlace(config.name_of_node, config.pod_device, node_ips=config.node_addresses, nodes=nodes)
    if form == "nft":
        return ruleset_text(state.services, place, table)
    return json.dumps(ruleset_json(state.services, place, table), indent=1) + "\n"


def not_served(config: Config, settings: RendererSettings, state: State) -> list[str]:
    """Return what of Services is not served, one sentence each, which names the Service."""
    from lbagent.targets.nftables.nft_settings import table_settings
    from lbagent.targets.nftables.node_place import NodePlace
    from lbagent.targets.nftables.rendered import unsupported

    place = NodePlace(config.name_of_node, config.pod_device, node_ips=config.node_addresses)
    found = unsupported(state.services, place, table_settings(_with_family(settings), config))
    return [f"{name}: {reason}" for name, reason in found]


def compared(
    config: Config, settings: RendererSettings, state: State, *, repair: bool
) -> tuple[Sequence[Difference], Sequence[Difference]]:
    """Return in what the table differs from a State, and with `repair` what is left. Raises LbError, OSError."""
    from lbagent.targets.nftables.nft_settings import table_settings
    from lbagent.targets.nftables.table_compared import table_compared

    table = table_settings(_with_family(settings), config)
    return table_compared(table, config.name_of_node, config.pod_device, state, repair=repair)


def is_there(config: Config) -> bool:
    """Return whether the table is there; only the table of the default name."""
    return bool(translates(config))


def _with_family(settings: RendererSettings) -> dict[str, str]:
    family = {"family": f"ipv{settings.family.digit}"} if settings.family is not None else {}
    return settings.settings | family


def remove(config: Config, before: Callable[[], None]) -> list[str]:
    """Remove the table, and return what went, one line each; where it is there, `before` is called first. Raises Conflict."""
    from lbagent.targets.nftables.nft_removal import remove as remove_table

    return remove_table(config, before)


def left_serving(config: Config) -> list[tuple[str, str]]:
    """Return what serves packets without an agent: pairs of a word and a text for `lbagent status`."""
    from lbagent.targets.nftables.nft_removal import left_serving as read

    return read(config)


def live_flows(_config: Config) -> LiveFlows:
    """Return the connections that conntrack has. Raises LbError."""
    from lbagent.net.conntrack import Conntrack

    found: Counter[tuple[L3n4Addr, L3n4Addr | None]] = Counter()
    try:
        conntrack = Conntrack()
        with closing(conntrack):
            found.update((each.frontend, each.backend) for each in conntrack.connections() if each.is_live)
    except OSError as error:
        raise LbError(f"the connections cannot be read: {error.strerror or error}") from None
    return LiveFlows(found)


def translates(config: Config) -> str:
    """Return what of it translates packets now, without an agent or by one; '' nothing. Only the table of the default name."""
    del config
    from contextlib import closing, suppress

    from lbagent.targets.nftables.map_specs import DEFAULT_TABLE
    from lbagent.targets.nftables.nf_tables import NfTables, is_our_comment

    with suppress(OSError), closing(NfTables()) as kernel:
        comment = kernel.comment(DEFAULT_TABLE)
        return f"table inet {DEFAULT_TABLE}" if comment is not None and is_our_comment(comment) else ""
    return ""


def translated_families(config: Config) -> frozenset[Family]:
    """Return the families of the frontends that the table translates now. Only the table of the default name. Raises OSError."""
    from contextlib import closing

    from lbagent.targets.nftables.map_specs import DEFAULT_TABLE, MAPS
    from lbagent.targets.nftables.nft_table import NftTable

    if not translates(config):
        return frozenset()
    frontends = [spec for spec in MAPS.values() if spec.name.startswith("frontends")]
    with closing(NftTable(DEFAULT_TABLE)) as table:
        return frozenset(spec.family for spec in frontends if table.count(spec))


def left_over(config: Config) -> LeftNft:
    """Return what keeps the connections of an earlier agent going while another data plane takes over."""
    from lbagent.targets.nftables.left_nft import LeftNft

    return LeftNft(config)


def unavailable() -> str:
    """Return why this process cannot use nftables here; '' when it can. It makes a table and deletes it in one transaction."""
    from lbagent.targets.nftables.nft_table import unavailable_reason

    return unavailable_reason()
