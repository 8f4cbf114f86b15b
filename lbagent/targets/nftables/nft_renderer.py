"""The data plane `nftables` as `--renderer` and `lbagent renderers` name it. It is imported whole when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.targets.data_plane import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from lbagent.config import Config
    from lbagent.targets.data_plane import DataPlane

NAME = "nftables"
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


def make(config: Config, settings: str) -> DataPlane:
    """Return the data plane, not opened yet; `settings`: `table=NAME,priority=N,family=ipv4|ipv6`. Raises ConfigError."""
    from lbagent.targets.nftables.nft_plane import NftPlane
    from lbagent.targets.nftables.nft_settings import parsed

    return NftPlane(config, parsed(settings), FEATURES)


def remove(config: Config, before: Callable[[], None]) -> list[str]:
    """Remove the table, and return what went, one line each; where it is there, `before` is called first. Raises Conflict."""
    from lbagent.targets.nftables.nft_removal import remove as remove_table

    return remove_table(config, before)


def left_serving(config: Config) -> list[tuple[str, str]]:
    """Return what serves packets without an agent: pairs of a word and a text for `lbagent status`."""
    from lbagent.targets.nftables.nft_removal import left_serving as read

    return read(config)


def unavailable() -> str:
    """Return why this process cannot use nftables here; '' when it can. It makes a table and deletes it in one transaction."""
    from lbagent.targets.nftables.nft_table import unavailable_reason

    return unavailable_reason()
