"""The data plane `nftables` as `--renderer` and `lbagent renderers` name it. It is imported whole when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.targets.data_plane import Feature

if TYPE_CHECKING:
    from lbagent.config import Config
    from lbagent.targets.data_plane import DataPlane

NAME = "nftables"
FEATURES = frozenset(
    {Feature.AFFINITY, Feature.MAGLEV, Feature.REJECT, Feature.SNAT, Feature.SOURCE_RANGES, Feature.WEIGHTS}
)


def make(config: Config, settings: str) -> DataPlane:
    """Return the data plane, not opened yet; `settings`: table=NAME,priority=N. Raises ConfigError."""
    from lbagent.targets.nftables.nft_plane import NftPlane
    from lbagent.targets.nftables.nft_settings import parsed

    return NftPlane(config, parsed(settings), FEATURES)


def unavailable() -> str:
    """Return why this process cannot use nftables here; '' when it can. It makes a table and deletes it in one transaction."""
    from lbagent.targets.nftables.nft_table import unavailable_reason

    return unavailable_reason()
