"""The tables of kube-proxy in the kernel: reading them, and taking them out of the path of packets or putting them back.

Blocks. This is the one place where a table of another program is read. No rule, set or element of it is changed: only the flag
`dormant`.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from contextlib import ExitStack, closing
from typing import NamedTuple

from lbagent.errors import NotFound
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.targets.kube_proxy.proxy_rules import TABLE, Elements, ProxyFrontend, ProxyRules
from lbagent.targets.nftables import nf_tables
from lbagent.targets.nftables.nf_tables import NFPROTO, NfTables

TRIES = 10  # readings that a write of kube-proxy interrupts
_WORDS = {Family.IPV4: "ip", Family.IPV6: "ip6"}


class NoProxyTable(NotFound):
    """No table of kube-proxy is there."""

    def __init__(self) -> None:
        super().__init__(
            "there is no table ip kube-proxy or ip6 kube-proxy: kube-proxy does not run here, or not in mode nftables"
        )


class ProxyTable(NamedTuple):
    """What the table of one family does."""

    family: Family
    dormant: bool
    frontends: dict[L3n4Addr, ProxyFrontend]

    @property
    def name(self) -> str:
        """The name with its family, as nft has it."""
        return table_name(self.family)


def table_name(family: Family) -> str:
    """Return the name of kube-proxy's table with its family, as nft has it."""
    return f"{_WORDS[family]} {TABLE}"


def read_tables(local: Collection[bytes] = ()) -> list[ProxyTable]:
    """Return the tables of both families that are there; `local`: as in ProxyRules. Raises NoProxyTable, OSError."""
    tables = [table for family in Family if (table := _read(family, local)) is not None]
    if not tables:
        raise NoProxyTable
    return tables


def _read(family: Family, local: Collection[bytes]) -> ProxyTable | None:
    """Return the table as it was at one moment, where kube-proxy pauses that long. Raises OSError."""
    with closing(NfTables(NFPROTO[family])) as kernel:
        for attempt in range(1, TRIES + 1):
            if kernel.comment(TABLE) is None:
                return None
            before = kernel.generation()
            try:
                found = ProxyTable(family, kernel.is_dormant(TABLE), _rules(kernel, family).frontends(local))
            except OSError as error:
                if error.errno != errno.ENOENT or attempt == TRIES:
                    raise
                continue
            if kernel.generation() == before or attempt == TRIES:
                return found
    return None


def _rules(kernel: NfTables, family: Family) -> ProxyRules:
    by_chain: dict[str, list[bytes]] = {}
    for row in kernel.rules(TABLE):
        by_chain.setdefault(row.chain, []).append(row.expressions)
    known: dict[str, Elements] = {}

    def elements(name: str) -> Elements:
        if name not in known:
            known[name] = kernel.element_attributes(TABLE, name)
        return known[name]

    return ProxyRules(family, by_chain, elements, lambda name: kernel.set_timeout_ms(TABLE, name) // 1000)


def dormant_families() -> dict[Family, bool]:
    """Return the families with a table of kube-proxy, and whether it is dormant. Raises OSError."""
    found = {}
    for family in Family:
        with closing(NfTables(NFPROTO[family])) as kernel:
            if kernel.comment(TABLE) is not None:
                found[family] = kernel.is_dormant(TABLE)
    return found


def set_dormant(*, dormant: bool) -> list[Family]:
    """Take the chains of both tables out of the path, or put them back; return what changed. Raises KernelError, OSError."""
    changed = []
    with ExitStack() as stack:
        for family, is_dormant in dormant_families().items():
            if is_dormant != dormant:
                kernel = stack.enter_context(closing(NfTables(NFPROTO[family])))
                kernel.transact([nf_tables.set_dormant(TABLE, dormant=dormant)])
                changed.append(family)
    return changed
