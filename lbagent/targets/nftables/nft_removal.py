"""What commands do with the table without an agent: `cleanup` removes it, `status` shows that it serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress

from lbagent.config import Config
from lbagent.config.renderer_words import renderer_words
from lbagent.errors import KernelError, LbError
from lbagent.targets.nftables.map_specs import MAPS
from lbagent.targets.nftables.nft_settings import parsed, table_settings
from lbagent.targets.nftables.nft_table import NftTable, NotOurs
from lbagent.targets.nftables.table_lock import TableLock

NAME = "nftables"
RETIRE_S = 0.1  # a packet that chose its backend is through the other chains


def table_of(config: Config) -> str:
    """Return the name of the table that --renderer names, else the default. Raises ConfigError."""
    word = next((word for word in renderer_words(config.renderer) if word.name == NAME), None)
    return table_settings(parsed(word.settings) if word else {}, config).table


def remove(config: Config, before: Callable[[], None]) -> list[str]:
    """Remove the table, and return what went; where it is there, `before` is called first. Raises Conflict, KernelError.

    A table that is not ours stays, and so does one that this process may not read.
    """
    name = table_of(config)
    try:
        with closing(NftTable(name)) as table:
            if not table.exists():
                return []
            lock = TableLock(name)
            lock.take()
            try:
                before()
                with suppress(KernelError):  # a table that is not complete
                    table.retire()
                    time.sleep(RETIRE_S)
                table.remove()
            finally:
                lock.release()
    except (NotOurs, OSError):
        return []
    return [f"removed table inet {name}"]


def left_serving(config: Config) -> list[tuple[str, str]]:
    """Return what serves without an agent: pairs of a word and a text."""
    try:
        name = table_of(config)
        with closing(NftTable(name)) as table:
            if not table.exists():
                return []
            count = sum(table.count(spec) for spec in MAPS.values() if spec.name.startswith("frontends"))
    except (LbError, OSError):
        return []
    return [("nftables", f"table inet {name}, {count} frontends")]
