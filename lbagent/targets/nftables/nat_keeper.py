"""A table that keeps the kernel's translation of connections going when no other chain of type nat is left.

A kernel without such a chain leaves every connection untranslated, also those that nf_conntrack has. The one chain has no effect
on new connections; its rule reads connection tracking, which then stays on, too.
"""

from __future__ import annotations

from contextlib import closing

from lbagent.targets.nftables import nf_tables
from lbagent.targets.nftables.chains import SRCNAT
from lbagent.targets.nftables.map_specs import MARKER
from lbagent.targets.nftables.nf_tables import NfTables, is_our_comment
from lbagent.targets.nftables.statements import Chain, is_translated, rule, verdict

KEEPER = "lbagent-migration"
_CHAIN = "kept"


def keep_translating() -> None:
    """Make the table, or do nothing where it is there. Raises KernelError, OSError."""
    chain = Chain((rule(is_translated(), verdict("accept")),), "postrouting", SRCNAT + 1)
    with closing(NfTables()) as kernel:
        if kernel.comment(KEEPER) is None:
            batch = [nf_tables.new_table(KEEPER, MARKER), nf_tables.new_chain(KEEPER, _CHAIN, chain)]
            kernel.transact([*batch, *nf_tables.new_rules(KEEPER, _CHAIN, chain)])


def is_kept() -> bool:
    """Return whether the table is there: a migration made it. Raises OSError."""
    with closing(NfTables()) as kernel:
        return is_our_comment(kernel.comment(KEEPER) or "")


def stop_translating() -> bool:
    """Remove the table; return whether it was there and ours. Raises KernelError, OSError."""
    with closing(NfTables()) as kernel:
        comment = kernel.comment(KEEPER)
        if comment is None or not is_our_comment(comment):
            return False
        kernel.transact([nf_tables.delete_table(KEEPER)])
    return True
